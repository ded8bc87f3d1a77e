"""What a second node on the way costs: the same work across two nodes and on one, in turns."""

from typing import Final

from busnode.node.bench_bus import (
    DURABLE_MESSAGES,
    LIVE_MESSAGES,
    ROUND_TRIPS,
    WARM_UP,
    Flow,
)
from busnode.node.bench_segments import PAYLOAD_BYTES
from busnode.node.bench_stage import Bench, Effort, Player, Report, Stage, middle

NEAR: Final = "/bench/near"
FAR: Final = "/bench/far"
"""Of the two consumers and providers one is at the publisher's node, and one at the other."""


def bench_cluster(bench: Bench) -> Report:
    """One publisher, and a consumer now at its own node and now at another one."""
    report = bench.report("cluster", PAYLOAD_BYTES)
    cluster = {"peer_port": "0", "mdns": "off"}
    with Stage(bench.directory, **cluster) as stage:
        other = stage.add_node("other node", seed=stage.node.ready["peer"], **cluster)
        far_url = f"bus://{other.ready['client']}"
        stage.dismiss(stage.player("watcher"))
        stage.dismiss(stage.player("watcher", url=far_url))
        publisher = stage.player("publisher")
        flows: dict[str, Flow] = {}
        for topic, url in ((NEAR, stage.url), (FAR, far_url)):
            consumer = stage.player("consumer", topic=topic, connections=1, url=url)
            flows[topic] = Flow(bench, stage, publisher, [consumer], 1, topic)
        live = bench.messages(LIVE_MESSAGES), False
        durable = bench.messages(DURABLE_MESSAGES), True
        report["live_send"] = _compare(bench, stage, flows, "send", *live)
        report["live_send_many"] = _compare(bench, stage, flows, "send_many", *live)
        report["durable_send_many"] = _compare(bench, stage, flows, "send_many", *durable)
        report["request"] = _compare_requests(bench, stage, far_url)
    return report


def _compare(
    bench: Bench,
    stage: Stage,
    flows: dict[str, Flow],
    sent_by: str,
    messages: int,
    persistent: bool,
) -> Report:
    rates: dict[str, list[float]] = {topic: [] for topic in flows}
    efforts: dict[str, list[Report]] = {topic: [] for topic in flows}
    dropped: list[float] = []
    for flow in flows.values():
        flow.run(sent_by, "batches", max(100, round(messages * WARM_UP)), persistent=persistent)
    for number in range(bench.rounds):
        for topic, flow in flows.items():
            bench.progress(f"{sent_by} to {topic}, round {number + 1}")
            effort = Effort(stage)
            _, seconds, came, lost = flow.run(sent_by, "batches", messages, persistent=persistent)
            effort.add(messages)
            efforts[topic].append(effort.report())
            rates[topic].append(came / seconds)
            if topic == FAR:
                dropped.append(lost / messages)
    ratios = [far / near for far, near in zip(rates[FAR], rates[NEAR], strict=True)]
    return {
        "messages": messages,
        "one_node_received_per_s": middle(rates[NEAR]),
        "two_nodes_received_per_s": middle(rates[FAR]),
        "two_of_one": middle(ratios, 2),
        "two_nodes_dropped_share": middle(dropped, 4),
        "two_nodes_processor_us_per_message": {
            name: middle([effort[name] for effort in efforts[FAR]], 3) for name in efforts[FAR][0]
        },
    }


def _compare_requests(bench: Bench, stage: Stage, far_url: str) -> Report:
    times = bench.messages(ROUND_TRIPS)
    requesters: list[Player] = []
    for topic, url in ((NEAR, stage.url), (FAR, far_url)):
        stage.player("provider", topic=topic, url=url)
        requesters.append(stage.player("requester", topic=topic))
    p50s: list[list[float]] = [[], []]
    for number in range(bench.rounds):
        bench.progress(f"{times:,} round trips, round {number + 1}")
        for place, requester in enumerate(requesters):
            p50s[place].append(requester.ask(messages=times)["p50_us"])
    near, far = p50s
    return {
        "one_node_p50_us": middle(near, 1),
        "two_nodes_p50_us": middle(far, 1),
        "two_of_one": middle([b / a for a, b in zip(near, far, strict=True)], 2),
    }
