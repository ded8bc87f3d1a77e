"""The smaller machines, each alone."""

from collections.abc import Iterator
from contextlib import suppress
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busnode.client.backoff import FIRST_S, MOST_S, STEADY_S, Backoff
from busnode.client.batch import Batch
from busnode.client.batching import Batching
from busnode.client.deduplication import Deduplication
from busnode.client.directory import LEARNED_MAX, Directory, parse_address, parse_url
from busnode.client.positions import Position
from busnode.client.receipts import RANGES_MAX, Receipts
from busnode.client.room import Room
from busnode.client.window import Window
from busnode.wire.errors import BadControl, NotMirrored, Refused
from busnode.wire.ids import BrokerId, MsgNo, Topic
from busnode.world.network import Address
from tests.client.scripted_node import BROKER, OTHER

# Backoff ------------------------------------------------------------------------------------------


def test_the_wait_doubles_up_to_a_limit_and_is_spread_by_half() -> None:
    backoff = Backoff()
    waits = [backoff.failed(0.0) for _ in range(12)]
    assert waits[:3] == [FIRST_S / 2, FIRST_S, FIRST_S * 2]
    assert waits[-1] == MOST_S / 2
    assert backoff.failed(0.999) < MOST_S


def test_a_good_connection_is_replaced_at_once_and_a_short_one_is_not() -> None:
    backoff = Backoff()
    for _ in range(5):
        backoff.failed(0.5)
    assert backoff.lost(STEADY_S, 0.5) == 0.0
    assert backoff.lost(0.1, 0.0) == FIRST_S / 2
    assert backoff.lost(0.1, 0.0) == FIRST_S


# Directory ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("h", ("h", 4250)),
        ("h:1", ("h", 1)),
        ("127.0.0.1:4260", ("127.0.0.1", 4260)),
        ("[::1]", ("::1", 4250)),
        ("[fe80::1%eth0]:9", ("fe80::1%eth0", 9)),
    ],
)
def test_an_address_is_read(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", ":1", "h:", "h:x", "h:0", "h:65536", "::1", "[]:1", "[h]:1"])
def test_a_wrong_address_is_refused(text: str) -> None:
    with pytest.raises(Refused):
        parse_address(text)


def test_a_url_names_several_nodes_and_each_counts_once() -> None:
    assert parse_url("bus://a,b:1,a:4250/") == [("a", 4250), ("b", 1)]


def test_all_nodes_are_tried_and_the_one_that_we_left_comes_last() -> None:
    directory = Directory([Address("a", 1)])
    directory.learn(["b:1", "c:1", "0.0.0.0:1", "nonsense:", "a:1"])
    draws = iter(count())
    assert directory.round(lambda: next(draws)) == [("a", 1), ("b", 1), ("c", 1)]
    directory.left(Address("a", 1))
    assert directory.round(lambda: 0.5) == [("b", 1), ("c", 1), ("a", 1)]
    assert directory.round(lambda: -float(next(draws)))[0] == ("c", 1)


def test_nodes_that_we_were_told_of_are_bounded_and_those_of_the_url_stay() -> None:
    directory = Directory([Address("a", 1)])
    for i in range(1000):
        directory.learn([f"n{i}:1"])
    assert len(directory.nodes) == 1 + LEARNED_MAX
    assert directory.nodes[0] == ("a", 1)
    assert directory.nodes[-1] == ("n999", 1)


# De-duplication -----------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 300)), max_size=300))
def test_exactly_what_was_seen_is_a_repeat(batches: list[tuple[int, int]]) -> None:
    machine, seen = Deduplication(), set[tuple[int, int]]()
    for batch in batches:
        assert machine.is_repeat(*batch) == (batch in seen)
        seen.add(batch)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 5000)), max_size=300))
def test_when_it_forgets_it_lets_repeats_through_and_never_drops_what_is_new(
    batches: list[tuple[int, int]],
) -> None:
    machine, seen = Deduplication(masks_max=4), set[tuple[int, int]]()
    for batch in batches:
        assert not machine.is_repeat(*batch) or batch in seen
        seen.add(batch)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 300)), max_size=300), st.integers(0))
def test_what_was_seen_before_is_a_repeat_to_who_remembers_it(
    batches: list[tuple[int, int]], at: int
) -> None:
    at %= len(batches) + 1
    before, after = Deduplication(), Deduplication()
    for batch in batches[:at]:
        before.is_repeat(*batch)
    after.is_repeat(1, 7)
    after.remember(before.seen())
    seen = {*batches[:at], (1, 7)}
    for batch in batches[at:]:
        assert after.is_repeat(*batch) == (batch in seen)
        seen.add(batch)


def test_zero_numbers_nothing() -> None:
    machine = Deduplication()
    assert [machine.is_repeat(1, 0) for _ in range(3)] == [False] * 3


# Positions ----------------------------------------------------------------------------------------

positions = st.dictionaries(
    st.tuples(
        st.binary(min_size=16, max_size=16).map(BrokerId),
        st.sampled_from(["/a", "/ä/b", "/$sys/x", '/"quoted"']).map(Topic),
    ),
    st.integers(0, 2**64 - 1).map(MsgNo),
).map(Position)


@given(positions)
def test_a_position_survives_text_and_wire(position: Position) -> None:
    assert Position.decode(position.encode()) == position
    assert Position.of(position.nested()) == position


def test_a_position_that_was_damaged_is_refused() -> None:
    text = Position({(BROKER, Topic("/t")): MsgNo(1234)}).encode()
    for at in range(len(text)):
        for other in "0x ":
            damaged = text[:at] + other + text[at + 1 :]
            with suppress(Refused):
                assert Position.decode(damaged) == Position.decode(text), damaged
    for nonsense in ("", "{}", "[]", "null", "3", '{"format": 2, "position": {}, "hash": ""}'):
        with pytest.raises(Refused):
            Position.decode(nonsense)


# Receipts -----------------------------------------------------------------------------------------


def test_receipts_are_ranges_that_unfold() -> None:
    receipts = Receipts()
    receipts.add(BROKER, 1, 3, "local")
    receipts.add(BROKER, 4, 2, "local")
    receipts.add(BROKER, 6, 1, "mirrored")
    receipts.add(OTHER, 7, 1, "mirrored")
    assert [(r.first_no, r.last_no) for r in receipts.ranges] == [(1, 5), (6, 6), (7, 7)]
    assert [r.msg_no for r in receipts] == [1, 2, 3, 4, 5, 6, 7]
    assert len(receipts) == 7


def test_receipts_that_nobody_asks_for_are_bounded_and_still_counted() -> None:
    receipts = Receipts()
    for i in range(2 * RANGES_MAX):
        receipts.add(BROKER, 1 + 2 * i, 1, "local")
    assert len(receipts.ranges) <= RANGES_MAX
    assert len(receipts) == 2 * RANGES_MAX
    assert receipts.forgotten + sum(1 for _ in receipts) == len(receipts)


# Room ---------------------------------------------------------------------------------------------


def test_room_is_given_in_turn() -> None:
    room = Room(10)
    assert room.take(8)
    first, second = room.claim(5), room.claim(1)
    assert not room.take(1), "others were first"
    room.give_back(2)
    assert not first.granted
    room.give_back(6)
    assert (first.granted, second.granted, room.used) == (True, True, 6)


def test_who_gives_up_gives_back_and_lets_the_next_one_in() -> None:
    room = Room(10)
    assert room.take(8)
    first, second = room.claim(5), room.claim(2)
    room.withdraw(first)
    assert second.granted
    room.withdraw(second)
    assert room.used == 8


def test_one_that_is_larger_than_the_room_gets_in_alone() -> None:
    room = Room(10)
    assert room.take(1)
    large = room.claim(100)
    room.give_back(1)
    assert large.granted
    assert not room.take(1)


# Window -------------------------------------------------------------------------------------------


def batches(window: Window) -> Iterator[Batch]:
    batching = Batching(Room(1 << 30), Room(1 << 30))
    lane = batching.lane(Topic("/t"), True, "global")
    while True:
        batching.place_many(lane, lane.plain, [b"x"] * 10, 740, 1)
        batch = batching.next_batch(persistent=True)
        assert batch is not None
        batch.pack(7, window.next_seq)
        yield batch


def filled(number: int) -> tuple[Window, list[Batch]]:
    window = Window()
    made: list[Batch] = []
    for _, batch in zip(range(number), batches(window), strict=False):
        window.add(batch)
        made.append(batch)
    return window, made


def test_an_ack_of_several_batches_numbers_their_messages_one_behind_the_other() -> None:
    window, made = filled(5)
    assert window.messages == 50
    assert window.acked(BROKER, "local", [(4, 2, 101), (1, 2, 1)]) == [*made[3:5], *made[:2]]
    assert [batch.first_no for batch in made] == [1, 11, 0, 101, 111]
    assert window.unacked() == [made[2]]
    assert window.messages == 10


def test_an_ack_that_comes_again_changes_nothing() -> None:
    window, _ = filled(2)
    window.acked(BROKER, "local", [(1, 2, 1)])
    assert window.acked(BROKER, "local", [(1, 2, 1), (1, 1, 1)]) == []


def test_an_ack_that_cannot_be_is_an_error() -> None:
    window, _ = filled(3)
    with pytest.raises(BadControl):
        window.acked(BROKER, "local", [(3, 2, 1)])
    window.acked(BROKER, "local", [(1, 1, 1)])
    with pytest.raises(BadControl):
        window.acked(BROKER, "local", [(1, 3, 1)])


def test_a_refused_batch_leaves_the_window_and_its_number_is_not_used_again() -> None:
    window, made = filled(2)
    assert window.refused(1, NotMirrored("no")) is made[0]
    assert window.refused(1, NotMirrored("no")) is None
    assert (window.unacked(), window.next_seq, window.messages) == ([made[1]], 3, 10)
