"""Bugs in what consumers hear of messages that are gone for good, and in what lets them go."""

from dataclasses import replace
from typing import Any

from busnode.client import consumer
from busnode.client.gaps import Gap
from busnode.client.inbox import Inbox
from busnode.node import subscriptions
from busnode.node.mending import Mending
from busnode.node.node import RunningNode
from busnode.node.outgoing import Piece
from busnode.node.subscription import Subscription
from busnode.node.subscriptions import Subscriptions
from busnode.testing.sim.mutants.mutant import GONE, ROT, Patch, mutant, short

WELL = "all is well 30 s after the last heal"
HOLES = "each log comes in order and without a hole"
SERVED = "a gap is told only where nobody can serve"
NAMED = "a gap names what is missing, once, and why"
DELETED = "a deleted byte had a reason"
UNKNOWN = "a cursor that nobody knows is a gap"


@mutant("a gap that a node tells of is kept from the user", GONE, by=HOLES)
def gap_swallowed(patch: Patch) -> None:
    def report(gap: Any, on_gap: Any) -> None:
        del gap, on_gap

    patch.set(consumer, "report_gap", report)


@mutant("a record that cannot be read is stepped over, and nobody minds a hole", GONE, by=HOLES)
def bad_record_skipped(patch: Patch) -> None:
    take = Inbox.__dict__["_take_log"]

    def no_gap(self: Any, cursor: Any, hole: Any) -> Piece:
        del self, cursor, hole
        return Piece(b"")

    def no_report(self: Any, log_id: Any, first_no: int, last_no: int, reason: str) -> None:
        del self, log_id, first_no, last_no, reason

    def take_log(self: Any, raw: bytes, run: Any, chunk: Any) -> None:
        log = (chunk.broker_id, chunk.topic)
        self.received[log] = max(self.received.get(log, 0), chunk.first_no - 1)
        take(self, raw, run, chunk)

    patch.set(Subscription, "_gap", no_gap)
    patch.set(Subscription, "report", no_report)
    patch.set(Inbox, "_take_log", take_log)


@mutant("a gap reaches one message further than what is missing", GONE, by=SERVED)
def gap_too_large(patch: Patch) -> None:
    report = Subscription.__dict__["report"]
    gap = Subscription.__dict__["_gap"]

    def report_more(self: Any, log_id: Any, first_no: int, last_no: int, reason: str) -> None:
        report(self, log_id, first_no, last_no and last_no + 1, reason)

    def gap_more(self: Any, cursor: Any, hole: Any) -> Piece:
        told: Piece = gap(self, cursor, replace(hole, last_no=hole.last_no + 1))
        return told

    patch.set(Subscription, "report", report_more)
    patch.set(Subscription, "_gap", gap_more)


@mutant("a gap is told twice", GONE, by=NAMED)
def gap_told_twice(patch: Patch) -> None:
    report = consumer.__dict__["report_gap"]

    def report_twice(gap: Gap, on_gap: Any) -> None:
        report(gap, on_gap)
        report(gap, on_gap)

    patch.set(consumer, "report_gap", report_twice)


@mutant("a cursor in what has expired moves on to what is there, in silence", GONE,
        by="a position is never ahead of its consumer")  # fmt: skip
def expired_cursor_moves_on(patch: Patch) -> None:
    place = subscriptions.__dict__["_place"]

    def place_later(log: Any, start: Any, given: Any) -> Any:
        return max(place(log, start, given), log.first_no - 1)

    patch.set(subscriptions, "_place", place_later)


@mutant("a cursor in a log that nobody has is passed over in silence",
        short("wiped", wiped_all_copies=1), by=UNKNOWN)  # fmt: skip
def unknown_cursor_ignored(patch: Patch) -> None:
    def why(self: Any, cursor: Any) -> None:
        del self, cursor

    patch.set(Subscriptions, "_unknown_why", why)


@mutant("damage is a gap at once, whoever has another copy", ROT, by=SERVED)
def damage_is_not_mended(patch: Patch) -> None:
    def ask(self: Any, log: Any, hole: Any, then: Any) -> bool:
        del self, log, hole, then
        return False

    patch.set(Mending, "ask", ask)


@mutant("retention drops what is half as old as it should be", GONE, by=DELETED)
def retention_too_early(patch: Patch) -> None:
    rules = RunningNode.__dict__["rules"]

    def hasty(self: Any) -> Any:
        right = rules(self)
        ages = {each: age_s / 2 for each, age_s in right.age_s_of.items()}
        return replace(right, age_s=right.age_s / 2, age_s_of=ages)

    patch.set(RunningNode, "rules", hasty)


@mutant("copies are kept as long as the mirror's own logs, not as long as their origin keeps them",
        GONE, by=DELETED)  # fmt: skip
def copies_expire_early(patch: Patch) -> None:
    rules = RunningNode.__dict__["rules"]

    def own(self: Any) -> Any:
        return replace(rules(self), age_s_of={})

    patch.set(RunningNode, "rules", own)
