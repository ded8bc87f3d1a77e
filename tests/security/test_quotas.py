"""Quotas against a model that remembers everything."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busnode.security.quotas import (
    LOOPBACK,
    Accounts,
    AddressLimits,
    Arrivals,
    Bucket,
    IdentityLimits,
    Ledger,
    place_of,
)
from busnode.wire.errors import LimitReached

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["come", "leave"]),
        st.sampled_from(["10.0.0.1", "10.0.0.2", "2001:db8::1", "2001:db8::2", "127.0.0.1"]),
        st.integers(0, 3),
    ),
    max_size=200,
)


class Model:
    """Each arrival that was let in, with its time; nothing is ever forgotten."""

    def __init__(self, limits: AddressLimits) -> None:
        self.limits = limits
        self.here: dict[str, int] = {}
        self.tokens: dict[str, tuple[float, float]] = {}

    def come(self, place: str, now: float) -> bool:
        if place == LOOPBACK and not self.limits.with_loopback:
            return True
        left, at = self.tokens.get(place, (float(self.limits.handshake_burst), now))
        left = min(self.limits.handshake_burst, left + (now - at) * self.limits.handshakes_per_s)
        fits = self.here.get(place, 0) < self.limits.connections_max
        if not fits or left < 1:
            return False
        self.tokens[place] = left - 1, now
        self.here[place] = self.here.get(place, 0) + 1
        return True


@given(STEPS, st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.booleans())
def test_arrivals_do_what_a_model_does_that_remembers_everything(
    steps: list[tuple[str, str, int]], most: int, rate: int, burst: int, loopback: bool
) -> None:
    limits = AddressLimits(most, rate, burst, loopback)
    arrivals, model = Arrivals(limits), Model(limits)
    let_in: list[str] = []
    now = 0.0
    for what, host, later in steps:
        now += later / 4
        if what == "come":
            refusal = arrivals.come(host, now)
            assert (refusal is None) == model.come(place_of(host), now)
            if refusal is None:
                let_in.append(host)
        elif host in let_in:
            let_in.remove(host)
            arrivals.leave(host)
            if place_of(host) in model.here:
                model.here[place_of(host)] -= 1


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30)), max_size=300), st.integers(0, 5))
def test_a_ledger_keeps_who_is_here_and_of_the_others_those_who_left_last(
    steps: list[tuple[bool, int]], idle_max: int
) -> None:
    made = 0

    def make(_: float) -> int:
        nonlocal made
        made += 1
        return made

    ledger: Ledger[int] = Ledger(make, idle_max)
    here: dict[int, list[int]] = {}
    left: list[int] = []  # who left last stands last
    known: dict[int, int] = {}
    for comes, who in steps:
        if comes:
            entry = ledger.come(who, 0.0)
            assert entry == known.get(who, made)
            known[who] = entry
            here.setdefault(who, []).append(who)
            left = [each for each in left if each != who]
        elif here.get(who):
            here[who].pop()
            ledger.leave(who)
            if not here[who]:
                left.append(who)
        for gone in left[: max(0, len(left) - idle_max)]:
            del known[gone]
        left = left[max(0, len(left) - idle_max) :]
        assert ledger.count(who) == len(here.get(who, []))
        assert len(ledger) == len(left) + sum(bool(each) for each in here.values())


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 1000)), max_size=50))
def test_who_waits_as_long_as_a_bucket_says_never_exceeds_its_rate(
    uses: list[tuple[float, float]],
) -> None:
    bucket = Bucket(per_s=10, burst=20, now=0.0)
    now = used = 0.0
    for pause_s, amount in uses:
        now += pause_s
        used += amount
        now += bucket.charge(amount, now)
        assert used <= 20 + 10 * now + 1e-6 * (1 + used)


def test_a_clock_that_stands_still_gives_nothing() -> None:
    bucket = Bucket(per_s=1000, burst=2, now=5.0)
    assert [bucket.take(5.0) for _ in range(3)] == [True, True, False]
    assert not bucket.take(4.0)
    assert bucket.take(5.001)


@pytest.mark.parametrize(
    ("host", "place"),
    [
        ("127.0.0.1", LOOPBACK),
        ("127.3.2.1", LOOPBACK),
        ("::1", LOOPBACK),
        ("::ffff:127.0.0.1", LOOPBACK),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("10.0.0.1", "10.0.0.1"),
        ("2001:db8:0:1:ffff::9", "2001:db8:0:1::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("n1", "n1"),
    ],
)
def test_addresses_count_as_places(host: str, place: str) -> None:
    assert place_of(host) == place


def test_a_flood_of_addresses_fills_no_more_than_the_table() -> None:
    arrivals = Arrivals(AddressLimits(10, 1, 1, with_loopback=False), idle_max=100)
    for number in range(10_000):
        host = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
        assert arrivals.come(host, 0.0) is None
        arrivals.leave(host)
        assert len(arrivals) <= 101
    # Also of those who are not let in, and so never leave.
    for number in range(10_000):
        host = f"10.1.{number >> 8 & 255}.{number & 255}"
        for _ in range(3):
            if arrivals.come(host, 0.0) is None:
                arrivals.leave(host)
            assert len(arrivals) <= 101


def test_a_refusal_names_the_limit_and_its_setting() -> None:
    arrivals = Arrivals(AddressLimits(1, 1, 1, with_loopback=False))
    assert arrivals.come("10.0.0.1", 0.0) is None
    refusal = arrivals.come("10.0.0.1", 9.0)
    assert refusal is not None
    assert "1 connections from 10.0.0.1" in refusal.text
    assert "--connections-per-address" in refusal.text
    arrivals.leave("10.0.0.1")
    assert arrivals.come("10.0.0.1", 9.0) is None
    arrivals.leave("10.0.0.1")
    refusal = arrivals.come("10.0.0.1", 9.0)
    assert refusal is not None
    assert "--handshakes-per-address" in refusal.text


def accounts(**changes: float | None) -> Accounts:
    given: dict[str, float | None] = {
        "connections_max": 2, "subscriptions_max": 2, "messages_per_s": 10, "bytes_per_s": 1000,
        "in_flight_bytes_max": 100, **changes,
    }  # fmt: skip
    return Accounts(IdentityLimits(**given), with_loopback=False)  # type: ignore[arg-type]


def test_connections_of_one_identity_share_an_account() -> None:
    found = accounts()
    first = found.open("anna", "10.0.0.1", 0.0)
    second = found.open("anna", "127.0.0.1", 0.0)
    assert first is not None
    assert first is second
    with pytest.raises(LimitReached, match="--connections-per-identity"):
        found.open("anna", "10.0.0.3", 0.0)
    assert found.open("bert", "10.0.0.1", 0.0) is not first
    found.close("anna", "10.0.0.1")
    assert found.open("anna", "10.0.0.3", 0.0) is first


def test_who_has_no_identity_is_counted_by_address_and_this_machine_is_not() -> None:
    found = accounts()
    assert found.open("", "127.0.0.1", 0.0) is None
    here = [found.open("", "10.0.0.1", 0.0) for _ in range(5)]
    assert here[0] is not None
    assert all(each is here[0] for each in here)
    assert found.open("", "10.0.0.2", 0.0) is not here[0]
    # Nobody can pass for an address by calling itself like one.
    assert found.open("10.0.0.1", "10.0.0.9", 0.0) is not here[0]


def test_an_account_tells_how_long_not_to_read() -> None:
    account = accounts().open("anna", "", 0.0)
    assert account is not None
    assert account.charge(10, 100, 0.0) == 0.0
    assert account.charge(5, 100, 0.0) == pytest.approx(0.5)
    assert account.charge(0, 2800, 0.0) == pytest.approx(2.0)
    # What it owes is still owed when it comes again.
    found = accounts()
    first = found.open("anna", "", 0.0)
    assert first is not None
    first.charge(110, 0, 0.0)
    found.close("anna", "")
    assert found.open("anna", "", 5.0) is first
    assert first.charge(1, 0, 5.0) == pytest.approx(5.1)


def test_subscriptions_beyond_the_limit_are_refused() -> None:
    found = accounts()
    account = found.open("anna", "", 0.0)
    assert account is not None
    account.subscriptions = 1
    found.check_subscriptions(account)
    account.subscriptions = 2
    with pytest.raises(LimitReached, match="--subscriptions-per-identity"):
        found.check_subscriptions(account)
