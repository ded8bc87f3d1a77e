"""How fast a node that joins catches up while publishing goes on, in turns with a bare copy."""

from itertools import pairwise
from typing import Any, Final

from busnode.node.bench_bus import BARE_BYTES, scratch_file
from busnode.node.bench_segments import PAYLOAD_BYTES
from busnode.node.bench_stage import CLUSTER, Bench, Report, Stage, middle
from busnode.node.bench_window import BATCH_MESSAGES
from busnode.wire.limits import MIB
from busnode.world.files import remove_tree

TOPIC: Final = "/bench/mirrored"
CATCH_UP_BYTES: Final = 2048 * MIB
BEFORE_BATCHES: Final = 10_000

BARE_OF_LOG: Final = 1.5
"""How much is copied bare: a log of which so much is published meanwhile needs no more memory."""


class CatchUp:
    """One log, a publisher that goes on, and a new node that joins.

    What was copied bare is removed right before the node joins, so that it finds memory and blocks
    of the disk that were just in use. On a machine whose host takes free memory back, to write a
    gigabyte into memory that was not cost up to five times as much. So each round has a log of its
    own: one that has grown in those before would need more memory than was just in use.
    """

    def __init__(self, bench: Bench, stage: Stage) -> None:
        self._bench = bench
        self._stage = stage
        self._publisher = stage.player("windowed", topic=TOPIC)
        self._watcher = stage.player("mirror watcher")
        self._bytes = max(1, round(CATCH_UP_BYTES * bench.scale))
        self._bare_bytes = round(self._bytes * BARE_OF_LOG)
        path = scratch_file(bench, min(self._bytes, BARE_BYTES))
        self._sender = stage.player("sender", path=path)
        self._copier = stage.player("copier")
        bench.progress("filling a log")
        batches = max(1, self._bytes // (BATCH_MESSAGES * PAYLOAD_BYTES))
        self._publisher.ask(do="publish", batches=batches)

    def measure(self) -> dict[str, float]:
        before = self._publish()
        self._publisher.ask(do="begin")
        bare, bare_used_s = self._copy_bare()
        caught, used_s = self._catch_up()
        samples = self._publisher.ask(do="end")["samples"]
        bare_gb, gb = self._bare_bytes / 1e9, caught["sent_bytes"] / 1e9
        during = _acked_per_s(samples, caught)
        after = self._publish()
        return {
            "sent_bytes": caught["sent_bytes"],
            "gb_per_s": gb / _seconds(caught),
            "mirror_processor_s_per_gb": used_s / gb,
            "before_acked_per_s": before,
            "during_acked_per_s": during,
            "after_acked_per_s": after,
            "during_of_before": during / before,
            "during_of_after": during / after,
            "bare_gb_per_s": bare_gb / _seconds(bare),
            "bare_processor_s_per_gb": bare_used_s / bare_gb,
            "during_bare_of_before": _acked_per_s(samples, bare) / before,
            "of_bare": gb / _seconds(caught) / (bare_gb / _seconds(bare)),
        }

    def _publish(self) -> float:
        """Messages a second, acked as they are just then: before the new node joins by one disk,
        and when it is the mirror by both."""
        batches = max(1, round(BEFORE_BATCHES * self._bench.scale))
        seconds: float = self._publisher.ask(do="publish", batches=batches)["seconds"]
        return batches * BATCH_MESSAGES / seconds

    def _copy_bare(self) -> tuple[Report, float]:
        path = f"{self._bench.directory}/bare copy"
        used_s = self._copier.processor_s
        address = self._sender.ready["address"]
        took = self._copier.ask(address=address, path=path, bytes=self._bare_bytes)
        self._bench.world.files.remove(path)
        return took, self._copier.processor_s - used_s

    def _catch_up(self) -> tuple[Report, float]:
        self._watcher.tell()
        seed = self._stage.node.ready["peer"]
        mirror = self._stage.add_node("mirror", **CLUSTER, mirrors="0", seed=seed)
        used_s = mirror.processor_s
        took = self._watcher.hear()
        return took, mirror.processor_s - used_s


def bench_catch_up(bench: Bench) -> Report:
    measured: list[dict[str, float]] = []
    for number in range(bench.rounds + 1):
        bench.progress(f"catching up, round {number}" if number else "catching up, to warm up")
        directory = f"{bench.directory}/catch-up"
        with Stage(directory, **CLUSTER, mirrors="1") as stage:
            measured.append(CatchUp(bench, stage).measure())
        remove_tree(bench.world.files, directory)
    whole = {"sent_bytes", "before_acked_per_s", "during_acked_per_s", "after_acked_per_s"}
    return {
        what: middle([each[what] for each in measured[1:]], 0 if what in whole else 3)
        for what in measured[0]
    }


def _seconds(took: Report) -> float:
    seconds: float = (took["at_us"] - took["since_us"]) / 1e6
    return seconds


def _acked_per_s(samples: list[Any], took: Report) -> float:
    acked = _acked(samples, took["at_us"]) - _acked(samples, took["since_us"])
    return acked * BATCH_MESSAGES / _seconds(took)


def _acked(samples: list[Any], at_us: int) -> float:
    """Batches that were acked at a time, between two samples in proportion."""
    for (t0, acked0), (t1, acked1) in pairwise(samples):
        if t0 <= at_us <= t1:
            share: float = acked0 + (acked1 - acked0) * (at_us - t0) / (t1 - t0)
            return share
    last: float = samples[-1][1] if at_us > samples[-1][0] else samples[0][1]
    return last
