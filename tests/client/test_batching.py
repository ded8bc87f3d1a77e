"""The machine that packs messages: alone, with every order of events that Hypothesis finds."""

from typing import Final

from hypothesis import given, settings
from hypothesis import strategies as st

from busnode.client.batch import Batch, Lane, Owner
from busnode.client.batching import BATCH_CHARGE_MAX, LANES_MAX, MESSAGE_CHARGE, Batching
from busnode.client.room import Room
from busnode.wire.batches import decode_columns
from busnode.wire.frames import HEADER_BYTES, read_header
from busnode.wire.ids import Topic
from busnode.wire.limits import BATCH_MESSAGES_MAX

TOPIC: Final = Topic("/t")


class Bench:
    """A batching machine and what was packed from it."""

    def __init__(self, room: int = 1 << 30) -> None:
        self.rooms = Room(room), Room(room)
        self.batching = Batching(*self.rooms)
        self.utc_us = 1000
        self.packed: list[Batch] = []
        self.columns: list[tuple[str, list[bytes], list[int]]] = []
        self.newest_us: list[int] = []

    def lane(self, topic: Topic = TOPIC, persistent: bool = True) -> Lane:
        return self.batching.lane(topic, persistent, "global")

    def put(self, lane: Lane, owner: Owner, payload: bytes) -> None:
        """As `Publisher.send` does it, where there is room."""
        room = owner.room - len(payload) - MESSAGE_CHARGE
        if room >= 0:
            owner.room = room
            owner.append(payload)
            return
        charge = len(payload) + MESSAGE_CHARGE
        assert self.batching.room(lane).take(charge)
        self.batching.place(lane, owner, payload, None, None, charge, self.utc_us)

    def pack(self) -> Batch | None:
        batch = self.batching.next_batch(persistent=True)
        if batch is not None:
            batch.pack(7, len(self.packed) + 1)
            view = memoryview(batch.frame)
            header = read_header(view, 0)
            topic = bytes(view[HEADER_BYTES : HEADER_BYTES + header.topic_bytes]).decode()
            columns = decode_columns(view[HEADER_BYTES + header.topic_bytes :], header.count)
            deltas = columns.utc_deltas_us or [0] * header.count
            times = [header.utc_us - delta for delta in deltas]
            self.newest_us.append(header.utc_us)
            self.packed.append(batch)
            self.columns.append((topic, list(columns.payloads), times))
        return batch


@settings(deadline=None)
@given(st.data())
def test_every_message_comes_out_once_in_order_and_all_room_is_given_back(
    data: st.DataObject,
) -> None:
    bench = Bench()
    lanes = [
        bench.lane(Topic(f"/{i}"), persistent) for i in range(2) for persistent in (True, False)
    ]
    owners = {lane: [lane.plain, Owner(), Owner()] for lane in lanes}
    sent: dict[Lane, list[tuple[bytes, Owner]]] = {lane: [] for lane in lanes}
    number = 0
    events = st.sampled_from(["put", "put", "many", "large", "pack", "end grants", "time"])
    for event in data.draw(st.lists(events, max_size=60)):
        lane = data.draw(st.sampled_from(lanes))
        owner = data.draw(st.sampled_from(owners[lane]))
        match event:
            case "pack":
                bench.pack()
            case "end grants":
                bench.batching.end_grants()
            case "time":
                bench.utc_us += data.draw(st.integers(-5, 50))
            case "many":
                count = data.draw(st.integers(1, 300))
                payloads = [b"%d" % (number + i) for i in range(count)]
                number += count
                charge = sum(map(len, payloads)) + MESSAGE_CHARGE * count
                assert bench.batching.room(lane).take(charge)
                bench.batching.place_many(lane, owner, payloads, charge, bench.utc_us)
                sent[lane] += [(payload, owner) for payload in payloads]
            case _:
                filler = b"." * 200_000 if event == "large" else b""
                payload = b"%d" % number + filler
                number += 1
                bench.put(lane, owner, payload)
                sent[lane].append((payload, owner))
    while bench.pack():
        pass
    for lane in lanes:
        out = [
            (payload, batch)
            for batch, (_, payloads, _) in zip(bench.packed, bench.columns, strict=True)
            if batch.lane is lane
            for payload in payloads
        ]
        assert [payload for payload, _ in out] == [payload for payload, _ in sent[lane]]
        for owner in owners[lane]:
            shares = sum(
                count for batch in bench.packed if batch.lane is lane
                for _, count in batch.shares_of(owner)
            )  # fmt: skip
            assert shares == sum(1 for _, each in sent[lane] if each is owner)
    for batch in bench.packed:
        assert batch.charge <= BATCH_CHARGE_MAX or batch.count == 1
        assert batch.count <= BATCH_MESSAGES_MAX
        bench.batching.room(batch.lane).give_back(batch.charge)
    assert [room.used for room in bench.rooms] == [0, 0]


def test_a_batch_never_has_too_many_messages_even_if_they_are_empty() -> None:
    bench = Bench()
    lane = bench.lane()
    for _ in range(BATCH_MESSAGES_MAX + 1):
        bench.put(lane, lane.plain, b"")
    while bench.pack():
        pass
    assert [batch.count for batch in bench.packed] == [BATCH_MESSAGES_MAX, 1]


def test_a_message_carries_the_time_of_its_grant_and_the_newest_is_in_the_header() -> None:
    bench = Bench()
    lane = bench.lane()
    bench.put(lane, lane.plain, b"1")
    bench.utc_us = 2000
    bench.put(lane, lane.plain, b"2")  # within the grant: it does not look at the clock
    bench.batching.end_grants()
    bench.put(lane, lane.plain, b"3")
    bench.utc_us = 1500  # the clock was put back
    bench.batching.end_grants()
    bench.put(lane, lane.plain, b"4")
    bench.pack()
    assert bench.columns == [("/t", [b"1", b"2", b"3", b"4"], [1000, 1000, 2000, 1500])]
    assert bench.newest_us == [2000]


def test_without_grants_each_message_has_its_own_time_to_the_millisecond() -> None:
    bench = Bench()
    lane = bench.lane()
    bench.batching.grants = False
    for bench.utc_us in (5000, 5999, 6000, 6999, 8500, 8499):
        bench.put(lane, lane.plain, b"")
    bench.pack()
    assert bench.columns[0][2] == [5000, 5000, 6000, 6000, 8500, 8499]
    assert bench.newest_us == [8500]


def test_one_time_for_all_costs_no_column() -> None:
    bench = Bench()
    lane = bench.lane()
    for _ in range(100):
        bench.put(lane, lane.plain, b"x")
        bench.batching.end_grants()
    batch = bench.pack()
    assert batch is not None
    assert batch.stamps == [(0, 1000)]


def test_a_batch_that_is_written_takes_no_more() -> None:
    bench = Bench()
    lane = bench.lane()
    bench.put(lane, lane.plain, b"1")
    bench.pack()
    bench.put(lane, lane.plain, b"2")
    bench.pack()
    assert [payloads for _, payloads, _ in bench.columns] == [[b"1"], [b"2"]]


def test_both_kinds_take_turns_and_one_can_be_held_back() -> None:
    bench = Bench()
    for i in range(3):
        for persistent in (True, False):
            lane = bench.lane(Topic(f"/{i}"), persistent)
            bench.put(lane, lane.plain, b"x")
    while bench.pack():
        pass
    kinds = [batch.lane.persistent for batch in bench.packed]
    assert kinds in ([True, False] * 3, [False, True] * 3)
    lane = bench.lane(Topic("/p"), True)
    bench.put(lane, lane.plain, b"x")
    assert bench.batching.next_batch(persistent=False) is None
    assert len(bench.batching.waiting(True)) == 1


def test_where_room_is_short_a_message_is_taken_without_a_grant() -> None:
    bench = Bench(room=1000)
    lane = bench.lane()
    bench.put(lane, lane.plain, b"x")
    assert lane.plain.room == 0
    assert bench.rooms[0].used == 1 + MESSAGE_CHARGE


def test_lanes_are_forgotten_when_nothing_waits_in_them() -> None:
    bench = Bench()
    kept = bench.lane(Topic("/kept"))
    bench.put(kept, kept.plain, b"x")
    for i in range(3 * LANES_MAX):
        bench.lane(Topic(f"/{i}"))
    assert bench.lane(Topic("/kept")) is kept
    assert len(bench.batching.lanes) <= LANES_MAX
