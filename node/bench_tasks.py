"""What becomes of tasks in a second: enqueued and acked, given to a worker, completed and acked.

In turns: a queue with nothing else in it, one in which a million tasks wait for their time, on a
node of its own, and the disk, which syncs what a task takes.
"""

from typing import Final

from busnode.node.bench_bus import write_and_sync
from busnode.node.bench_segments import PAYLOAD_BYTES, batch
from busnode.node.bench_stage import Bench, Effort, Report, Stage, middle
from busnode.wire.ids import Topic

QUEUE: Final = "bench"

WORKERS: Final = 10
PROCESSES: Final = 2
"""Of workers: with the node and the producer they share what processors there are."""

MANY: Final = 200_000
EACH: Final = 5_000
WARM_UP: Final = 0.1
SYNCS: Final = 500

WAITING: Final = 1_000_000
FILL: Final = 100_000
"""Enqueued in one go while tasks are made to wait."""
DELAY_S: Final = 7 * 24 * 3600.0


def bench_tasks(bench: Bench) -> Report:
    report = bench.report("tasks", PAYLOAD_BYTES)
    frame = batch(bench.world, Topic(f"/$task/{QUEUE}"), 1)
    syncs: list[float] = []
    with (
        Stage(f"{bench.directory}/empty") as empty,
        Stage(f"{bench.directory}/waiting") as waiting,
    ):
        lives = [Lives(bench, empty), Lives(bench, waiting)]
        waiting_tasks = bench.messages(WAITING)
        bytes_each = lives[1].wait(waiting_tasks)
        for number in range(bench.rounds):
            bench.progress(f"round {number + 1}")
            syncs.append(SYNCS / write_and_sync(bench, frame, SYNCS))
            for way in WAYS:
                for life in lives:  # one right after the other: the machine has its moods
                    life.measure(way)
        plain, beside = (life.report() for life in lives)
    report.update(plain)
    report["disk_syncs_per_s"] = middle(syncs)
    report["waiting"] = {
        "tasks": waiting_tasks,
        "resident_bytes_per_task": round(bytes_each),
        **beside,
        **{f"{way}_of_without": _ratio(lives, way) for way in WAYS},
    }
    return report


def _ratio(lives: list["Lives"], way: str) -> float:
    plain, beside = (life.rates[way] for life in lives)
    return middle([b / a for a, b in zip(plain, beside, strict=True)], 2)


WAYS: Final = {"batched": ("many", MANY), "one_at_a_time": ("each", EACH)}


class Lives:
    """Tasks of one node, from their beginning to their end."""

    def __init__(self, bench: Bench, stage: Stage) -> None:
        self._bench = bench
        self._stage = stage
        self._producer = stage.player("producer", queue=QUEUE)
        self._workers = [
            stage.player("workers", queue=QUEUE, workers=WORKERS // PROCESSES)
            for _ in range(PROCESSES)
        ]
        self.rates: dict[str, list[float]] = {way: [] for way in WAYS}
        self._efforts: dict[str, list[Report]] = {way: [] for way in WAYS}
        for way, full in WAYS.values():
            self._run(way, round(bench.messages(full) * WARM_UP))

    def wait(self, tasks: int) -> float:
        """Let so many wait; how many bytes of the node's memory each takes."""
        before = self._stage.node.resident_bytes
        for at in range(0, tasks, FILL):
            self._bench.progress(f"{at:,} tasks wait")
            count = min(FILL, tasks - at)
            self._producer.ask(way="many", tasks=count, delay_s=DELAY_S, until_waiting=at + count)
        return (self._stage.node.resident_bytes - before) / tasks

    def measure(self, name: str) -> None:
        way, full = WAYS[name]
        effort = Effort(self._stage)
        tasks = self._bench.messages(full)
        self.rates[name].append(tasks / self._run(way, tasks))
        effort.add(tasks)
        self._efforts[name].append(effort.report())

    def report(self) -> Report:
        return {
            name: {
                "tasks": self._bench.messages(full),
                "tasks_per_s": middle(self.rates[name]),
                "processor_us_per_task": {
                    role: middle([effort[role] for effort in self._efforts[name]], 1)
                    for role in self._efforts[name][0]
                },
            }
            for name, (_, full) in WAYS.items()
        }

    def _run(self, way: str, tasks: int) -> float:
        """Seconds from the first `enqueue` to the last answer to a `complete`."""
        for worker in self._workers:
            worker.ask(way=way, tasks=tasks // WORKERS)
        made = self._producer.ask(way=way, tasks=tasks, coroutines=WORKERS)
        ended_us = max(worker.hear()["at_us"] for worker in self._workers)
        return float(ended_us - made["since_us"]) / 1e6
