"""Claims: who goes on with the tasks of an incarnation that is no more."""

from busnode.tasks.claims import (
    CancelClaim,
    Claim,
    Claimed,
    Claims,
    Deny,
    Heard,
    Holds,
    Started,
    TakeOver,
    Ticked,
    WriterGone,
    WriterSeen,
)
from busnode.wire.ids import BrokerId


def broker(number: int) -> BrokerId:
    return BrokerId(bytes([number]) * 16)


A, B, C = broker(1), broker(2), broker(3)


def claims_of(me: BrokerId, *heard: Claimed) -> Claims:
    claims = Claims(me, gone_after_s=1.0)
    claims.handle(Started([], 0.0))
    for claimed in heard:
        claims.handle(Heard(claimed))
    return claims


def test_who_is_alive_denies_what_was_claimed_of_it_for_good() -> None:
    claim = Claimed(A, B, 100)
    denied = Claimed(A, A, 100)
    assert claims_of(A).handle(Heard(claim)) == [Deny(denied)]
    later = claims_of(C, denied, claim)
    assert later.claim_of(A) is None
    later.handle(Heard(Claimed(A, B, 101)))
    assert later.claim_of(A) == Claimed(A, B, 101)


def test_a_denial_that_comes_later_ends_a_claim_that_was_acted_on() -> None:
    claims = claims_of(B)
    assert claims.handle(Heard(Claimed(A, B, 100))) == [TakeOver(A)]
    assert claims.handle(Heard(Claimed(A, A, 100))) == [CancelClaim(A)]
    assert claims.claim_of(A) is None


def test_of_two_that_have_claimed_each_other_and_died_the_first_claim_counts() -> None:
    first, second = Claimed(A, B, 100), Claimed(B, A, 200)
    for heard in ((first, second), (second, first)):
        claims = claims_of(C, *heard)
        assert claims.claim_of(A) == first
        assert claims.claim_of(B) is None
        assert claims.end_of(A) == B


def test_what_was_claimed_by_one_that_is_no_more_goes_on_with_whoever_claims_that_one() -> None:
    claims = claims_of(C, Claimed(A, B, 100))
    assert claims.end_of(A) == B
    claims.handle(Holds(B, [C]))
    claims.handle(Ticked(0.0))
    assert claims.handle(Ticked(2.0)) == [Claim(B)]
    assert claims.handle(Heard(Claimed(B, C, 300))) == [TakeOver(B), TakeOver(A)]


def test_one_whose_logs_have_just_come_is_not_gone_for_as_long_as_this_node_is_up() -> None:
    claims = claims_of(C)
    claims.handle(Ticked(50.0))
    claims.handle(Holds(A, [C]))
    assert claims.handle(Ticked(50.5)) == []
    claims.handle(WriterSeen(A))
    claims.handle(WriterGone(A, 60.0))
    assert claims.handle(Ticked(60.5)) == []
    assert claims.handle(Ticked(61.5)) == [Claim(A)]
