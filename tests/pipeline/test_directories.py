"""Logs in data directories: every message once, from whichever copy has it, or an error."""

import shutil
from pathlib import Path

import pytest

from busnode.pipeline import directories, segment_pieces
from busnode.pipeline.directories import Directories
from busnode.pipeline.record_rows import RecordRows, Span
from busnode.segments.bucket import lock_directory
from busnode.wire.errors import DataLost, NotADataDirectory
from busnode.wire.ids import Pattern
from busnode.world.real_files import RealFiles

from .written_logs import (
    LATER,
    ORDERS,
    OTHERS,
    SCHEMA,
    drop,
    flip,
    numbered,
    numbers,
    read_rows,
    segments,
    write_log,
)

BATCHES = [numbered(1 + 10 * place, 10) for place in range(12)]
ALL = [*range(1, 121)]


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    """One log of 120 messages in three segments."""
    directory = tmp_path / "n1"
    assert len(write_log(directory, ORDERS, BATCHES, segment_batches=4)) == 3
    return directory


@pytest.fixture
def mirror(origin: Path, tmp_path: Path) -> Path:
    return shutil.copytree(origin, tmp_path / "n2")


def test_all_logs_are_read(origin: Path) -> None:
    write_log(origin, OTHERS, [numbered(1, 5)])
    write_log(origin, LATER, [numbered(1, 7)])
    rows = read_rows(origin)
    assert len(rows) == len({(row["broker_id"], row["topic"], row["msg_no"]) for row in rows})
    assert len(rows) == 120 + 5 + 7
    assert {row["holder"] for row in rows} == {"n1"}


def test_a_pattern_chooses_logs(origin: Path) -> None:
    write_log(origin, OTHERS, [numbered(1, 5)])
    assert {row["topic"] for row in read_rows(origin, pattern="/others")} == {"/others"}
    assert read_rows(origin, pattern="/nothing/*") == []


def test_a_node_that_runs_is_not_disturbed(origin: Path) -> None:
    lock = lock_directory(RealFiles(), str(origin))
    before = {path: path.stat().st_mtime_ns for path in origin.rglob("*")}
    assert numbers(read_rows(origin)) == ALL
    assert {path: path.stat().st_mtime_ns for path in origin.rglob("*")} == before
    lock.close()


def test_a_copy_adds_no_message(origin: Path, mirror: Path) -> None:
    assert numbers(read_rows(origin, mirror)) == ALL


def test_every_copy_is_read_when_asked_for(origin: Path, mirror: Path) -> None:
    drop(segments(mirror)[0])
    rows = read_rows(origin, mirror, every_copy=True)
    assert [row["msg_no"] for row in rows if row["holder"] == "n1"] == ALL
    assert [row["msg_no"] for row in rows if row["holder"] == "n2"] == ALL[40:]


def test_what_one_copy_lacks_is_taken_from_another(origin: Path, mirror: Path) -> None:
    drop(segments(origin)[1])
    drop(segments(mirror)[0])
    rows = read_rows(origin, mirror)
    assert numbers(rows) == ALL
    assert {row["msg_no"] for row in rows if row["holder"] == "n2"} == {*range(41, 81)}


def test_what_nobody_has_is_an_error_that_names_it(origin: Path, mirror: Path) -> None:
    for directory in (origin, mirror):
        drop(segments(directory)[1])
    with pytest.raises(DataLost, match=r"messages 41–80 of /orders/new .*n1.*n2"):
        read_rows(origin, mirror)
    assert numbers(read_rows(origin, mirror, tolerant=True)) == [*range(1, 41), *range(81, 121)]


def test_what_has_expired_is_not_missed_unless_it_was_asked_for(origin: Path) -> None:
    drop(segments(origin)[0])
    assert numbers(read_rows(origin)) == [*range(41, 121)]
    with pytest.raises(DataLost, match=r"messages 11–40 .*retention"):
        read_rows(origin, span=Span(11, 120))


@pytest.mark.parametrize("at", [600, 1500, -10])
def test_a_flipped_byte_is_an_error_that_names_the_file(origin: Path, at: int) -> None:
    damaged = segments(origin)[1]
    flip(damaged, at)
    with pytest.raises(DataLost, match=damaged.name):
        read_rows(origin)
    left = numbers(read_rows(origin, tolerant=True))
    assert len(left) == 110
    assert left == sorted(set(left))


def test_a_flipped_byte_is_read_from_another_copy(origin: Path, mirror: Path) -> None:
    flip(segments(origin)[1], 600)
    flip(segments(mirror)[1], 1500)
    rows = read_rows(origin, mirror)
    assert numbers(rows) == ALL
    assert {row["holder"] for row in rows} == {"n1", "n2"}


@pytest.mark.parametrize("index", ["missing", "empty", "flipped"])
def test_an_index_is_never_needed(origin: Path, index: str) -> None:
    for segment in segments(origin):
        path = segment.with_suffix(".idx")
        if index == "missing":
            path.unlink()
        elif index == "empty":
            path.write_bytes(b"")
        else:
            flip(path, 20)
    assert numbers(read_rows(origin)) == ALL


@pytest.mark.parametrize("cut", [1, 30, 200])
def test_a_torn_tail_is_where_a_log_ends(origin: Path, cut: int) -> None:
    last = segments(origin)[-1]
    last.with_suffix(".idx").unlink()  # else it knows of the end, and what is cut off is damage
    data = last.read_bytes()
    last.write_bytes(data[:-cut])
    assert numbers(read_rows(origin)) == ALL[:110]
    last.write_bytes(data)
    assert numbers(read_rows(origin)) == ALL


def test_a_cut_off_end_that_had_been_synced_is_an_error(origin: Path) -> None:
    last = segments(origin)[-1]
    last.write_bytes(last.read_bytes()[:-30])
    with pytest.raises(DataLost, match=r"messages 111–120 .*the file is cut"):
        read_rows(origin)


def test_a_segment_that_is_dropped_between_planning_and_reading_is_an_error(origin: Path) -> None:
    logs = Directories([str(origin)], Pattern("/*"))
    logs.extents()
    (first, *_) = logs.ranges(ORDERS, Span(1, 120), None)
    path = segments(origin)[0]
    drop(path)
    with pytest.raises(DataLost, match=f"{path.name} is gone"):
        list(logs.read(first))


def test_a_segment_that_was_replaced_meanwhile_is_searched(origin: Path, tmp_path: Path) -> None:
    logs = Directories([str(origin)], Pattern("/*"))
    logs.extents()
    (second, _) = logs.ranges(ORDERS, Span(47, 120), None)
    (other,) = write_log(tmp_path / "n9", ORDERS, [numbered(41 + 5 * part, 5) for part in range(8)])
    shutil.copy(other, segments(origin)[1])
    shutil.copy(other.with_suffix(".idx"), segments(origin)[1].with_suffix(".idx"))
    rows = RecordRows(SCHEMA, ORDERS, second.span)
    batches = [batch for each in logs.read(second) for batch in rows.add(each)]
    found = [row for batch in (*batches, *rows.finish()) for row in batch.to_pylist()]
    assert numbers(found) == [*range(47, 81)]


def test_files_that_do_not_tell_their_topic_are_an_error(tmp_path: Path) -> None:
    (segment,) = write_log(tmp_path / "n1", ORDERS, [numbered(1, 3)])
    segment.write_bytes(bytes(1000))
    with pytest.raises(DataLost, match=segment.name):
        read_rows(tmp_path / "n1")


def test_a_folder_that_is_no_data_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotADataDirectory, match="nothing"):
        Directories([str(tmp_path / "nothing")], Pattern("/*"))


def test_a_large_segment_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_pieces, "PART_BYTES", 1024 * 1024)
    batches = [numbered(1 + 100 * place, 100, size=2000) for place in range(20)]
    write_log(tmp_path / "n1", ORDERS, batches)
    logs = Directories([str(tmp_path / "n1")], Pattern("/*"))
    logs.extents()
    parts = logs.ranges(ORDERS, Span(1, 2000), None)
    assert len(parts) == 4
    assert [part.span.first_no % 100 for part in parts] == [1] * 4  # where batches begin
    assert numbers(read_rows(tmp_path / "n1")) == [*range(1, 2001)]


def test_a_stream_s_parts_depend_on_its_numbers_alone(origin: Path, mirror: Path) -> None:
    logs = Directories([str(origin), str(mirror)], Pattern("/*"))
    before = [part.span for part in logs.ranges(ORDERS, Span(3, 119), 50)]
    drop(segments(origin)[0])
    logs.extents()
    assert [part.span for part in logs.ranges(ORDERS, Span(3, 119), 50)] == before
    assert before == [Span(3, 52), Span(53, 102), Span(103, 119)]
    drop(segments(mirror)[0])
    logs.extents()
    with pytest.raises(DataLost, match="messages 3–40"):
        logs.ranges(ORDERS, Span(3, 119), 50)


def test_a_moment_is_found_by_the_indexes(origin: Path) -> None:
    logs = Directories([str(origin)], Pattern("/*"))
    since_us = BATCHES[6][0].utc_us  # in the second segment
    assert logs.at_time(since_us) == {ORDERS: 40}
    assert numbers(read_rows(origin, span=Span(41, 120, since_us))) == [*range(61, 121)]


def test_nothing_is_read_again_that_has_not_changed(
    origin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = Directories([str(origin)], Pattern("/*"))
    before = logs.extents()
    monkeypatch.delattr(directories, "recover_segment")
    assert logs.extents() == before
    with segments(origin)[-1].open("ab") as file:
        file.write(b"torn")
    with pytest.raises(NameError):
        logs.extents()
