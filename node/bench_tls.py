"""What TLS costs: the same work with a node in TLS and with a plain one, in turns."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

from busnode.node.bench_bus import (
    DURABLE_MESSAGES,
    LIVE_MESSAGES,
    ROUND_TRIPS,
    TOPIC,
    WARM_UP,
    Flow,
    fill,
)
from busnode.node.bench_segments import PAYLOAD_BYTES
from busnode.node.bench_stage import Bench, Player, Report, Stage, middle
from busnode.security.certificates import make_authority, make_certificate
from busnode.world.real_new_file import SECRET, write_new_file

DURABLE: Final = "/bench/durable"
REPLAY_MESSAGES: Final = 2_000_000
WAYS: Final = ("plain", "tls")

Measure = Callable[[str], float]
"""One round, plain or in TLS."""


def bench_tls(bench: Bench) -> Report:
    """Live, durable, replay and requests."""
    report = bench.report("tls", PAYLOAD_BYTES)
    ca, settings = _certificates(bench)
    with ExitStack() as stack:
        stages = {
            "plain": stack.enter_context(Stage(f"{bench.directory}/plain")),
            "tls": stack.enter_context(Stage(f"{bench.directory}/tls", tls_ca=ca, **settings)),
        }
        publishers = {way: stages[way].player("publisher") for way in WAYS}
        report["live"] = _live(bench, stages, publishers)
        report["durable"] = _durable(bench, publishers)
        report["replay"] = _replay(bench, stages)
        report["request"] = _request(bench, stages)
    return report


def _certificates(bench: Bench) -> tuple[str, dict[str, str]]:
    """The authority's file, and a node's settings."""
    now_us = bench.world.clock.utc_us()
    authority = make_authority("bench", now_us)
    node = make_certificate(authority, "bench", ["127.0.0.1"], now_us)
    paths = {
        name: f"{bench.directory}/{name}" for name in ("authority.pem", "node.pem", "node.key")
    }
    files = (authority.certificate, node.certificate, node.key)
    for path, data in zip(paths.values(), files, strict=True):
        write_new_file(path, data, SECRET)
    return paths["authority.pem"], {"tls_cert": paths["node.pem"], "tls_key": paths["node.key"]}


def _live(bench: Bench, stages: dict[str, Stage], publishers: dict[str, Player]) -> Report:
    messages = bench.messages(LIVE_MESSAGES)
    flows: dict[str, Flow] = {}
    for way, stage in stages.items():
        consumer = stage.player("consumer", topic=TOPIC, connections=1)
        flows[way] = Flow(bench, stage, publishers[way], [consumer], 1)
        flows[way].run("send_many", "batches", max(100, round(messages * WARM_UP)))
    dropped: list[float] = []

    def measure(way: str) -> float:
        _, seconds, came, lost = flows[way].run("send_many", "batches", messages)
        if way == "tls":
            dropped.append(lost / messages)
        return came / seconds

    report = _in_turns(bench, "live", "received_per_s", measure)
    return {"messages": messages, **report, "tls_dropped_share": middle(dropped, 4)}


def _durable(bench: Bench, publishers: dict[str, Player]) -> Report:
    messages = bench.messages(DURABLE_MESSAGES)

    def measure(way: str) -> float:
        order = {"way": "send_many", "topic": DURABLE, "messages": messages, "persistent": True}
        return messages / float(publishers[way].ask(**order, tasks=1)["seconds"])

    return {"messages": messages, **_in_turns(bench, "durable", "acked_per_s", measure)}


def _replay(bench: Bench, stages: dict[str, Stage]) -> Report:
    messages = bench.messages(REPLAY_MESSAGES)
    readers: dict[str, Player] = {}
    for way, stage in stages.items():
        fill(bench, stage, messages)
        readers[way] = stage.player("reader")

    def measure(way: str) -> float:
        answer = readers[way].ask(topic=TOPIC, way="batches", messages=messages)
        return float(answer["received"] * PAYLOAD_BYTES / answer["seconds"] / 1e9)

    found = _in_turns(bench, "replay", "gb_per_s", measure, digits=2)
    return {"messages": messages, **found}


def _request(bench: Bench, stages: dict[str, Stage]) -> Report:
    times = bench.messages(ROUND_TRIPS)
    requesters: dict[str, Player] = {}
    for way, stage in stages.items():
        stage.player("provider", topic=TOPIC)
        requesters[way] = stage.player("requester", topic=TOPIC)
        requesters[way].ask(messages=max(100, times // 10))

    def measure(way: str) -> float:
        p50_us: float = requesters[way].ask(messages=times)["p50_us"]
        return p50_us

    return {"round_trips": times, **_in_turns(bench, "request", "p50_us", measure, digits=1)}


def _in_turns(bench: Bench, what: str, unit: str, measure: Measure, digits: int = 0) -> Report:
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(bench.rounds):
        for way in WAYS:
            bench.progress(f"{what}, {way}, round {number + 1}")
            found[way].append(measure(way))
    ratios = [tls / plain for plain, tls in zip(found["plain"], found["tls"], strict=True)]
    return {
        **{f"{way}_{unit}": middle(found[way], digits) for way in WAYS},
        "tls_of_plain": middle(ratios, 2),
    }
