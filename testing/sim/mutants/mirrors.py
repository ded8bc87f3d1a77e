"""Bugs in what is on a second disk."""

from typing import Any

from busnode.node.copies import Copies
from busnode.node.mirroring import MIRRORED, Mirroring, MirrorStream
from busnode.node.publishing import Publishing
from busnode.node.receipts import LOCAL, Receipts
from busnode.testing.sim.mutants.mutant import DISK, LINKS, SLOW, Patch, mutant, short
from busnode.wire.control import Mirrored, encode_trusted


@mutant("acks do not wait for the mirror", SLOW)
def ack_before_mirror(patch: Patch) -> None:
    def safe(self: Any, log: Any) -> Any:
        return log.committed_no, MIRRORED if self.in_force else LOCAL

    patch.set(Mirroring, "safe", safe)


@mutant("acks wait for no disk", SLOW)
def ack_before_fsync(patch: Patch) -> None:
    add = Receipts.__dict__["add"]

    def add_and_ack(self: Any, log: Any, receipt: Any) -> None:
        add(self, log, receipt)
        rows = [(receipt.first_seq, receipt.batches, receipt.first_no)]
        level = self.safe(log)[1]
        receipt.session.acked(log.log_id.broker_id, level, rows)

    def settle(self: Any, logs: Any) -> None:
        for log in logs:
            for receipt in self._waiting.pop(log, ()):
                receipt.session.committed(receipt.size_bytes)

    patch.set(Receipts, "add", add_and_ack)
    patch.set(Receipts, "settle", settle)


@mutant("a message that is on one disk is called mirrored", LINKS)
def wrong_level(patch: Patch) -> None:
    before = Mirroring.__dict__["safe"]

    def safe(self: Any, log: Any) -> Any:
        return before(self, log)[0], MIRRORED

    patch.set(Mirroring, "safe", safe)


@mutant("a mirror answers for what it has not synced yet", SLOW)
def mirror_acks_before_fsync(patch: Patch) -> None:
    take = Copies.__dict__["take"]

    def take_and_ack(self: Any, origin: Any, chunk: Any, view: Any, run: Any) -> None:
        take(self, origin, chunk, view, run)
        rows = [(chunk.topic, chunk.last_no)]
        origin.send(encode_trusted(Mirrored, chunk.broker_id, rows))

    patch.set(Copies, "take", take_and_ack)


@mutant("a mirror tells how far it has written, not how far it has synced", SLOW)
def mirror_tells_written(patch: Patch) -> None:
    def committed(self: Any, logs: Any) -> Any:
        moved = [log for log in logs if log.log_id.broker_id in self._writers]
        for log in moved:
            broker_id, topic = log.log_id
            rows = [(topic, log.next_no - 1)]
            self._writers[broker_id].send(encode_trusted(Mirrored, broker_id, rows))
        return moved

    patch.set(Copies, "committed", committed)


@mutant("a mirror leaves out a range now and then", short("copies", kill=1, wiped_disk=1))
def mirror_skips_range(patch: Patch) -> None:
    take = Copies.__dict__["take"]
    taken = 0

    def take_most(self: Any, origin: Any, chunk: Any, view: Any, run: Any) -> None:
        nonlocal taken
        taken += 1
        log = self._store.get((chunk.broker_id, chunk.topic))
        if taken % 7 == 0 and log is not None and run.first_no == log.next_no:
            log.skip_to(log.next_no + run.count)
            return
        take(self, origin, chunk, view, run)

    patch.set(Copies, "take", take_most)


@mutant("a new mirror is sent nothing of what was there before it",
        short("changes", mirror_change=3, wiped_disk=2, kill=2, restart=1, partition=1),
        by="all is well 30 s after the last heal")  # fmt: skip
def mirror_does_not_catch_up(patch: Patch) -> None:
    async def begin(self: Any) -> None:
        self.has_begun = True
        now = self.began_at = self._clock.monotonic()
        for log in self._store.logs():
            if log.log_id.broker_id == self.broker_id:
                self.progress.synced(log.log_id, log.committed_no, now)

    patch.set(MirrorStream, "_begin", begin)


@mutant("a receipt names the number behind its message", LINKS, by="no number has two bodies")
def receipt_off_by_one(patch: Patch) -> None:
    add = Receipts.__dict__["add"]

    def add_wrong(self: Any, log: Any, receipt: Any) -> None:
        add(self, log, receipt._replace(first_no=receipt.first_no + 1))

    patch.set(Receipts, "add", add_wrong)


@mutant("a mirror whose link is lost is still waited for", LINKS)
def lost_mirror_is_kept(patch: Patch) -> None:
    def unlinked(self: Any, link: Any) -> None:
        del self._links[link.broker_id]

    def watch(self: Any) -> None:
        del self

    patch.set(Mirroring, "unlinked", unlinked)
    patch.set(Mirroring, "watch", watch)


@mutant("who demands a mirror is acked without one", LINKS)
def demand_ignored(patch: Patch) -> None:
    def needs_mirror(self: Any, publisher: Any, run: Any) -> bool:
        del self, publisher, run
        return False

    patch.set(Publishing, "_needs_mirror", needs_mirror)


@mutant("a message that cannot be stored is acked all the same", DISK)
def refusal_becomes_ack(patch: Patch) -> None:
    def refuse(self: Any, log: Any, error: Any) -> None:
        del error
        for receipt in self._waiting.pop(log, ()):
            receipt.session.committed(receipt.size_bytes)
            rows = [(receipt.first_seq, receipt.batches, receipt.first_no)]
            receipt.session.acked(log.log_id.broker_id, LOCAL, rows)

    patch.set(Receipts, "refuse", refuse)
