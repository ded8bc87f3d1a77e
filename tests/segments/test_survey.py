"""The walk through a segment: what is good, what is damaged, where it ends."""

import random
from itertools import pairwise

import pytest

from busnode.segments import survey as survey_module
from busnode.segments.index import Point
from busnode.segments.records import LogKey, Scanned
from busnode.segments.survey import Survey, Window, survey, topic_of_records
from busnode.testing.sim import SimDisk
from busnode.wire.ids import Topic
from busnode.world.files import ReadFile

from .samples import BROKER, OTHER_BROKER, TEMPERATURE, numbered, record, replaced

KEY = LogKey.of(TEMPERATURE)
NOTHING_DURABLE = Point(1, 0, 0, 0)


def file_of(data: bytes) -> ReadFile:
    disk = SimDisk()
    disk.append_to("/x.seg").append(data)
    return disk.open("/x.seg")


def surveyed(data: bytes, start: int = 0, number: int = 1, durable: Point | None = None) -> Survey:
    return survey(
        file_of(data), len(data), KEY, Scanned(start, number, 0), durable or NOTHING_DURABLE
    )


def records(count: int, size_bytes: int = 20) -> list[bytes]:
    return [
        record(TEMPERATURE, n, numbered(n, 1, size_bytes), utc_us=n) for n in range(1, count + 1)
    ]


def test_good_records_are_walked_to_the_end() -> None:
    data = b"".join(records(10))
    found = surveyed(data)
    assert (found.end_bytes, found.next_no, found.utc_us_max) == (len(data), 11, 10)
    assert (found.holes, found.torn) == ([], None)
    assert [point[:3] for point in found.points] == [(11, len(data), 10)]


def test_a_walk_may_begin_at_any_boundary() -> None:
    made = records(10)
    data = b"".join(made)
    for place in range(11):
        start = sum(map(len, made[:place]))
        found = surveyed(data, start, place + 1)
        assert (found.end_bytes, found.next_no) == (len(data), 11)


def test_nothing_is_a_good_walk() -> None:
    found = surveyed(b"")
    assert (found.end_bytes, found.next_no, found.points, found.torn) == (0, 1, [], None)
    found = surveyed(b"abc", start=512)
    assert (found.end_bytes, found.torn) == (512, None), "a file that is shorter than its header"


def test_points_stand_apart() -> None:
    found = surveyed(b"".join(records(100, 10_000)))
    gaps = [
        after.position_bytes - before.position_bytes for before, after in pairwise(found.points)
    ]
    assert len(found.points) == 4
    assert all(256 * 1024 <= gap <= 256 * 1024 + 10_200 for gap in gaps[:-1])
    for point in found.points:
        assert point.utc_us_max == point.msg_no - 1


@pytest.mark.parametrize("tail", [b"?", bytes(79), bytes(4096), b"\xff" * 500])
def test_bytes_behind_the_last_record_are_a_torn_tail(tail: bytes) -> None:
    data = b"".join(records(3))
    found = surveyed(data + tail)
    assert (found.end_bytes, found.next_no, found.holes) == (len(data), 4, [])
    assert found.torn is not None
    assert (found.torn.offset, found.torn.length) == (len(data), len(tail))


def test_a_record_cut_anywhere_is_a_torn_tail() -> None:
    first, second = records(2)
    for size in range(1, len(second)):
        found = surveyed(first + second[:size])
        assert (found.end_bytes, found.next_no) == (len(first), 2)
        assert found.torn is not None
        assert found.torn.length == size


def test_what_was_durable_is_damage_and_no_torn_tail() -> None:
    first, second, third = records(3)
    data = first + replaced(second, 30, b"???") + replaced(third, 30, b"???")
    found = surveyed(data)
    assert found.torn is not None
    assert (found.next_no, found.torn.offset) == (2, len(first))
    durable = Point(3, len(first + second), 0, 0)
    found = surveyed(data, durable=durable)
    (hole,) = found.holes
    assert (hole.first_no, hole.last_no, hole.offset) == (2, 2, len(first))
    assert (found.next_no, found.end_bytes) == (3, len(first + second))
    assert found.torn is not None
    assert found.torn.offset == len(first + second)


def test_garbage_between_two_records_costs_nothing() -> None:
    first, second = records(2)
    found = surveyed(first + b"garbage" + second)
    assert (found.next_no, found.torn) == (3, None)
    (hole,) = found.holes
    assert hole.costs_nothing
    assert (hole.offset, hole.length) == (len(first), 7)


def test_the_window_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is read at once, the same is found."""
    made = records(30, 300)
    for seed in range(60):
        draw = random.Random(seed)
        data = bytearray(b"".join(made))
        for _ in range(draw.randrange(4)):
            at = draw.randrange(len(data))
            data[at : at + draw.choice([1, 8, 600])] = draw.randbytes(draw.choice([1, 8, 600]))
        durable = Point(31, draw.choice([0, len(data)]), 0, 0)
        whole = surveyed(bytes(data), durable=durable)
        for window_bytes in (81, 100, 400, 401, 5000):
            monkeypatch.setattr(survey_module, "WINDOW_BYTES", window_bytes)
            found = surveyed(bytes(data), durable=durable)
            assert found.holes == whole.holes, f"seed {seed}, windows of {window_bytes}"
            assert (found.end_bytes, found.next_no) == (whole.end_bytes, whole.next_no)
            assert found.torn == whole.torn
        monkeypatch.undo()


def test_a_search_goes_through_the_whole_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey_module, "WINDOW_BYTES", 200)
    monkeypatch.setattr(survey_module, "SEARCH_BYTES", 600)
    first, _, third = records(3)
    for gap in range(0, 3000, 77):
        found = surveyed(first + b"?" * gap + third)
        assert [(hole.first_no, hole.last_no, hole.length) for hole in found.holes] == [(2, 2, gap)]
        assert found.next_no == 4


def test_a_window_holds_what_the_file_has() -> None:
    window = Window(file_of(b"0123456789"), 10, 4)
    for position, length, wanted in ((0, 4, b"0123"), (8, 4, b"89"), (2, 8, b"23456789")):
        window.load(position, length)
        assert bytes(window.view[: window.filled]) == wanted
        assert window.at_end == (position + len(wanted) == 10)
    window.load(12, 4)
    assert (window.filled, window.at_end) == (0, True)


def test_the_topic_of_a_segment_is_that_of_its_first_good_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(survey_module, "WINDOW_BYTES", 100)
    monkeypatch.setattr(survey_module, "SEARCH_BYTES", 400)
    first, second = records(2)
    data = bytes(512) + replaced(first, 40, b"??") + second
    assert topic_of_records(file_of(data), len(data), BROKER) == Topic("/plant/north/temp")
    assert topic_of_records(file_of(data), len(data), OTHER_BROKER) is None
    assert topic_of_records(file_of(b""), 0, BROKER) is None
