"""Interests: however clients come and go, every other node knows just what they want now."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from busnode.cluster.interests import QUEUE_CREDIT_BYTES, Interests
from busnode.wire.control import Control, Interest, Provide, Unprovide
from busnode.wire.ids import Pattern

PATTERNS = (Pattern("/a"), Pattern("/a/*"), Pattern("/+/b"))
QUEUES = (None, "workers", "others")

Wanted = tuple[Pattern, str | None]


@dataclass(frozen=True)
class Change:
    """A client comes or goes: for what it wants, or for what it provides."""

    comes: bool
    pattern: Pattern
    queue: str | None = None
    provides: bool = False
    eager: bool = False


patterns = st.sampled_from(PATTERNS)
comes = st.sampled_from((True, True, False))
changes = st.lists(
    st.builds(Change, comes, patterns, st.sampled_from(QUEUES))
    | st.builds(Change, comes, patterns, st.none(), st.just(True), st.booleans()),
    max_size=60,
)


@dataclass
class Clients:
    """Who is there, and what their node tells of them."""

    interests: Interests = field(default_factory=Interests)
    wanted: Counter[Wanted] = field(default_factory=Counter[Wanted])
    provided: Counter[tuple[Pattern, bool]] = field(default_factory=Counter[tuple[Pattern, bool]])

    def change(self, change: Change) -> list[Control]:
        """What is told of a change; nothing when somebody would go who is not there."""
        step = 1 if change.comes else -1
        interests = self.interests
        if change.provides:
            offer = change.pattern, change.eager
            if self.provided[offer] + step < 0:
                return []
            self.provided[offer] += step
            return (interests.provide if change.comes else interests.unprovide)(*offer)
        wish = change.pattern, change.queue
        if self.wanted[wish] + step < 0:
            return []
        self.wanted[wish] += step
        return (interests.want if change.comes else interests.unwant)(*wish)

    def state(self) -> "Known":
        wanted = {
            (pattern, queue): 1 if queue is None else count
            for (pattern, queue), count in self.wanted.items()
            if count
        }
        provided = {
            pattern: self.provided[pattern, True] > 0
            for pattern in PATTERNS
            if self.provided[pattern, True] or self.provided[pattern, False]
        }
        return wanted, provided


Known = tuple[dict[Wanted, int], dict[Pattern, bool]]


@dataclass
class Peer:
    """Another node: it goes by numbers alone, as a `PeerSession` does."""

    wanted: dict[int, tuple[Wanted, int]] = field(default_factory=dict[int, tuple[Wanted, int]])
    provided: dict[int, tuple[Pattern, bool]] = field(
        default_factory=dict[int, tuple[Pattern, bool]]
    )

    def told(self, messages: Iterable[Control]) -> None:
        for message in messages:
            match message:
                case Interest(number, pattern, queue, members, credit_bytes):
                    assert credit_bytes == (0 if queue is None else QUEUE_CREDIT_BYTES)
                    key = Pattern(pattern), queue
                    assert self.wanted.get(number, (key, 0))[0] == key
                    self.wanted[number] = key, members
                    if not members:
                        del self.wanted[number]
                case Provide(number, pattern, eager):
                    assert self.provided.get(number, (pattern, False))[0] == pattern
                    self.provided[number] = Pattern(pattern), eager
                case Unprovide(number):
                    self.provided.pop(number, None)
                case _:
                    raise AssertionError(message)

    def state(self) -> Known:
        wanted, provided = dict(self.wanted.values()), dict(self.provided.values())
        assert len(wanted) == len(self.wanted), "one interest under two numbers"
        assert len(provided) == len(self.provided), "one provided topic under two numbers"
        return wanted, provided


@given(changes)
@settings(max_examples=150, deadline=None)
def test_who_was_told_everything_knows_exactly_what_is_wanted_and_provided(
    changes: list[Change],
) -> None:
    clients, peer = Clients(), Peer()
    for change in changes:
        peer.told(clients.change(change))
        assert peer.state() == clients.state()
        assert len(clients.interests) == len(peer.wanted) + len(peer.provided)


@given(changes, st.integers(0, 30), st.lists(st.integers(0, 3), max_size=60))
@settings(max_examples=150, deadline=None)
def test_a_late_joiner_that_is_told_everything_between_further_changes_ends_up_knowing_the_same(
    changes: list[Change], joins_after: int, paces: list[int]
) -> None:
    clients, late = Clients(), Peer()
    for change in changes[:joins_after]:
        clients.change(change)
    everything = clients.interests.everything()
    pace = iter(paces)
    for change in changes[joins_after:]:
        late.told(message for _, message in zip(range(next(pace, 0)), everything, strict=False))
        late.told(clients.change(change))
    late.told(everything)
    assert late.state() == clients.state()


@given(changes)
@settings(max_examples=100, deadline=None)
def test_a_number_never_comes_to_stand_for_something_else(changes: list[Change]) -> None:
    clients = Clients()
    meant: dict[int, object] = {}
    gone: set[int] = set()
    for change in changes:
        for message in clients.change(change):
            match message:
                case Interest(number, pattern, queue, members, _):
                    what: object = (pattern, queue)
                    ended = not members
                case Provide(number, pattern, _):
                    what, ended = pattern, False
                case Unprovide(number):
                    what, ended = meant[number], True
                case _:
                    raise AssertionError(message)
            assert number not in gone
            assert meant.setdefault(number, what) == what
            if ended:
                gone.add(number)


def test_a_second_client_with_the_same_wish_is_told_to_nobody() -> None:
    interests = Interests()
    assert len(interests.want(PATTERNS[0])) == 1
    assert interests.want(PATTERNS[0]) == []
    assert interests.unwant(PATTERNS[0]) == []
    assert interests.unwant(PATTERNS[0]) == [Interest(1, "/a", None, 0, 0)]
    assert interests.number(PATTERNS[0]) is None


def test_of_a_queue_group_each_change_in_the_number_of_members_is_told() -> None:
    interests = Interests()
    steps = (interests.want, interests.want, interests.unwant, interests.unwant)
    told = [message for step in steps for message in step(PATTERNS[0], "workers")]
    expected = [Interest(1, "/a", "workers", count, QUEUE_CREDIT_BYTES) for count in (1, 2, 1, 0)]
    assert told == expected


def test_a_number_leads_to_its_queue_group_as_long_as_there_are_members() -> None:
    interests = Interests()
    interests.want(PATTERNS[0])
    interests.want(PATTERNS[0], "workers")
    number = interests.number(PATTERNS[0], "workers")
    assert number is not None
    assert interests.queue_of(number) == ("workers", PATTERNS[0])
    plain = interests.number(PATTERNS[0])
    assert plain is not None
    assert interests.queue_of(plain) is None
    interests.unwant(PATTERNS[0], "workers")
    assert interests.queue_of(number) is None
