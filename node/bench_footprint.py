"""What a node takes before it does anything: memory, and the time until it is ready."""

import json
import sys
from typing import Final

from busnode.node.bench_bus import REPLAY_MESSAGES, TOPIC, fill
from busnode.node.bench_segments import PAYLOAD_BYTES
from busnode.node.bench_stage import HEAR_S, Bench, Report, Stage, middle, node_command
from busnode.world.real_child import Child

WARM_UP_MESSAGES: Final = 200_000
STARTS: Final = 3
"""How often a node is started in each round: it takes no time."""


def bench_memory(bench: Bench) -> Report:
    """MB in RAM: idle, after some publishing, and while somebody who has stopped reading is a
    gigabyte behind. Each round is a new node."""
    report = bench.report("memory", PAYLOAD_BYTES)
    messages = bench.messages(REPLAY_MESSAGES)
    behind_bytes = messages * PAYLOAD_BYTES
    idle: list[float] = []
    used: list[float] = []
    behind: list[float] = []
    for number in range(bench.rounds):
        bench.progress(f"a reader that falls {messages:,} messages behind, round {number + 1}")
        with Stage(f"{bench.directory}/{number}") as stage:
            idle.append(stage.node.resident_bytes / 1e6)
            fill(bench, stage, bench.messages(WARM_UP_MESSAGES))
            used.append(stage.node.resident_bytes / 1e6)
            stopped = stage.player("raw")
            stopped.ask(do="open", topic=TOPIC)
            fill(bench, stage, messages)
            behind.append(stage.node.resident_bytes / 1e6)
            stopped.ask(do="read", bytes=behind_bytes)  # it was there all the time, and gets it all
    report["behind_payload_bytes"] = behind_bytes
    report["idle_mb"] = middle(idle, 1)
    report["after_publishing_mb"] = middle(used, 1)
    report["reader_behind_mb"] = middle(behind, 1)
    report["reader_behind_above_idle_mb"] = _difference(behind, idle)
    report["reader_behind_above_publishing_mb"] = _difference(behind, used)
    return report


def _difference(more: list[float], less: list[float]) -> float:
    return middle([a - b for a, b in zip(more, less, strict=True)], 1)


def bench_start(bench: Bench) -> Report:
    """Milliseconds from the start of the process to its ready line, in turns with a Python that
    does nothing."""
    report = bench.report("start", PAYLOAD_BYTES)
    now = bench.world.clock.monotonic
    ready: list[float] = []
    bare: list[float] = []
    for number in range(bench.rounds * STARTS):
        bench.progress(f"start {number + 1}")
        start = now()
        with Child(node_command(f"{bench.directory}/{number}")) as child:
            told = json.loads(child.hear(HEAR_S))
            ready.append((now() - start) * 1e3)
            assert told["ready"]
        start = now()
        with Child([sys.executable, "-c", "print()"]) as child:
            child.hear(HEAR_S)
            bare.append((now() - start) * 1e3)
    report["ready_ms"] = middle(ready)
    report["bare_python_ms"] = middle(bare)
    return report
