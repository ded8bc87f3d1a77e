"""How a home divides its workers' credit among owners, and an owner its tasks among homes."""

from collections import Counter
from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from busnode.tasks.supply import (
    ASKS_MAX,
    Action,
    Answered,
    AskOwn,
    AskOwner,
    Event,
    Homes,
    OwnerGone,
    OwnerReady,
    Supply,
    Unwanted,
    WorkerGone,
    WorkerWants,
)
from busnode.wire.ids import BrokerId
from busnode.wire.limits import TASKS_MAX

A, B = BrokerId(b"a" * 16), BrokerId(b"b" * 16)


def without_own() -> Supply:
    """One whose own queue has said that it has nothing."""
    supply = Supply(count(1).__next__)
    (ask,) = supply.handle(WorkerWants(99, 1))
    assert isinstance(ask, AskOwn)
    supply.handle(Answered(ask.ask, 0))
    supply.handle(WorkerGone(99))
    return supply


def test_the_own_queue_is_asked_first_and_then_each_owner_in_turn() -> None:
    supply = Supply(count(1).__next__)
    supply.handle(OwnerReady(A))
    supply.handle(OwnerReady(B))
    assert supply.handle(WorkerWants(1, 10)) == [AskOwn(1, 1, 10, 1)]
    assert supply.handle(Answered(1, 3)) == [AskOwner(2, A, 1, 7)]
    assert supply.handle(Answered(2, 5)) == [AskOwner(3, B, 1, 2)]
    assert supply.handle(Answered(3, 0)) == []
    assert supply.wanted == 2


def test_one_that_gave_less_than_it_was_asked_for_is_not_asked_before_it_says_ready() -> None:
    supply = without_own()
    supply.handle(OwnerReady(A))
    assert supply.handle(WorkerWants(1, 2)) == [AskOwner(2, A, 1, 2)]
    assert supply.handle(Answered(2, 1)) == []
    assert supply.handle(WorkerWants(2, 2)) == []
    assert supply.handle(OwnerReady(A)) == [AskOwner(3, A, 1, 1), AskOwner(4, A, 2, 2)]


def test_one_that_gave_all_it_was_asked_for_is_asked_again() -> None:
    supply = without_own()
    supply.handle(OwnerReady(A))
    supply.handle(WorkerWants(1, 2))
    assert supply.handle(Answered(2, 2)) == []
    assert supply.handle(WorkerWants(1, 1)) == [AskOwner(3, A, 1, 1)]


def test_a_queue_that_shares_what_it_has_is_not_empty() -> None:
    supply = Supply(count(1).__next__)
    supply.handle(WorkerWants(1, 10))
    assert supply.handle(WorkerWants(2, 10)) == []
    assert supply.handle(Answered(1, 5, more=True)) == [AskOwn(2, 2, 10, 2)]
    assert supply.handle(Answered(2, 2)) == []


def test_workers_take_turns() -> None:
    supply = Supply(count(1).__next__)
    for worker in (1, 2, 3):
        supply.handle(WorkerWants(worker, 100))
    asked: list[int] = []
    (action,) = [AskOwn(1, 1, 100, 3)]
    for _ in range(9):
        asked.append(action.worker)
        (after,) = supply.handle(Answered(action.ask, 1, more=True))
        assert isinstance(after, AskOwn)
        action = after
    assert Counter(asked) == {1: 3, 2: 3, 3: 3}


def test_owners_take_turns() -> None:
    supply = without_own()
    supply.handle(OwnerReady(A))
    supply.handle(OwnerReady(B))
    owners: list[BrokerId] = []
    for worker in range(1, 11):
        (action,) = supply.handle(WorkerWants(worker, 1))
        assert isinstance(action, AskOwner)
        owners.append(action.owner)
    assert owners == [A, B] * 5


def test_a_thousand_workers_are_no_flood_for_an_owner() -> None:
    supply = without_own()
    for worker in range(1, 1001):
        supply.handle(WorkerWants(worker, 1))
    assert len(supply.handle(OwnerReady(A))) == ASKS_MAX


def test_no_ask_is_larger_than_a_frame() -> None:
    supply = Supply(count(1).__next__)
    assert supply.handle(WorkerWants(1, 10**6)) == [AskOwn(1, 1, TASKS_MAX, 1)]


def test_what_comes_for_a_worker_that_is_gone_is_not_wanted() -> None:
    supply = without_own()
    supply.handle(OwnerReady(A))
    supply.handle(WorkerWants(1, 5))
    assert supply.handle(WorkerGone(1)) == []
    assert supply.handle(Answered(2, 5)) == [Unwanted(2)]
    assert supply.wanted == 0
    assert supply.handle(WorkerWants(1, 1)) == [AskOwner(3, A, 1, 1)], "it has come back"


def test_a_worker_that_comes_back_has_nothing_to_do_with_what_it_asked_for_before() -> None:
    supply = without_own()
    supply.handle(OwnerReady(A))
    supply.handle(WorkerWants(1, 5))
    supply.handle(WorkerGone(1))
    assert supply.handle(WorkerWants(1, 2)) == [AskOwner(3, A, 1, 2)]
    assert supply.handle(Answered(2, 4)) == [Unwanted(2)]
    assert supply.wanted == 2


def test_what_an_owner_that_is_gone_was_asked_is_asked_of_another() -> None:
    supply = without_own()
    supply.handle(OwnerReady(A))
    supply.handle(WorkerWants(1, 5))
    supply.handle(OwnerReady(B))
    assert supply.handle(OwnerGone(A)) == [AskOwner(3, B, 1, 5)]
    assert supply.handle(Answered(2, 5)) == [Unwanted(2)], "it was only slow"


# An owner and its homes ---------------------------------------------------------------------------


def test_an_owner_divides_among_the_homes_that_have_asked_a_moment_ago() -> None:
    homes = Homes()
    assert homes.share(A, 10, 0.0) == 10
    assert homes.share(B, 10, 0.5) == 5
    assert homes.share(None, 10, 0.9) == 4
    assert homes.share(A, 0, 0.9) == 0
    assert homes.share(A, 1, 0.9) == 1
    assert homes.share(A, 10, 5.0) == 10


def test_a_home_that_got_less_than_it_wanted_is_told_once_and_shares() -> None:
    homes = Homes()
    homes.share(A, 3, 0.0)
    assert homes.gave(A, 5, 3, 0) == []
    assert homes.share(B, 10, 60.0) == 5, "the other one is still hungry"
    assert homes.ready() == [A]
    assert homes.ready() == []


def test_a_home_that_got_only_its_share_is_told_at_once() -> None:
    homes = Homes()
    homes.share(A, 10, 0.0)
    homes.gave(A, 10, 10, 0)
    assert homes.share(B, 10, 0.1) == 5
    assert homes.gave(B, 10, 5, 5) == [B]


def test_a_home_that_is_gone_has_no_share() -> None:
    homes = Homes()
    homes.share(A, 1, 0.0)
    homes.gave(A, 5, 1, 0)
    homes.gone(A)
    assert homes.share(B, 10, 0.1) == 10
    assert homes.ready() == []


# All of it ----------------------------------------------------------------------------------------


class HomeAndOwners(RuleBasedStateMachine):
    """Whatever comes and goes: no worker gets more than it can take, and as long as a worker is
    hungry nothing that is there waits for ever."""

    @initialize()
    def begin(self) -> None:
        self.supply = Supply(count(1).__next__)
        self.credit: Counter[int] = Counter()
        self.stock: dict[BrokerId | None, int] = {None: 0}
        self.asks: dict[int, tuple[BrokerId | None, int, int]] = {}
        """Under way: owner, worker, want. Several may be on their way to one owner."""
        self.short: set[BrokerId | None] = set()
        """Owners that will say READY when there is more."""

    def tell(self, event: Event) -> None:
        events = [event]
        while events:
            for action in self.supply.handle(events.pop(0)):
                events += self.act(action)
        assert self.supply.wanted >= 0

    def act(self, action: Action) -> list[Event]:
        match action:
            case AskOwn(ask, worker, want, hungry):
                assert hungry > 0
                share = -(-self.stock[None] // hungry)
                count = min(want, share)
                self.stock[None] -= count
                self.give(worker, count)
                return [Answered(ask, count, more=self.stock[None] > 0)]
            case AskOwner(ask, owner, worker, want):
                assert owner in self.stock
                self.asks[ask] = owner, worker, want
            case Unwanted():
                raise AssertionError("answers of those who are gone are not given here")
        return []

    def give(self, worker: int, count: int) -> None:
        self.credit[worker] -= count
        assert self.credit[worker] >= 0, "more than it can take"

    @rule(worker=st.integers(1, 3), want=st.integers(1, 5))
    def want(self, worker: int, want: int) -> None:
        self.credit[worker] += want
        self.tell(WorkerWants(worker, want))

    @rule(owner=st.sampled_from([A, B]))
    def link(self, owner: BrokerId) -> None:
        if owner not in self.stock:
            self.stock[owner] = 0
            self.tell(OwnerReady(owner))

    @precondition(lambda self: len(self.stock) > 1)
    @rule(place=st.integers(0, 1))
    def unlink(self, place: int) -> None:
        owners = [owner for owner in self.stock if owner is not None]
        owner = owners[place % len(owners)]
        del self.stock[owner]
        self.short.discard(owner)
        self.asks = {ask: each for ask, each in self.asks.items() if each[0] != owner}
        self.tell(OwnerGone(owner))

    @rule(place=st.integers(0, 2), count=st.integers(1, 9))
    def enqueue(self, place: int, count: int) -> None:
        owners = list(self.stock)
        owner = owners[place % len(owners)]
        was_empty = self.stock[owner] == 0
        self.stock[owner] += count
        if owner is None:
            if was_empty:
                self.tell(OwnerReady(None))
        elif owner in self.short:
            self.short.discard(owner)
            self.tell(OwnerReady(owner))

    @precondition(lambda self: self.asks)
    @rule()
    def answer(self) -> None:
        ask = min(self.asks)
        owner, worker, want = self.asks.pop(ask)
        count = min(want, self.stock[owner])
        self.stock[owner] -= count
        self.give(worker, count)
        if count < want:
            self.short.add(owner)
        self.tell(Answered(ask, count))

    def teardown(self) -> None:
        if not hasattr(self, "supply"):
            return
        while self.asks:
            self.answer()
        left = sum(self.stock.values())
        hungry = sum(self.credit.values())
        assert not left or not hungry, "something is there, and somebody wants it"
        assert self.supply.wanted == hungry


HomeAndOwners.TestCase.settings = settings(deadline=None)
TestHomeAndOwners = HomeAndOwners.TestCase


def test_who_has_said_meanwhile_that_it_has_something_is_asked_again() -> None:
    """An ask that is answered late tells how it was before that."""
    supply = Supply(count(1).__next__)
    (own,) = supply.handle(WorkerWants(1, 10))
    assert isinstance(own, AskOwn)
    assert supply.handle(OwnerReady(None)) == []
    assert supply.handle(Answered(own.ask, 4)) == [AskOwn(2, 1, 6, 1)]
    assert supply.handle(Answered(2, 0)) == []
    (other,) = supply.handle(OwnerReady(A))
    assert isinstance(other, AskOwner)
    assert supply.handle(OwnerReady(A)) == []
    assert supply.handle(Answered(other.ask, 1)) == [AskOwner(4, A, 1, 5)]
    assert supply.handle(Answered(4, 0)) == []


def test_a_home_is_hungry_until_it_is_told_also_if_another_ask_of_it_brought_all() -> None:
    homes = Homes()
    assert homes.gave(None, 10, 0, 0) == []
    assert homes.gave(None, 5, 5, 0) == []
    assert homes.ready() == [None]
    assert homes.ready() == []
