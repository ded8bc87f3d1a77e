"""What the second disk costs: acks of a node with a mirror, in turns with one that has none."""

from typing import Final

from busnode.node.bench_catch_up import bench_catch_up
from busnode.node.bench_segments import PAYLOAD_BYTES
from busnode.node.bench_stage import CLUSTER, Bench, Effort, Report, Stage, middle
from busnode.node.bench_window import BATCH_MESSAGES, WINDOW_BATCHES

TOPIC: Final = "/bench/mirrored"
PUBLISHED_MESSAGES: Final = 2_000_000
ALONE_MESSAGES: Final = 1_000
WARM_UP: Final = 0.05


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
    report["catch_up"] = bench_catch_up(bench)
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
