"""What the ground costs: verifying and stamping, appending with group commit, scanning, recovery.

Everything is measured against what the machine can do at most, in the same run and taking turns,
because machines differ and are noisy: a ratio tells more than a rate.
"""

from collections.abc import Callable
from functools import partial
from mmap import mmap
from statistics import median
from typing import Any, Final

import trio
from xxhash import xxh3_64_intdigest

from busnode.segments.file_store import FileStore
from busnode.segments.log import FileLog
from busnode.segments.records import LogKey, Scanned, scan
from busnode.segments.segment import index_path
from busnode.segments.store import StoreOptions
from busnode.wire.batches import Columns, decode_columns, encode_columns
from busnode.wire.frames import Flags, broker_seed, encode_batch_frame
from busnode.wire.ids import LogId, Topic
from busnode.wire.runs import Run, stamp_run, verify_runs
from busnode.world.files import AppendFile
from busnode.world.world import World

MIB: Final = 1024 * 1024
PAYLOAD_BYTES: Final = 128
IN_FLIGHT: Final = 32
BATCH_MESSAGES: Final = 100
READ_BYTES: Final = MIB
WARM_UPS: Final = 5
Report = dict[str, Any]
Progress = Callable[[str], None]


def batch(world: World, topic: Topic, messages: int, producer_seq: int = 1) -> bytes:
    """A persistent batch as a producer sends it, with payloads that nothing can compress."""
    payloads = [
        b"".join(world.entropy.u64().to_bytes(8, "little") for _ in range(PAYLOAD_BYTES // 8))
        for _ in range(messages)
    ]
    return encode_batch_frame(
        topic=topic.encode(),
        body=encode_columns(Columns(payloads)),
        count=messages,
        flags=Flags.PERSISTENT | Flags.GLOBAL,
        utc_us=world.clock.utc_us(),
        producer_id=1,
        producer_seq=producer_seq,
    )


class Stopwatch:
    def __init__(self, world: World) -> None:
        self._clock = world.clock

    def time(self, work: Callable[[], object]) -> float:
        """Seconds that `work` takes."""
        start = self._clock.monotonic()
        work()
        return self._clock.monotonic() - start


class Incoming:
    """Batches as they lie in a connection's buffer. A stamp leaves them verifiable, so the same
    bytes can come in again and again."""

    def __init__(self, data: bytes) -> None:
        self.buffer = bytearray(data)
        self.view = memoryview(self.buffer)

    def verified(self) -> list[Run]:
        return verify_runs(self.buffer, self.view, 0, len(self.buffer))[0]


def bench_stamp(world: World, rounds: int) -> Report:
    """µs to parse, verify and stamp a batch, by the number of its messages."""
    watch = Stopwatch(world)
    broker_id = world.entropy.broker_id()
    seed = broker_seed(broker_id)
    report: Report = {}
    for messages in (1, 10, 100, 1000):
        frame = batch(world, Topic("/plant/north/temp"), messages)
        # As many as one read brings: what is hashed has just been written to the cache.
        copies = max(1, min(1000, 256 * 1024 // len(frame)))
        incoming = Incoming(frame * copies)

        def work(incoming: Incoming = incoming) -> None:
            for run in incoming.verified():
                stamp_run(incoming.view, run, broker_id, seed, 1)

        for _ in range(WARM_UPS):
            work()
        times = [watch.time(work) / copies * 1e6 for _ in range(rounds * 20)]
        report[str(messages)] = round(median(times), 2)
    return report


def bench_decode(world: World, rounds: int) -> Report:
    """Messages/s that a consumer decodes."""
    watch = Stopwatch(world)
    body = encode_columns(Columns([bytes(PAYLOAD_BYTES)] * BATCH_MESSAGES))
    repeats = 2000

    def work() -> None:
        for _ in range(repeats):
            decode_columns(body, BATCH_MESSAGES)

    times = [watch.time(work) for _ in range(rounds)]
    return {"messages_per_s": round(repeats * BATCH_MESSAGES / median(times))}


class Appending:
    """A store in a scratch folder, with 32 batches in flight spread over some logs."""

    def __init__(self, world: World, directory: str, logs: int) -> None:
        self._world = world
        self.store = FileStore(world.files, world.clock, directory)
        broker_id = world.entropy.broker_id()
        self.store.begin(broker_id)
        self._seed = broker_seed(broker_id)
        self._broker_id = broker_id
        self._logs: list[tuple[FileLog, Incoming]] = []
        for number in range(logs):
            topic = Topic(f"/bench/{number:03d}")
            batches = IN_FLIGHT if logs == 1 else 1
            frames = b"".join(batch(world, topic, BATCH_MESSAGES) for _ in range(batches))
            self._logs.append((self.store.create(LogId(broker_id, topic)), Incoming(frames)))

    async def run(self, groups: int) -> float:
        """Messages/s acked after fdatasync. Each group is all that is in flight: with acks that
        come together, a window is filled anew at once."""
        clock = self._world.clock
        start = clock.monotonic()
        place = 0
        for _ in range(groups):
            for _ in range(1 if len(self._logs) == 1 else IN_FLIGHT):
                log, incoming = self._logs[place]
                place = (place + 1) % len(self._logs)
                for run in incoming.verified():
                    stamp_run(incoming.view, run, self._broker_id, self._seed, log.next_no)
                    log.append(incoming.view[run.start : run.end], run.count, run.utc_us_max)
            await self.store.commit()
        took_s = clock.monotonic() - start
        assert all(log.committed_no == log.next_no - 1 for log, _ in self._logs)
        return groups * IN_FLIGHT * BATCH_MESSAGES / took_s


def bare_append(world: World, file: AppendFile, data: bytes, groups: int) -> float:
    """Messages/s of the disk itself: the same bytes written and synced by nobody but this loop."""

    def work() -> None:
        for _ in range(groups):
            file.append(data)
            file.sync()

    return groups * IN_FLIGHT * BATCH_MESSAGES / Stopwatch(world).time(work)


def bench_append(world: World, directory: str, rounds: int) -> Report:
    """Group commit for one log and for a hundred, against the bare disk, taking turns."""
    groups = 60
    data = batch(world, Topic("/bench/000"), BATCH_MESSAGES) * IN_FLIGHT
    one = Appending(world, f"{directory}/one", 1)
    hundred = Appending(world, f"{directory}/hundred", 100)
    bare = world.files.append_to(f"{directory}/bare")
    rates: dict[str, list[float]] = {"bare": [], "one_log": [], "hundred_logs": []}
    for _ in range(rounds):
        rates["bare"].append(bare_append(world, bare, data, groups))
        rates["one_log"].append(trio.run(one.run, groups))
        rates["hundred_logs"].append(trio.run(hundred.run, groups))
    bare.close()
    one.store.close()
    hundred.store.close()
    report: Report = {f"{name}_messages_per_s": round(median(rates[name])) for name in rates}
    ratios = [ours / base for ours, base in zip(rates["one_log"], rates["bare"], strict=True)]
    report["one_log_of_bare"] = round(median(ratios), 3)
    ratios = [ours / base for ours, base in zip(rates["hundred_logs"], rates["bare"], strict=True)]
    report["hundred_logs_of_bare"] = round(median(ratios), 3)
    return report


class Written:
    """A store of a given size with one log, closed cleanly."""

    def __init__(self, world: World, directory: str, size_bytes: int) -> None:
        self._world = world
        self.directory = directory
        store = FileStore(world.files, world.clock, directory, StoreOptions())
        self.broker_id = world.entropy.broker_id()
        store.begin(self.broker_id)
        self.log_id = LogId(self.broker_id, Topic("/bench/000"))
        log = store.create(self.log_id)
        seed = broker_seed(self.broker_id)
        incoming = Incoming(batch(world, self.log_id.topic, BATCH_MESSAGES) * IN_FLIGHT)
        while log.size_bytes < size_bytes:
            for run in incoming.verified():
                stamp_run(incoming.view, run, self.broker_id, seed, log.next_no)
                log.append(incoming.view, run.count, run.utc_us_max)
        trio.run(store.commit)
        self.size_bytes = log.size_bytes
        self.paths = [segment.path for segment in log.segments]
        store.close()

    def open_and_close(self) -> float:
        """Seconds to recover."""
        start = self._world.clock.monotonic()
        store = FileStore(self._world.files, self._world.clock, self.directory)
        took_s = self._world.clock.monotonic() - start
        assert not store.flaws()
        store.close()
        return took_s

    def remove_indexes(self) -> None:
        for path in self.paths:
            self._world.files.remove(index_path(path))


def bench_scan(world: World, rounds: int) -> Report:
    """GB/s of checking records in memory, against one hash over the same bytes."""
    watch = Stopwatch(world)
    log_id = LogId(world.entropy.broker_id(), Topic("/bench/000"))
    report: Report = {}
    for messages in (100, 1000):
        frame = batch(world, log_id.topic, messages)
        incoming = Incoming(frame * (64 * MIB // len(frame)))
        run = incoming.verified()[0]
        stamp_run(incoming.view, run, log_id.broker_id, broker_seed(log_id.broker_id), 1)
        size = len(incoming.buffer)
        key = LogKey.of(log_id)

        view = incoming.view

        def work(view: memoryview = view, key: LogKey = key, size: int = size) -> None:
            assert scan(view, size, size, key, Scanned(0, 1, 0)).at == size

        ours: list[float] = []
        bare: list[float] = []
        for _ in range(rounds * 3):
            bare.append(size / watch.time(partial(xxh3_64_intdigest, view)) / 1e9)
            ours.append(size / watch.time(work) / 1e9)
        report[f"batches_of_{messages}"] = {
            "scan_gb_per_s": round(median(ours), 2),
            "bare_xxh3_gb_per_s": round(median(bare), 2),
            "of_bare": round(median(o / b for o, b in zip(ours, bare, strict=True)), 3),
        }
    return report


def bench_recovery(world: World, directory: str, size_bytes: int, rounds: int) -> Report:
    """Seconds per GiB to open a store with its indexes and without, against a bare read."""
    written = Written(world, f"{directory}/recovery", size_bytes)
    gib = written.size_bytes / 2**30
    # At the beginning of a page, where the first large bytearrays of a process do not lie: with one
    # of those the same reads were four times slower. Bare means what the machine can do at most.
    buffer = memoryview(mmap(-1, READ_BYTES))

    def read_and_hash() -> None:
        for path in written.paths:
            file = world.files.open(path)
            at = 0
            while count := file.read_into(buffer, at):
                xxh3_64_intdigest(buffer[:count])
                at += count
            file.close()

    read_and_hash()  # so that all that follows finds the same pages in memory
    with_index: list[float] = []
    without: list[float] = []
    bare: list[float] = []
    for _ in range(rounds):
        with_index.append(written.open_and_close())
        bare.append(Stopwatch(world).time(read_and_hash))
        written.remove_indexes()
        without.append(written.open_and_close())
    return {
        "store_gib": round(gib, 3),
        "with_indexes_s_per_gib": round(median(with_index) / gib, 4),
        "without_indexes_s_per_gib": round(median(without) / gib, 3),
        "without_indexes_gb_per_s": round(written.size_bytes / median(without) / 1e9, 2),
        "bare_read_and_xxh3_gb_per_s": round(written.size_bytes / median(bare) / 1e9, 2),
        "without_indexes_of_bare": round(
            median(b / w for b, w in zip(bare, without, strict=True)), 3
        ),
    }


def bench_segments(
    world: World, directory: str, rounds: int, recovery_mib: int, progress: Progress
) -> Report:
    """All of it, as one report. `directory` is a scratch folder on the disk to be measured."""
    report: Report = {"workload": "segments", "payload_bytes": PAYLOAD_BYTES, "rounds": rounds}
    progress("verify and stamp")
    report["verify_and_stamp_us_per_batch"] = bench_stamp(world, rounds)
    progress("decode")
    report["decode"] = bench_decode(world, rounds)
    progress("scan")
    report["scan"] = bench_scan(world, rounds)
    progress("append with group commit")
    report["append"] = bench_append(world, directory, rounds)
    progress(f"recovery of {recovery_mib} MiB")
    report["recovery"] = bench_recovery(world, directory, recovery_mib * MIB, rounds)
    return report
