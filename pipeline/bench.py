"""How fast Spark reads and archives logs, in turns with a Parquet file of the same rows."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from busnode.pipeline.archive import archive
from busnode.pipeline.options import source_options
from busnode.pipeline.session import session
from busnode.segments.file_store import FileStore
from busnode.segments.store import StoreOptions
from busnode.wire.batches import Columns, encode_columns
from busnode.wire.frames import Flags, broker_seed, encode_batch_frame
from busnode.wire.ids import BrokerId, LogId, Topic
from busnode.wire.runs import stamp_run, verify_runs
from busnode.world.files import remove_tree
from busnode.world.world import World

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PAYLOAD_BYTES: Final = 128
BATCH_MESSAGES: Final = 1365
"""What a client packs into one batch of such messages."""

LOG_ID: Final = LogId(BrokerId(bytes(range(16))), Topic("/bench/spark"))
SEED: Final = 1

THREE_COLUMNS: Final = "topic string, msg_no bigint, utc timestamp"

SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}

Report = dict[str, Any]


def bench_spark(
    world: World, directory: str, rows: int, rounds: int, progress: Callable[[str], None]
) -> Report:
    """Rows a second, the best of all rounds, with a session of its own."""
    progress("starting Spark")
    spark = session("busnode bench", "local[*]", SETTINGS)
    try:
        return measure(spark, world, directory, rows, rounds, progress)
    finally:
        spark.stop()


def measure(
    spark: "SparkSession",
    world: World,
    directory: str,
    rows: int,
    rounds: int,
    progress: Callable[[str], None],
) -> Report:
    """A full scan of a log, one of three columns, and one of the same rows as Parquet; an archive
    of the log, read back and verified, and a copy of that Parquet."""
    progress("writing the log, and the same rows as Parquet")
    data, parquet, copy = f"{directory}/n1", f"{directory}/parquet", f"{directory}/copy"
    write_log(world, data, rows)
    messages = spark.read.format("busnode").option("path", data)
    messages.load().write.parquet(parquet)
    three = spark.read.format("busnode").option("path", data).schema(THREE_COLUMNS)
    options = source_options({"path": data}, stream=False)

    def scan(load: "Callable[[], DataFrame]") -> Callable[[], int]:
        def run() -> int:
            load().write.format("noop").mode("overwrite").save()
            return rows

        return run

    def archived() -> int:
        return archive(spark, options, copy, world.clock, with_open=True).messages

    def copied() -> int:
        spark.read.parquet(parquet).write.parquet(copy)
        return rows

    works: dict[str, Callable[[], int]] = {
        "full_scan": scan(messages.load),
        "parquet_scan": scan(lambda: spark.read.parquet(parquet)),
        "three_columns": scan(three.load),
        "archive": archived,
        "parquet_copy": copied,
    }
    for table in (messages.load(), three.load(), spark.read.parquet(parquet)):
        counted = table.count()
        assert counted == rows, f"{counted} of {rows} rows"
    best_s = dict.fromkeys(works, float("inf"))
    for number in range(1, rounds + 1):
        progress(f"round {number} of {rounds}")
        for name, work in works.items():
            began = world.clock.monotonic()
            done = work()
            best_s[name] = min(best_s[name], world.clock.monotonic() - began)
            assert done == rows, f"{name}: {done} of {rows} rows"
            if world.files.exists(copy):
                remove_tree(world.files, copy)
    rates = {f"{name}_rows_per_s": round(rows / seconds) for name, seconds in best_s.items()}
    return {
        "rows": rows,
        **rates,
        "full_scan_to_parquet_scan": round(best_s["parquet_scan"] / best_s["full_scan"], 2),
        "three_columns_to_parquet_scan": round(best_s["parquet_scan"] / best_s["three_columns"], 2),
        "archive_to_parquet_copy": round(best_s["parquet_copy"] / best_s["archive"], 2),
    }


def write_log(world: World, directory: str, rows: int) -> None:
    """A log as a node would have written it, with payloads that nothing can compress."""
    store = FileStore(world.files, world.clock, directory, StoreOptions())
    log = store.create(LOG_ID)
    numbers = np.random.default_rng(SEED)
    seed = broker_seed(LOG_ID.broker_id)
    for first_no in range(1, rows + 1, BATCH_MESSAGES):
        count = min(BATCH_MESSAGES, rows - first_no + 1)
        data = numbers.bytes(count * PAYLOAD_BYTES)
        payloads = [data[at : at + PAYLOAD_BYTES] for at in range(0, len(data), PAYLOAD_BYTES)]
        frame = bytearray(
            encode_batch_frame(
                topic=LOG_ID.topic.encode(),
                body=encode_columns(Columns(payloads)),
                count=count,
                flags=Flags.PERSISTENT | Flags.GLOBAL,
                utc_us=world.clock.utc_us(),
                producer_id=SEED,
                producer_seq=first_no,
            )
        )
        with memoryview(frame) as view:
            (run,), _ = verify_runs(frame, view, 0, len(frame))
            stamp_run(view, run, LOG_ID.broker_id, seed, first_no)
        log.append(frame, count, run.utc_us_max)
    store.close()
