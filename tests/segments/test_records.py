"""Scanning records, finding the next good one, and saying what is wrong."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from busnode.segments.records import (
    LogKey,
    Scanned,
    diagnose,
    find_record,
    find_topic,
    good_header,
    good_record,
    scan,
    true_length,
)
from busnode.wire import limits
from busnode.wire.frames import HEADER_BYTES
from busnode.wire.ids import NO_BROKER, Topic

from .samples import BROKER, OTHER_BROKER, TEMPERATURE, numbered, record, replaced

KEY = LogKey.of(TEMPERATURE)
SISTER = TEMPERATURE._replace(topic=Topic("/plant/south/temp"))


def three() -> tuple[bytearray, list[int]]:
    """Three records, messages 5 to 10, and where each begins and the last ends."""
    made = [
        record(TEMPERATURE, 5, numbered(5, 2), utc_us=30),
        record(TEMPERATURE, 7, numbered(7, 1), utc_us=50),
        record(TEMPERATURE, 8, numbered(8, 3), utc_us=40),
    ]
    places = [0]
    for each in made:
        places.append(places[-1] + len(each))
    return bytearray(b"".join(made)), places


def scanned(data: bytearray, number: int = 5, key: LogKey = KEY) -> Scanned:
    with memoryview(data) as view:
        return scan(view, len(data), len(data), key, Scanned(0, number, 0))


def test_a_scan_goes_over_all_good_records() -> None:
    data, places = three()
    assert scanned(data) == Scanned(places[-1], 11, 50)


def test_a_scan_stops_behind_the_record_that_reaches_its_stop() -> None:
    data, places = three()
    view = memoryview(data)
    for stop in range(len(data) + 1):
        at, number, _ = scan(view, stop, len(data), KEY, Scanned(0, 5, 0))
        assert at == min(place for place in places if place >= stop)
        assert number == {0: 5, 1: 7, 2: 8, 3: 11}[places.index(at)]


def test_a_scan_stops_at_a_record_that_is_not_all_there() -> None:
    data, places = three()
    view = memoryview(data)
    for end in range(len(data) + 1):
        at = scan(view, end, end, KEY, Scanned(0, 5, 0)).at
        assert at == max(place for place in places if place <= end)


def test_a_scan_stops_at_any_flipped_byte() -> None:
    data, places = three()
    for at in range(len(data)):
        data[at] ^= 0x20
        assert scanned(data).at == max(place for place in places if place <= at)
        data[at] ^= 0x20
    assert scanned(data).at == places[-1]


def test_a_scan_believes_no_record_of_another_log() -> None:
    for log_id in (
        SISTER,
        TEMPERATURE._replace(broker_id=OTHER_BROKER),
        TEMPERATURE._replace(topic=Topic("/plant/north/temp2")),
    ):
        data = bytearray(record(log_id, 5, [b"x"]))
        assert scanned(data).at == 0
        with memoryview(data) as view:
            assert good_record(view, 0, len(data), KEY) is None


def test_a_scan_stops_at_a_wrong_number() -> None:
    data, places = three()
    assert scanned(data, number=4).at == 0
    assert scanned(data, number=6).at == 0
    assert scanned(data[: places[1]] + data).at == places[1], "the same again"


def test_a_good_header_may_have_a_bad_body() -> None:
    data, places = three()
    view = memoryview(data)
    header = good_header(view, places[1], len(data), KEY)
    assert header is not None
    assert (header.first_no, header.last_no, header.count) == (7, 7, 1)
    assert good_record(view, places[1], len(data), KEY) == header
    data[places[2] - 1] ^= 1
    assert good_header(view, places[1], len(data), KEY) == header
    assert good_record(view, places[1], len(data), KEY) is None


def test_a_record_is_found_wherever_it_stands() -> None:
    good = record(TEMPERATURE, 9, [b"abc"])
    for lead in (b"", b"x", bytes(100), BROKER, BROKER * 5 + b"!", good[:-1]):
        data = bytearray(lead + good + b"tail")
        found = find_record(data, memoryview(data), 0, len(data), KEY, 9)
        assert found is not None
        assert (found[0], found[1].first_no) == (len(lead), 9)
        assert find_record(data, memoryview(data), 0, len(data), KEY, 10) is None
        assert find_record(data, memoryview(data), len(lead) + 1, len(data), KEY, 9) is None


def test_a_record_that_goes_on_behind_the_end_counts_by_its_header() -> None:
    """Else a search would go on in its payload, and find what somebody has put there."""
    inner = record(TEMPERATURE, 9, [b"inner"])
    outer = record(TEMPERATURE, 3, [inner, b"x" * 1000])
    data = bytearray(b"?" * 7 + outer)
    found = find_record(data, memoryview(data), 0, len(data) - 500, KEY, 3)
    assert found is not None
    assert (found[0], found[1].first_no) == (7, 3)


def test_the_true_length_of_a_record_is_found_by_its_body() -> None:
    data, places = three()
    view = memoryview(data)
    header = good_header(view, 0, len(data), KEY)
    assert header is not None
    assert true_length(data, view, len(data), KEY, header) == places[1]
    alone = data[: places[1]]
    assert true_length(alone, memoryview(alone), len(alone), KEY, header) == places[1]
    data[places[1] - 1] ^= 1
    assert true_length(data, view, len(data), KEY, header) is None


def test_a_topic_is_found_in_any_good_record() -> None:
    good = record(SISTER, 9, [b"abc"])
    bad = replaced(good, len(good) - 1, b"?")
    for lead in (b"", BROKER * 3, bad, bytes(600)):
        data = bytearray(lead + good)
        assert find_topic(data, memoryview(data), len(data), BROKER) == SISTER.topic
        assert find_topic(data, memoryview(data), len(data), OTHER_BROKER) is None
        assert find_topic(data, memoryview(data), len(data) - 1, BROKER) is None


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda data: data[:30], "30 bytes where a record of at least 80 should be"),
        (lambda data: bytes(len(data)), "zeros where a record should be"),
        (lambda data: replaced(data, 30, b"??"), "a header whose hash does not fit"),
        (
            lambda data: replaced(data, len(data) - 2, b"??"),
            "a record whose body hash does not fit",
        ),
        (lambda data: data[:-9], "a record of 126 bytes of which 117 are there"),
        (lambda _: record(TEMPERATURE, 4, [b"x"]), "a record with number 4 where 5 should be"),
        (lambda _: record(SISTER, 5, [b"x"]), "a record of another topic"),
    ],
)
def test_the_damage_is_told(damage: Callable[[bytes], bytes], said: str) -> None:
    data = damage(record(TEMPERATURE, 5, numbered(5, 2, 8)))
    assert diagnose(memoryview(data), 0, len(data), KEY, 5) == said


anything = st.lists(
    st.binary(max_size=200)
    | st.integers(1, 9).map(lambda number: record(TEMPERATURE, number, [b"payload"]))
    | st.sampled_from([bytes(BROKER), bytes(NO_BROKER), bytes(90)]),
    max_size=6,
).map(b"".join)


@settings(max_examples=300, deadline=None)
@given(anything, st.integers(0, 12))
def test_any_bytes_are_scanned_and_searched(data: bytes, number: int) -> None:
    buffer = bytearray(data)
    view = memoryview(buffer)
    at, next_no, _ = scan(view, len(data), len(data), KEY, Scanned(0, number, 0))
    assert 0 <= at <= len(data)
    assert next_no >= number
    if at < len(data):
        assert diagnose(view, at, len(data), KEY, next_no)
    found = find_record(buffer, view, 0, len(data), KEY, number)
    if found is not None:
        assert found[1].first_no >= number
        assert HEADER_BYTES < found[1].length <= limits.FRAME_BYTES_MAX
    find_topic(buffer, view, len(data), BROKER)
