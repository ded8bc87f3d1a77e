"""How fast a node that joins catches up while publishing goes on, in turns with a bare copy."""

from itertools import pairwise
from typing import Any, Final

from busnode.node.bench_bus import BARE_BYTES, scratch_file
from busnode.node.bench_segments import PAYLOAD_BYTES
from busnode.node.bench_stage import CLUSTER, Bench, Player, Report, Stage, middle
from busnode.node.bench_window import BATCH_MESSAGES
from busnode.wire.limits import MIB
from busnode.world.files import remove_tree

TOPIC: Final = "/bench/mirrored"
CATCH_UP_BYTES: Final = 2048 * MIB
BEFORE_BATCHES: Final = 10_000


class CatchUp:
    """One log, a publisher that goes on, and rounds in which a new node joins.

    What was copied in one turn is removed right before the next begins, so that each finds memory
    and blocks of the disk that were just in use. On a machine whose host takes free memory back,
    to write a gigabyte into memory that was not cost up to five times as much.
    """

    def __init__(self, bench: Bench, stage: Stage) -> None:
        self._bench = bench
        self._stage = stage
        self._publisher = stage.player("windowed", topic=TOPIC)
        self._watcher = stage.player("mirror watcher")
        self._bytes = max(1, round(CATCH_UP_BYTES * bench.scale))
        path = scratch_file(bench, min(self._bytes, BARE_BYTES))
        self._sender = stage.player("sender", path=path)
        self._copier = stage.player("copier")
        self._copied: str | None = None
        self._measured: dict[str, list[float]] = {}
        bench.progress("filling a log")
        batches = max(1, self._bytes // (BATCH_MESSAGES * PAYLOAD_BYTES))
        self._publisher.ask(do="publish", batches=batches)

    def round(self, number: int) -> None:
        batches = max(1, round(BEFORE_BATCHES * self._bench.scale))
        seconds = self._publisher.ask(do="publish", batches=batches)["seconds"]
        before = batches * BATCH_MESSAGES / seconds
        self._publisher.ask(do="begin")
        self._bench.progress(f"bare copy, round {number}")
        bare, bare_used_s = self._copy_bare(number)
        self._bench.progress(f"catching up, round {number}")
        caught, used_s = self._catch_up(number)
        samples = self._publisher.ask(do="end")["samples"]
        if not number:
            return  # that was to warm up
        bare_gb, gb = self._bytes / 1e9, caught["sent_bytes"] / 1e9
        self._note("sent_bytes", caught["sent_bytes"])
        self._note("gb_per_s", gb / _seconds(caught))
        self._note("mirror_processor_s_per_gb", used_s / gb)
        self._note("before_acked_per_s", before)
        during = _acked_per_s(samples, caught)
        self._note("during_acked_per_s", during)
        self._note("during_of_before", during / before)
        self._note("bare_gb_per_s", bare_gb / _seconds(bare))
        self._note("bare_processor_s_per_gb", bare_used_s / bare_gb)
        self._note("during_bare_of_before", _acked_per_s(samples, bare) / before)
        self._note("of_bare", gb / _seconds(caught) / (bare_gb / _seconds(bare)))

    def _note(self, what: str, value: float) -> None:
        self._measured.setdefault(what, []).append(value)

    def _copy_bare(self, number: int) -> tuple[Report, float]:
        self._remove()
        self._copied = f"{self._bench.directory}/bare copy {number}"
        used_s = self._copier.processor_s
        address = self._sender.ready["address"]
        took = self._copier.ask(address=address, path=self._copied, bytes=self._bytes)
        return took, self._copier.processor_s - used_s

    def _catch_up(self, number: int) -> tuple[Report, float]:
        self._remove()
        self._watcher.tell()
        mirror = self._join(f"mirror {number}")
        used_s = mirror.processor_s
        took = self._watcher.hear()
        used_s = mirror.processor_s - used_s
        self._stage.dismiss(mirror)
        return took, used_s

    def _join(self, name: str) -> Player:
        self._copied = self._stage.directory_of(name)
        seed = self._stage.node.ready["peer"]
        return self._stage.add_node(name, **CLUSTER, mirrors="0", seed=seed)

    def _remove(self) -> None:
        """What the turn before has copied."""
        if self._copied is not None:
            remove_tree(self._bench.world.files, self._copied)
            self._copied = None

    def report(self) -> Report:
        whole = {"sent_bytes", "before_acked_per_s", "during_acked_per_s"}
        return {
            what: middle(values, 0 if what in whole else 3)
            for what, values in self._measured.items()
        }


def bench_catch_up(bench: Bench) -> Report:
    with Stage(f"{bench.directory}/catch-up", **CLUSTER, mirrors="1") as stage:
        catch_up = CatchUp(bench, stage)
        for number in range(bench.rounds + 1):
            catch_up.round(number)
        return catch_up.report()


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
