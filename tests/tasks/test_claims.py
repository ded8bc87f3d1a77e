"""Who takes over the tasks of an incarnation that is no more."""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from busnode.tasks.claims import (
    CLAIMS_MAX,
    GONE_AFTER_S,
    OLD_COPY_TIMES,
    OWN_AFTER_S,
    Action,
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


def broker(name: str) -> BrokerId:
    return BrokerId(name.encode().ljust(16, b"."))


ME, OTHER, THIRD = broker("me"), broker("other"), broker("third")
OLD, DEAD = broker("old"), broker("dead")


def started(*earlier: BrokerId) -> Claims:
    claims = Claims(ME)
    claims.handle(Started(earlier, 0.0))
    return claims


def test_a_node_claims_its_earlier_incarnations_a_moment_after_its_start() -> None:
    claims = started(OLD)
    assert claims.handle(Ticked(OWN_AFTER_S - 0.1)) == []
    assert claims.handle(Ticked(OWN_AFTER_S)) == [Claim(OLD)]
    assert claims.handle(Ticked(OWN_AFTER_S + 1)) == [], "once"
    assert claims.resolve(OLD) is None
    assert claims.handle(Heard(Claimed(OLD, ME, 5))) == [TakeOver(OLD)]
    assert claims.resolve(OLD) == ME
    assert claims.handle(Heard(Claimed(OLD, ME, 5))) == []


def test_a_claim_that_is_heard_before_its_origin_is_missed_counts_when_it_is() -> None:
    claims = started()
    claims.handle(WriterSeen(DEAD))
    claims.handle(WriterSeen(OTHER))
    claims.handle(Holds(DEAD, [ME, OTHER]))
    assert claims.handle(Heard(Claimed(DEAD, OTHER, 5))) == []
    assert claims.handle(Heard(Claimed(DEAD, THIRD, 9))) == []
    assert claims.resolve(DEAD) == DEAD
    claims.handle(WriterGone(DEAD, 10.0))
    assert claims.resolve(DEAD) == OTHER
    assert claims.handle(Ticked(10.0 + GONE_AFTER_S)) == []


def test_an_heir_that_knows_of_a_longer_copy_waits_for_it_and_not_for_ever() -> None:
    claims = started()
    claims.handle(WriterSeen(DEAD))
    claims.handle(WriterGone(DEAD, 10.0))
    claims.handle(Holds(DEAD, [ME], more_away=True))
    assert claims.handle(Ticked(10.0 + GONE_AFTER_S)) == []
    assert claims.handle(Ticked(10.0 + OLD_COPY_TIMES * GONE_AFTER_S - 0.1)) == []
    assert claims.handle(Ticked(10.0 + OLD_COPY_TIMES * GONE_AFTER_S)) == [Claim(DEAD)]


def test_an_heir_waits_no_longer_when_the_longer_copy_is_there() -> None:
    claims = started()
    claims.handle(WriterSeen(DEAD))
    claims.handle(WriterGone(DEAD, 10.0))
    claims.handle(Holds(DEAD, [ME], more_away=True))
    assert claims.handle(Ticked(10.0 + GONE_AFTER_S)) == []
    claims.handle(Holds(DEAD, [ME, OTHER]))
    assert claims.handle(Ticked(11.0 + GONE_AFTER_S)) == [Claim(DEAD)]


def test_a_claim_of_one_who_is_alive_is_void_when_it_denies_it() -> None:
    claims = started()
    claims.handle(WriterSeen(DEAD))
    claims.handle(Heard(Claimed(DEAD, OTHER, 5)))
    claims.handle(Heard(Claimed(DEAD, DEAD, 5)))
    claims.handle(WriterGone(DEAD, 10.0))
    assert claims.claim_of(DEAD) is None


def test_it_does_not_when_it_has_heard_that_somebody_else_has() -> None:
    claims = started(OLD)
    claims.handle(WriterSeen(OTHER))
    claims.handle(Heard(Claimed(OLD, OTHER, 5)))
    assert claims.handle(Ticked(100.0)) == []
    assert claims.resolve(OLD) == OTHER


def test_the_first_live_holder_claims_what_a_node_has_left_that_stays_away() -> None:
    claims = started()
    for each in (DEAD, OTHER):
        claims.handle(WriterSeen(each))
    claims.handle(Holds(DEAD, [DEAD, OTHER, ME]))
    assert claims.handle(Ticked(100.0)) == [], "it lives"
    claims.handle(WriterGone(DEAD, 100.0))
    assert claims.handle(Ticked(100.0 + GONE_AFTER_S)) == [], "the other one's turn"
    claims.handle(WriterGone(OTHER, 105.0))
    assert claims.handle(Ticked(100.0 + GONE_AFTER_S - 0.1)) == []
    assert claims.handle(Ticked(100.0 + GONE_AFTER_S)) == [Claim(DEAD)]


def test_one_that_was_never_seen_is_gone_since_its_logs_are_here() -> None:
    claims = started()
    claims.handle(Holds(DEAD, [ME]))
    assert claims.handle(Ticked(0.0)) == []
    assert claims.handle(Ticked(GONE_AFTER_S - 0.1)) == []
    assert claims.handle(Ticked(GONE_AFTER_S)) == [Claim(DEAD)]


def test_one_that_comes_back_in_time_is_not_claimed() -> None:
    claims = started()
    claims.handle(Holds(DEAD, [ME]))
    claims.handle(WriterSeen(DEAD))
    claims.handle(WriterGone(DEAD, 50.0))
    claims.handle(WriterSeen(DEAD))
    assert claims.handle(Ticked(70.0)) == []
    claims.handle(WriterGone(DEAD, 80.0))
    assert claims.handle(Ticked(85.0)) == [], "the time counts anew"


def test_what_is_not_held_any_more_is_not_claimed() -> None:
    claims = started()
    claims.handle(Holds(DEAD, [ME]))
    claims.handle(Holds(DEAD, []))
    assert claims.handle(Ticked(100.0)) == []


def test_of_two_claims_the_earlier_wins_and_then_the_lower_claimer() -> None:
    first, second = Claimed(DEAD, OTHER, 5), Claimed(DEAD, ME, 6)
    assert first.wins(second)
    assert not second.wins(first)
    assert Claimed(DEAD, ME, 5).wins(Claimed(DEAD, OTHER, 5))
    assert not Claimed(DEAD, OTHER, 5).wins(Claimed(DEAD, ME, 5))


def test_who_has_lost_lets_go() -> None:
    claims = started(DEAD)
    claims.handle(WriterSeen(OTHER))
    claims.handle(Heard(Claimed(DEAD, ME, 6)))
    winner = Claimed(DEAD, OTHER, 5, (("q", 7),))
    assert claims.handle(Heard(winner)) == [CancelClaim(DEAD)]
    assert claims.resolve(DEAD) == OTHER
    assert claims.handle(Heard(Claimed(DEAD, ME, 6))) == [CancelClaim(DEAD)]
    assert claims.known == [winner]


def test_who_has_won_hears_of_the_loser_and_goes_on() -> None:
    claims = started()
    claims.handle(Heard(Claimed(DEAD, ME, 5)))
    assert claims.handle(Heard(Claimed(DEAD, OTHER, 6))) == []
    assert claims.resolve(DEAD) == ME


def test_a_claim_that_is_late_on_its_way_loses_to_the_one_that_was_heard_meanwhile() -> None:
    claims = started(OLD)
    assert claims.handle(Ticked(5.0)) == [Claim(OLD)]
    winner = Claimed(OLD, OTHER, 3)
    assert claims.handle(Heard(winner)) == []
    assert claims.handle(Heard(Claimed(OLD, ME, 4))) == [CancelClaim(OLD)]


def test_a_writer_that_is_alive_wins_over_all() -> None:
    claims = started()
    claims.handle(Heard(Claimed(DEAD, ME, 5)))
    assert claims.handle(WriterSeen(DEAD)) == [CancelClaim(DEAD)]
    assert claims.resolve(DEAD) == DEAD
    assert claims.handle(Heard(Claimed(DEAD, OTHER, 1))) == []
    assert claims.resolve(DEAD) == DEAD
    assert claims.handle(Heard(Claimed(DEAD, ME, 5))) == [CancelClaim(DEAD)]
    assert claims.known == []


def test_an_earlier_claim_of_our_own_that_others_have_kept_is_ours_all_the_same() -> None:
    claims = started()
    first, second = Claimed(DEAD, ME, 5), Claimed(DEAD, ME, 9)
    claims.handle(Heard(first))
    claims.handle(WriterSeen(DEAD))
    claims.handle(WriterGone(DEAD, 20.0))
    assert claims.handle(Heard(first)) == [TakeOver(DEAD)]
    assert claims.handle(Heard(second)) == []
    assert claims.resolve(DEAD) == ME


def test_nobody_claims_what_we_write_ourselves() -> None:
    claims = started()
    assert claims.handle(Heard(Claimed(ME, OTHER, 1))) == [Deny(Claimed(ME, ME, 1))]
    assert claims.handle(WriterGone(ME, 1.0)) == []
    assert claims.resolve(ME) == ME


def test_claims_are_followed_to_a_live_incarnation() -> None:
    claims = started()
    claims.handle(Heard(Claimed(DEAD, OLD, 1)))
    claims.handle(Heard(Claimed(OLD, OTHER, 2)))
    assert claims.resolve(DEAD) is None
    claims.handle(WriterSeen(OTHER))
    assert claims.resolve(DEAD) == OTHER
    claims.handle(Heard(Claimed(THIRD, broker("x"), 1)))
    claims.handle(Heard(Claimed(broker("x"), THIRD, 1)))
    assert claims.resolve(THIRD) is None, "a circle has no end"


def test_who_takes_over_a_claimer_goes_on_with_what_it_had_claimed() -> None:
    claims = started(OLD)
    claims.handle(Heard(Claimed(DEAD, OLD, 1)))
    claims.handle(Heard(Claimed(THIRD, DEAD, 1)))
    assert claims.inherited(OLD) == [DEAD, THIRD]
    taken = claims.handle(Heard(Claimed(OLD, ME, 5)))
    assert taken == [TakeOver(OLD), TakeOver(DEAD), TakeOver(THIRD)]
    winner = Claimed(OLD, OTHER, 4)
    gone = claims.handle(Heard(winner))
    assert gone == [CancelClaim(each) for each in (OLD, DEAD, THIRD)]


def test_claims_are_bounded() -> None:
    claims = started()
    for number in range(CLAIMS_MAX + 5):
        claims.handle(Heard(Claimed(BrokerId(number.to_bytes(16, "big")), OTHER, 1)))
    assert len(claims.known) == CLAIMS_MAX


# Nodes together -----------------------------------------------------------------------------------

HOLDERS = [broker(name) for name in "abc"]
ORIGIN = broker("origin")


@dataclass(slots=True)
class Node:
    claims: Claims
    has: bool = False
    """Whether it takes the origin's tasks for its own."""
    inbox: list[Claimed] = field(default_factory=list[Claimed])
    sees_origin: bool = False


class NodesTogether(RuleBasedStateMachine):
    """Three holders of one origin. They hear of each other late, and do not see the same; when all
    has been heard and all see the same, one of them has the tasks, and all know which."""

    @initialize()
    def begin(self) -> None:
        self.at_s = 0.0
        self.now_us = 0
        self.alive = False
        self.nodes = {each: Node(Claims(each)) for each in HOLDERS}
        for me, node in self.nodes.items():
            node.claims.handle(Started([], 0.0))
            node.claims.handle(Holds(ORIGIN, [*HOLDERS]))
            for other in HOLDERS:
                if other != me:
                    node.claims.handle(WriterSeen(other))

    def act(self, me: BrokerId, actions: list[Action]) -> None:
        node = self.nodes[me]
        for action in actions:
            match action:
                case Claim(origin):
                    self.now_us += 1
                    claimed = Claimed(origin, me, self.now_us % 5)
                    for other in self.nodes.values():
                        other.inbox.append(claimed)
                case TakeOver():
                    assert not node.has
                    node.has = True
                case CancelClaim():
                    node.has = False

    @rule(step_s=st.sampled_from([1.0, 6.0, 11.0]), who=st.sampled_from(HOLDERS))
    def tick(self, step_s: float, who: BrokerId) -> None:
        self.at_s += step_s
        self.act(who, self.nodes[who].claims.handle(Ticked(self.at_s)))

    @rule(who=st.sampled_from(HOLDERS), place=st.integers(0, 9))
    def hear(self, who: BrokerId, place: int) -> None:
        node = self.nodes[who]
        if node.inbox:
            claimed = node.inbox.pop(place % len(node.inbox))
            self.act(who, node.claims.handle(Heard(claimed)))

    @rule(who=st.sampled_from(HOLDERS), other=st.sampled_from(HOLDERS), there=st.booleans())
    def see_each_other(self, who: BrokerId, other: BrokerId, there: bool) -> None:
        if who != other:
            event = WriterSeen(other) if there else WriterGone(other, self.at_s)
            self.act(who, self.nodes[who].claims.handle(event))

    @rule(who=st.sampled_from(HOLDERS))
    def see_the_origin(self, who: BrokerId) -> None:
        """It is there, behind a partition, and some see it."""
        self.act(who, self.nodes[who].claims.handle(WriterSeen(ORIGIN)))
        self.nodes[who].sees_origin = True

    @precondition(lambda self: any(node.sees_origin for node in self.nodes.values()))
    @rule(who=st.sampled_from(HOLDERS))
    def lose_the_origin(self, who: BrokerId) -> None:
        self.act(who, self.nodes[who].claims.handle(WriterGone(ORIGIN, self.at_s)))
        self.nodes[who].sees_origin = False

    def teardown(self) -> None:
        if hasattr(self, "nodes"):
            self.heal()
            self.tell_all()
            owners = {node.claims.resolve(ORIGIN) for node in self.nodes.values()}
            (owner,) = owners
            assert owner in HOLDERS
            having = [me for me, node in self.nodes.items() if node.has]
            assert having == [owner]

    def heal(self) -> None:
        for who in HOLDERS:
            self.lose_the_origin_if_seen(who)
            for other in HOLDERS:
                self.see_each_other(who, other, True)

    def lose_the_origin_if_seen(self, who: BrokerId) -> None:
        if self.nodes[who].sees_origin:
            self.lose_the_origin(who)

    def tell_all(self) -> None:
        """Time passes, and each tells the others what it knows, as on new links."""
        for _ in range(4):
            for who in HOLDERS:
                for other in self.nodes.values():
                    other.inbox += self.nodes[who].claims.known
            for who, node in self.nodes.items():
                while node.inbox:
                    self.hear(who, 0)
            for who in HOLDERS:
                self.tick(20.0, who)


NodesTogether.TestCase.settings = settings(max_examples=200, deadline=None)
TestNodesTogether = NodesTogether.TestCase
