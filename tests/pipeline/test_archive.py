"""An archive has what closed segments have, each message once, or says what is wrong."""

import json
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyarrow import parquet
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from busnode.node.cli_log import log as log_command
from busnode.pipeline.archive import Archived, Missed, archive
from busnode.pipeline.archive_files import ArchivedFile, read_verified, write_range
from busnode.pipeline.archive_runs import Archive
from busnode.pipeline.columns import ARCHIVED, arrow_schema
from busnode.pipeline.directories import Directories
from busnode.pipeline.options import source_options
from busnode.pipeline.record_rows import RecordRows, Span
from busnode.pipeline.restore import (
    Wanted,
    incarnations,
    planned,
    restore,
    restore_incarnation,
)
from busnode.pipeline.restored_log import append_rows
from busnode.wire.errors import BadOption, BusnodeError, DataDirectoryInUse, DataLost, StorageFailed
from busnode.wire.frames import Flags
from busnode.wire.ids import LogId, Pattern, Topic
from busnode.world.real_clock import RealClock
from busnode.world.real_files import RealFiles
from tests.segments.samples import UTC_US

from .written_logs import (
    LATER,
    ORDERS,
    OTHERS,
    Row,
    drop,
    flip,
    numbered,
    read_rows,
    segments,
    write_log,
)

pytestmark = pytest.mark.spark

ROOT = Path(__file__).resolve().parents[2]
DAY_US = 24 * 3600 * 1_000_000
SCOPED = LogId(ORDERS.broker_id, Topic("/scoped"))
LOCAL = Flags.PERSISTENT | Flags.LOCAL
REMOTE = Flags.PERSISTENT | Flags.REMOTE
MIRRORED = Flags.PERSISTENT | Flags.GLOBAL | Flags.MIRROR_REQUIRED
EVERYTHING = Wanted(Pattern("/*"))
STRANGE = LogId(ORDERS.broker_id, Topic("/" + "é" * 120 + "/=%/a"))


def age(directory: Path) -> None:
    """Let no segment be one that is written to."""
    for path in directory.rglob("*.seg"):
        os.utime(path, (1, 1))


def closed_log(directory: Path) -> Path:
    """Three logs: of several segments and days; with ids and headers; with a name that is long."""
    batches = [numbered(1 + 10 * place, 10) for place in range(8)]
    batches += [numbered(81 + 10 * place, 10, utc_us=UTC_US + DAY_US) for place in range(4)]
    batches += [numbered(121, 10)]  # a clock that went back
    write_log(directory, ORDERS, batches, 4)
    write_log(
        directory,
        OTHERS,
        [[Row(1, b"", UTC_US, "one", {"k": "v", "ü": ""}), Row(2, b"\0\xff"), Row(3, b"c", id="")]],
    )
    write_log(directory, STRANGE, [numbered(1, 3)])
    return directory


def run(spark: SparkSession, source: Path, to: Path, **options: Any) -> Archived:
    with_open = bool(options.pop("with_open", False))
    given = source_options({"path": str(source), **options}, stream=False)
    return archive(spark, given, str(to), RealClock(), with_open=with_open)


def messages(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows without where they were read, in one order; Spark keeps none among headers."""
    for row in rows:
        row.pop("holder", None)
        row["headers"] = sorted(row["headers"])
    return sorted(rows, key=lambda row: (row["broker_id"], row["topic"], row["msg_no"]))


def in_archive(spark: SparkSession, directory: Path) -> list[dict[str, Any]]:
    frame = spark.read.parquet(str(directory)).drop("run", "shelf", "date")
    rows = [row.asDict() for row in frame.drop("flags").collect()]
    for row in rows:
        row["payload"] = bytes(row["payload"])
        row["headers"] = list(row["headers"].items())
        row["utc"] = row["utc"].astimezone(UTC)
    return messages(rows)


def test_an_archive_has_every_message_once_and_a_second_run_adds_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    source, to = closed_log(tmp_path / "n1"), tmp_path / "archive"
    age(source)
    done = run(spark, source, to)
    assert (done.run, done.messages, done.logs, done.missed) == (1, 136, 3, ())
    expected = messages(read_rows(source))
    assert in_archive(spark, to) == expected
    days = {path.parent.name for path in to.rglob("*.parquet")}
    assert days == {"date=2023-11-14", "date=2023-11-15"}

    again = run(spark, source, to)
    assert (again.run, again.messages) == (None, 0)
    write_log(source, ORDERS, [numbered(131, 7)])
    age(source)
    more = run(spark, source, to)
    assert (more.run, more.messages, more.logs) == (2, 7, 1)
    assert in_archive(spark, to) == messages(read_rows(source))


def test_a_segment_that_is_written_to_waits_until_it_is_closed(
    spark: SparkSession, tmp_path: Path
) -> None:
    source, to = tmp_path / "n1", tmp_path / "archive"
    write_log(source, ORDERS, [numbered(1 + 10 * place, 10) for place in range(5)], 2)
    assert run(spark, source, to).messages == 40
    assert run(spark, source, to).messages == 0
    assert run(spark, source, to, with_open=True).messages == 10
    assert run(spark, source, to, with_open=True).run is None


def test_what_expired_before_it_was_archived_is_told(spark: SparkSession, tmp_path: Path) -> None:
    source, to = tmp_path / "n1", tmp_path / "archive"
    write_log(source, ORDERS, [numbered(1 + 10 * place, 10) for place in range(6)], 2)
    drop(segments(source)[0])
    done = run(spark, source, to)
    assert done.messages == 20
    assert done.missed == (Missed(ORDERS.broker_id.hex(), "/orders/new", 1, 20),)


def test_damage_ends_a_run_and_leaves_nothing_to_see(spark: SparkSession, tmp_path: Path) -> None:
    source, to = closed_log(tmp_path / "n1"), tmp_path / "archive"
    age(source)
    damaged = segments(source)[1]
    data = damaged.read_bytes()
    flip(damaged, 600)
    with pytest.raises((PySparkException, BusnodeError), match=damaged.name):
        run(spark, source, to)
    assert not list(to.glob("run=*"))
    assert run(spark, source, to, failOnDataLoss="false").messages == 126
    damaged.write_bytes(data)


def test_what_was_not_written_as_it_should_be_is_no_archive(
    spark: SparkSession, tmp_path: Path
) -> None:
    source, to = closed_log(tmp_path / "n1"), tmp_path / "archive"
    age(source)
    run(spark, source, to)
    (first, *_) = Archive(RealFiles(), str(to)).runs()
    file = max(first.files, key=lambda each: each.rows)
    path = Path(first.directory) / file.path
    assert read_verified(first.directory, file).num_rows == file.rows
    kept = path.read_bytes()
    other = next(each for each in first.files if each.rows != file.rows)
    path.write_bytes((Path(first.directory) / other.path).read_bytes())
    with pytest.raises(StorageFailed, match=path.name):
        read_verified(first.directory, file)
    with pytest.raises(PySparkException, match=path.name):
        restore(spark, str(to), EVERYTHING, str(tmp_path / "again"))
    assert not (tmp_path / "again").exists()
    path.write_bytes(kept)
    table = parquet.ParquetFile(path).read()
    payloads = pa.array([b"changed", *table.column("payload").to_pylist()[1:]], pa.binary())
    place = table.column_names.index("payload")
    parquet.write_table(table.set_column(place, "payload", payloads), path)
    with pytest.raises(StorageFailed, match=f"has {file.rows} rows .* had {file.rows} with"):
        read_verified(first.directory, file)
    path.write_bytes(kept[: len(kept) // 2])
    with pytest.raises(StorageFailed, match="cannot be read"):
        read_verified(first.directory, file)


def test_a_file_that_does_not_read_back_as_it_was_written_is_not_archived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that keeps something else than it was given."""
    source, write_table = closed_log(tmp_path / "n1"), parquet.write_table
    logs = Directories([str(source)], Pattern("/orders/new"))
    ((log_id, extent),) = logs.extents().items()
    (part, *_) = logs.ranges(log_id, Span(*extent), None)

    def write_less(table: Any, *rest: Any, **options: Any) -> None:
        write_table(table.slice(1), *rest, **options)

    def write() -> list[ArchivedFile]:
        return write_range(
            logs, part, arrow_schema(ARCHIVED), str(tmp_path / "made"), "0", tolerant=False
        )

    assert sum(each.rows for each in write()) == 40
    monkeypatch.setattr(parquet, "write_table", write_less)
    with pytest.raises(StorageFailed, match=r"has 39 rows .* the log had 40"):
        write()


def test_a_range_that_was_not_read_whole_is_not_archived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it is that reads less than there is, and says nothing."""
    logs = Directories([str(closed_log(tmp_path / "n1"))], Pattern("/orders/new"))
    ((log_id, extent),) = logs.extents().items()
    (part, *_) = logs.ranges(log_id, Span(*extent), None)
    monkeypatch.setattr(RecordRows, "finish", lambda _: iter(()))
    monkeypatch.setattr(RecordRows, "add", lambda _, stretch: iter(()))
    schema, made = arrow_schema(ARCHIVED), str(tmp_path / "made")
    with pytest.raises(DataLost, match=r"0 of the messages 1–40 .* were read, not 40"):
        write_range(logs, part, schema, made, "0", tolerant=False)
    assert write_range(logs, part, schema, made, "0", tolerant=True) == []


def test_days_that_interleave_in_a_segment_are_restored_in_the_order_of_numbers(
    spark: SparkSession, tmp_path: Path
) -> None:
    source, to = tmp_path / "n1", tmp_path / "archive"
    later = numbered(11, 10, utc_us=UTC_US + DAY_US)
    write_log(source, ORDERS, [numbered(1, 10), later, numbered(21, 10)])
    age(source)
    assert run(spark, source, to).files == 2  # the second has numbers amid those of the first
    (logs,) = incarnations(planned(str(to), EVERYTHING, str(tmp_path / "again")))
    (told,) = restore_incarnation(str(tmp_path / "made"), logs)
    assert (told.messages, told.first_no, told.last_no) == (30, 1, 30)
    assert messages(read_rows(tmp_path / "made")) == messages(read_rows(source))


def test_a_log_that_does_not_read_back_as_the_archive_has_it_is_not_restored(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, to = closed_log(tmp_path / "n1"), tmp_path / "archive"
    age(source)
    run(spark, source, to)
    logs = incarnations(planned(str(to), EVERYTHING, str(tmp_path / "again")))
    assert len(restore_incarnation(str(tmp_path / "good"), logs[0])) == 3
    monkeypatch.setattr(
        "busnode.pipeline.restore.append_rows",
        lambda log, log_id, table: append_rows(log, log_id, table.slice(1)),
    )
    with pytest.raises(StorageFailed, match="read back with hash"):
        restore_incarnation(str(tmp_path / "bad"), logs[0])


def test_an_archive_of_another_version_is_refused(tmp_path: Path) -> None:
    run_folder = tmp_path / "archive" / "run=00000001"
    run_folder.mkdir(parents=True)
    (run_folder / "_manifest.json").write_text('{"version": 1, "files": [], "ends": []}')
    with pytest.raises(StorageFailed, match=r"_manifest.json .* version 1, expected 2"):
        Archive(RealFiles(), str(tmp_path / "archive")).runs()


def test_two_do_not_archive_to_one_place(spark: SparkSession, tmp_path: Path) -> None:
    source, to = closed_log(tmp_path / "n1"), tmp_path / "archive"
    locked = Archive(RealFiles(), str(to)).locked()
    with locked, pytest.raises(DataDirectoryInUse, match="another process"):
        run(spark, source, to)


def test_a_run_that_was_killed_has_archived_nothing(spark: SparkSession, tmp_path: Path) -> None:
    source, to = closed_log(tmp_path / "n1"), tmp_path / "archive"
    age(source)
    command = [sys.executable, "-m", "tests.pipeline.stalled_archive", str(source), str(to)]
    killed = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
    try:
        give_up_at = monotonic() + 120
        while not list(to.rglob("*.parquet")):  # in the middle: some are written, none is visible
            assert killed.poll() is None
            assert monotonic() < give_up_at
            sleep(0.01)
    finally:
        os.killpg(killed.pid, signal.SIGKILL)
        killed.wait()
    assert list(to.rglob("*.parquet"))
    assert not list(to.glob("run=*"))
    with pytest.raises(PySparkException):
        spark.read.parquet(str(to))  # there is nothing that it would take for rows
    assert run(spark, source, to).messages == 136
    assert in_archive(spark, to) == messages(read_rows(source))


def test_what_is_restored_reads_as_the_logs_did(spark: SparkSession, tmp_path: Path) -> None:
    source, to = closed_log(tmp_path / "n1"), tmp_path / "archive"
    write_log(source, LATER, [numbered(1, 30)])
    batches = [[Row(1, b"here", flags=LOCAL)], [Row(2, b"there", flags=REMOTE)]]
    batches += [[Row(3, b"there", flags=REMOTE)], [Row(4, b"safe", flags=MIRRORED)]]
    write_log(source, SCOPED, batches)
    age(source)
    run(spark, source, to)
    write_log(source, ORDERS, [numbered(131, 7)])
    age(source)
    run(spark, source, to)
    restored = tmp_path / "restored"
    told = restore(spark, str(to), EVERYTHING, str(restored))
    assert sum(each.messages for each in told) == 177
    assert messages(read_rows(restored)) == messages(read_rows(source))
    table = spark.read.format("busnode").option("path", str(restored)).load()
    assert table.count() == 177
    assert dumped(restored) == dumped(source)
    assert {flags for _, flags in flags_of(spark, source)} == {3, 5, 7, 15}
    assert flags_of(spark, restored) == flags_of(spark, source)
    with pytest.raises(BadOption, match="is there already"):
        restore(spark, str(to), EVERYTHING, str(restored))


def flags_of(spark: SparkSession, directory: Path) -> list[tuple[int, int]]:
    """Which messages are meant for whom."""
    table = spark.read.format("busnode").option("path", str(directory))
    return sorted(map(tuple, table.schema("msg_no bigint, flags bigint").load().collect()))


def dumped(directory: Path) -> list[str]:
    """What `busnode log dump` prints of a data directory, all logs in one order."""
    result = CliRunner().invoke(log_command, ["dump", str(directory), "--json"])
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert all(json.loads(line)["msg_no"] for line in lines)
    return sorted(lines)


def test_days_and_topics_choose_what_is_restored(spark: SparkSession, tmp_path: Path) -> None:
    source, to = closed_log(tmp_path / "n1"), tmp_path / "archive"
    age(source)
    run(spark, source, to)
    day = datetime.fromtimestamp((UTC_US + DAY_US) / 1e6, UTC).date()
    told = restore(spark, str(to), Wanted(Pattern("/orders/*"), since=day), str(tmp_path / "late"))
    assert [(each.topic, each.first_no, each.last_no) for each in told] == [
        ("/orders/new", 81, 120)
    ]
    assert [row["msg_no"] for row in read_rows(tmp_path / "late")] == [*range(81, 121)]
    until = day - timedelta(days=1)  # that day is in it, and what a clock that went back put there
    early = planned(str(to), Wanted(Pattern("/orders/*"), until=until), str(tmp_path / "early"))
    assert [span for span, _ in early.values()] == [(1, 130)]
    with pytest.raises(BadOption, match="nothing of /none"):
        restore(spark, str(to), Wanted(Pattern("/none")), str(tmp_path / "none"))
    with pytest.raises(BadOption, match="is no archive"):
        restore(spark, str(tmp_path / "nowhere"), EVERYTHING, str(tmp_path / "none"))
