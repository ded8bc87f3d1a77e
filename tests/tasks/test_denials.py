"""Claims: who goes on with the tasks of an incarnation that is no more."""

from busnode.tasks.claims import (
    COMPARE_S,
    OLD_COPY_TIMES,
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


A, B, C, BACK = broker(1), broker(2), broker(3), broker(4)


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


def test_what_comes_to_us_on_a_longer_way_is_ours_whichever_step_is_heard_of_first() -> None:
    late = claims_of(C, Claimed(B, C, 200))
    assert late.handle(Heard(Claimed(A, B, 100))) == [TakeOver(A)]
    both = claims_of(C, Claimed(A, C, 300), Claimed(B, C, 200))
    assert both.handle(Heard(Claimed(A, B, 100))) == [], "it was ours, and is still"
    assert both.handle(Heard(Claimed(B, A, 50))) == [CancelClaim(B), CancelClaim(A)]


def test_what_comes_with_the_tasks_of_another_waits_for_a_longer_copy() -> None:
    """Who had claimed them had that copy, and is down; what we have is older."""
    claims = claims_of(C, Claimed(A, B, 100))
    claims.handle(Holds(A, [C], more_away=True))
    claims.handle(Holds(B, [C]))
    claims.handle(Ticked(0.0))
    assert claims.handle(Ticked(1.0)) == [Claim(B)]
    assert claims.handle(Heard(Claimed(B, C, 300))) == [TakeOver(B)]
    assert claims.handle(Ticked(1.5)) == []
    assert claims.handle(Ticked(1.4 + OLD_COPY_TIMES)) == []
    claims.handle(Holds(A, [BACK, C]))
    claims.handle(WriterSeen(BACK))
    assert claims.handle(Ticked(1.5 + OLD_COPY_TIMES)) == [], "it is there, and tells what it knows"
    assert claims.handle(Ticked(1.5 + OLD_COPY_TIMES + COMPARE_S)) == [TakeOver(A)]


def test_tasks_are_not_taken_over_before_those_of_who_had_them_last() -> None:
    """What B did with those of A is told by B's journal."""
    claims = claims_of(C, Claimed(A, B, 100), Claimed(B, BACK, 200))
    claims.handle(Holds(B, [C], more_away=True))
    claims.handle(Holds(A, [C]))
    assert claims.handle(Heard(Claimed(BACK, C, 300))) == [TakeOver(BACK)]
    claims.handle(Ticked(0.0))
    assert claims.handle(Ticked(OLD_COPY_TIMES - 0.1)) == []
    assert claims.handle(Ticked(OLD_COPY_TIMES)) == [TakeOver(B), TakeOver(A)]


def test_a_longer_copy_of_what_came_with_the_tasks_of_another_is_not_waited_for_for_ever() -> None:
    claims = claims_of(C, Claimed(A, B, 100))
    claims.handle(Holds(A, [C], more_away=True))
    assert claims.handle(Heard(Claimed(B, C, 300))) == [TakeOver(B)]
    claims.handle(Ticked(1.0))
    assert claims.handle(Ticked(0.9 + OLD_COPY_TIMES)) == []
    assert claims.handle(Ticked(1.0 + OLD_COPY_TIMES)) == [TakeOver(A)]
    assert claims.handle(Ticked(2.0 + OLD_COPY_TIMES)) == []


def test_what_was_waited_for_in_vain_is_let_go_of_when_it_is_another_s() -> None:
    claims = claims_of(C, Claimed(A, B, 100))
    claims.handle(Holds(A, [C], more_away=True))
    claims.handle(Heard(Claimed(B, C, 300)))
    assert claims.handle(WriterSeen(A)) == [CancelClaim(A)]
    assert claims.handle(Ticked(100.0)) == []


def test_one_whose_logs_have_just_come_is_not_gone_for_as_long_as_this_node_is_up() -> None:
    claims = claims_of(C)
    claims.handle(Ticked(50.0))
    claims.handle(Holds(A, [C]))
    assert claims.handle(Ticked(50.5)) == []
    claims.handle(WriterSeen(A))
    claims.handle(WriterGone(A, 60.0))
    assert claims.handle(Ticked(60.5)) == []
    assert claims.handle(Ticked(61.5)) == [Claim(A)]
