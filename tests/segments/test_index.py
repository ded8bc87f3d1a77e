"""The index of a segment: points and holes, each with a hash of its own."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from busnode.segments.damage import Hole
from busnode.segments.index import (
    ENTRY_BYTES,
    Index,
    Point,
    decode_index,
    encode_hole,
    encode_point,
)
from busnode.wire.ids import MsgNo

SEED = 0x1234567890ABCDEF
FIRST = Point(1, 512, 0, 1000)
POINTS = [Point(10, 700, 5, 2000), Point(25, 1500, 5, 3000), Point(26, 9000, 8, 4000)]
HOLE = Hole(MsgNo(11), MsgNo(20), "/x.seg", 800, 300, "damaged record, noted in the index")


def encoded(points: list[Point], seed: int = SEED) -> bytes:
    return b"".join(encode_point(point, seed) for point in points)


def test_an_index_is_read_as_it_was_written() -> None:
    data = encoded(POINTS[:2]) + encode_hole(HOLE, SEED) + encoded(POINTS[2:])
    index, holes = decode_index(data, SEED, FIRST, "/x.seg")
    assert list(index) == [FIRST, *POINTS]
    assert holes == [HOLE]
    assert index.bad_entries == []
    assert len(data) == 4 * ENTRY_BYTES


def test_an_empty_index_knows_where_its_segment_begins() -> None:
    index, holes = decode_index(b"", SEED, FIRST, "")
    assert (list(index), holes) == ([FIRST], [])


def test_the_beginning_stands_once_even_when_it_was_written() -> None:
    index, _ = decode_index(encoded([FIRST, *POINTS]), SEED, FIRST, "")
    assert list(index) == [FIRST, *POINTS]
    assert index.bad_entries == []


def test_an_index_with_any_byte_flipped_loses_one_entry() -> None:
    data = encoded(POINTS)
    for at in range(len(data)):
        broken = bytearray(data)
        broken[at] ^= 0x11
        index, _ = decode_index(bytes(broken), SEED, FIRST, "")
        lost = at // ENTRY_BYTES
        assert list(index) == [FIRST, *POINTS[:lost], *POINTS[lost + 1 :]]
        assert index.bad_entries == [lost * ENTRY_BYTES]


def test_an_index_cut_at_any_byte_keeps_its_whole_entries() -> None:
    data = encoded(POINTS)
    for size in range(len(data) + 1):
        index, _ = decode_index(data[:size], SEED, FIRST, "")
        whole, rest = divmod(size, ENTRY_BYTES)
        assert list(index) == [FIRST, *POINTS[:whole]]
        assert index.bad_entries == ([whole * ENTRY_BYTES] if rest else [])


def test_an_index_of_another_segment_is_not_believed() -> None:
    index, _ = decode_index(encoded(POINTS, SEED ^ 1), SEED, FIRST, "")
    assert list(index) == [FIRST]
    assert len(index.bad_entries) == 3


@pytest.mark.parametrize("wrong", [Point(5, 9100, 8, 0), Point(30, 600, 8, 0), Point(0, 0, 0, 0)])
def test_points_that_go_backwards_are_left_out(wrong: Point) -> None:
    index, _ = decode_index(encoded([*POINTS, wrong]), SEED, FIRST, "")
    assert list(index) == [FIRST, *POINTS]
    assert index.bad_entries == [3 * ENTRY_BYTES]


def test_the_highest_time_never_goes_back() -> None:
    points = [Point(10, 700, 50, 0), Point(20, 800, 30, 0)]
    index, _ = decode_index(encoded(points), SEED, FIRST, "")
    assert [point.utc_us_max for point in index] == [0, 50, 50]


@given(st.binary(max_size=400))
def test_any_bytes_are_an_index(data: bytes) -> None:
    index, holes = decode_index(data, SEED, FIRST, "")
    assert (list(index), holes) == ([FIRST], [])
    assert len(index.bad_entries) == -(-len(data) // ENTRY_BYTES)


steps = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 99), st.integers(0, 5)), max_size=30)


@settings(max_examples=200)
@given(steps, st.integers(0, 3000))
def test_points_are_found_as_a_search_from_the_front_finds_them(
    deltas: list[tuple[int, int, int]], wanted: int
) -> None:
    points = [FIRST]
    for number, position, utc in deltas:
        last = points[-1]
        points.append(Point(last[0] + number, last[1] + position, last[2] + utc, last[3]))
    index = Index(points)
    assert len(index) == len(points)
    before = [point for point in points if point.msg_no <= wanted] or points[:1]
    assert index.before_number(wanted) == before[-1]
    before = [point for point in points if point.position_bytes <= wanted] or points[:1]
    assert index.before_position(wanted) == before[-1]
    behind = [point for point in points if point.position_bytes > wanted]
    assert index.after_position(wanted) == (behind[0] if behind else None)
    before = [point for point in points if point.utc_us_max < wanted] or points[:1]
    assert index.before_time(wanted) == before[-1]
