"""What the second disk costs: acks of a node with a mirror, in turns with one that has none; and
how fast a node that joins catches up while publishing goes on."""

from itertools import pairwise
from typing import Any, Final

from busnode.node.bench_segments import PAYLOAD_BYTES
from busnode.node.bench_stage import Bench, Effort, Player, Report, Stage, middle
from busnode.node.bench_window import BATCH_MESSAGES, WINDOW_BATCHES
from busnode.wire.limits import MIB

TOPIC: Final = "/bench/mirrored"
PUBLISHED_MESSAGES: Final = 2_000_000
ALONE_MESSAGES: Final = 1_000
CATCH_UP_BYTES: Final = 512 * MIB
WARM_UP: Final = 0.05

CLUSTER: Final = {"peer_port": "0", "mdns": "off"}


def bench_mirrored(bench: Bench) -> Report:
    """Persistent messages, acked after they were synced to the disks of two nodes."""
    report = bench.report("mirrored", PAYLOAD_BYTES)
    with Stage(f"{bench.directory}/pair", **CLUSTER, mirrors="1") as stage:
        seed = stage.node.ready["peer"]
        stage.add_node("mirror", **CLUSTER, mirrors="0", seed=seed)
        lone = stage.add_node("lone node", mirrors="0")
        stage.player("mirror watcher").ask()
        addresses = {"mirrored": stage.address, "local": lone.ready["client"]}
        report["windowed"] = _windowed(bench, stage, addresses)
        report["one_at_a_time"] = _one_at_a_time(bench, stage, addresses)
    with Stage(f"{bench.directory}/catch-up", **CLUSTER, mirrors="1") as stage:
        report["catch_up"] = _catch_up(bench, stage)
    return report


def _windowed(bench: Bench, stage: Stage, addresses: dict[str, str]) -> Report:
    batches = bench.messages(PUBLISHED_MESSAGES) // BATCH_MESSAGES
    publishers = {
        level: stage.player("windowed", address=address, topic=TOPIC)
        for level, address in addresses.items()
    }
    rates: dict[str, list[float]] = {level: [] for level in addresses}
    efforts: dict[str, list[Report]] = {level: [] for level in addresses}
    levels: set[str] = set()
    for publisher in publishers.values():
        publisher.ask(do="publish", batches=max(1, round(batches * WARM_UP)))
    for number in range(bench.rounds):
        for level, publisher in publishers.items():
            bench.progress(f"{level}, round {number + 1}")
            effort = Effort(stage)
            answer = publisher.ask(do="publish", batches=batches)
            effort.add(batches * BATCH_MESSAGES)
            efforts[level].append(effort.report())
            rates[level].append(batches * BATCH_MESSAGES / answer["seconds"])
            if level == "mirrored":
                levels.update(answer["levels"])
    for publisher in publishers.values():
        stage.dismiss(publisher)
    return {
        "messages": batches * BATCH_MESSAGES,
        "messages_a_batch": BATCH_MESSAGES,
        "batches_in_flight": WINDOW_BATCHES,
        "levels": ", ".join(sorted(levels)),
        "mirrored_acked_per_s": middle(rates["mirrored"]),
        "local_acked_per_s": middle(rates["local"]),
        "mirrored_of_local": _ratio(rates),
        "mirrored_processor_us_per_message": _used(efforts["mirrored"], "node", "mirror"),
        "local_processor_us_per_message": _used(efforts["local"], "lone node"),
    }


def _used(efforts: list[Report], *nodes: str) -> Report:
    return {name: middle([effort[name] for effort in efforts], 3) for name in (*nodes, "windowed")}


def _ratio(measured: dict[str, list[float]]) -> float:
    pairs = zip(measured["mirrored"], measured["local"], strict=True)
    return middle([mirrored / local for mirrored, local in pairs], 2)


def _one_at_a_time(bench: Bench, stage: Stage, addresses: dict[str, str]) -> Report:
    messages = bench.messages(ALONE_MESSAGES)
    players = {
        level: stage.player("awaiting", url=f"bus://{address}", topic=TOPIC)
        for level, address in addresses.items()
    }
    p50s: dict[str, list[float]] = {level: [] for level in addresses}
    for number in range(bench.rounds):
        for level, player in players.items():
            bench.progress(f"one at a time, {level}, round {number + 1}")
            p50s[level].append(player.ask(messages=messages)["p50_us"])
    return {
        "messages": messages,
        "mirrored_p50_us": middle(p50s["mirrored"], 1),
        "local_p50_us": middle(p50s["local"], 1),
        "mirrored_of_local": _ratio(p50s),
    }


def _catch_up(bench: Bench, stage: Stage) -> Report:
    """A log, then a node that joins: until it is in force. In each round it is a new one, with
    nothing on its disk."""
    batch_bytes = BATCH_MESSAGES * PAYLOAD_BYTES
    batches = max(1, round(CATCH_UP_BYTES * bench.scale / batch_bytes))
    before_batches = bench.messages(PUBLISHED_MESSAGES) // BATCH_MESSAGES // 2
    publisher = stage.player("windowed", topic=TOPIC)
    bench.progress("filling a log")
    publisher.ask(do="publish", batches=batches)
    watcher = stage.player("mirror watcher")
    rates: list[float] = []
    sent: list[float] = []
    used: list[float] = []
    before: list[float] = []
    during: list[float] = []
    for number in range(bench.rounds):
        bench.progress(f"catching up, round {number + 1}")
        seconds = publisher.ask(do="publish", batches=before_batches)["seconds"]
        before.append(before_batches * BATCH_MESSAGES / seconds)
        publisher.ask(do="begin")
        watcher.tell()
        mirror = _join(stage, number)
        used_s = mirror.processor_s
        caught = watcher.hear()
        used.append((mirror.processor_s - used_s) / (caught["sent_bytes"] / 1e9))
        samples = publisher.ask(do="end")["samples"]
        took_s = (caught["at_us"] - caught["since_us"]) / 1e6
        sent.append(caught["sent_bytes"])
        rates.append(caught["sent_bytes"] / took_s)
        acked = _acked(samples, caught["at_us"]) - _acked(samples, caught["since_us"])
        during.append(acked * BATCH_MESSAGES / took_s)
        stage.dismiss(mirror)
    return {
        "sent_bytes": middle(sent),
        "gb_per_s": middle([rate / 1e9 for rate in rates], 3),
        "mirror_processor_s_per_gb": middle(used, 2),
        "before_acked_per_s": middle(before),
        "during_acked_per_s": middle(during),
        "during_of_before": middle([a / b for a, b in zip(during, before, strict=True)], 2),
    }


def _join(stage: Stage, number: int) -> Player:
    seed = stage.node.ready["peer"]
    return stage.add_node(f"mirror {number}", **CLUSTER, mirrors="0", seed=seed)


def _acked(samples: list[Any], at_us: int) -> float:
    """Batches that were acked at a time, between two samples in proportion."""
    for (t0, acked0), (t1, acked1) in pairwise(samples):
        if t0 <= at_us <= t1:
            share: float = acked0 + (acked1 - acked0) * (at_us - t0) / (t1 - t0)
            return share
    last: float = samples[-1][1] if at_us > samples[-1][0] else samples[0][1]
    return last
