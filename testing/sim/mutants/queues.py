"""Bugs in task queues, and in how nodes go on with the tasks of others."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from busnode.node.batch_reader import WAITING, BatchReader
from busnode.node.mirroring import MIRRORED, Mirroring
from busnode.node.task_claims import TaskClaims
from busnode.node.task_queue import JOURNAL
from busnode.node.task_takeover import Takeover
from busnode.segments.store import Cold, Range
from busnode.tasks.events import Answer
from busnode.tasks.failures import Failures
from busnode.tasks.intake import Intake
from busnode.tasks.leases import Leases
from busnode.tasks.places import Places
from busnode.tasks.queue import EXPIRED, TaskQueue
from busnode.tasks.recovery import Recovery, Unfinished
from busnode.testing.sim.mutants.mutant import Patch, mutant
from busnode.testing.sim.schedule import Profile


def about_tasks(name: str, **weights: float) -> Profile:
    """A short run about tasks, under these faults and no others."""
    return Profile(
        name, weights, faults=8, trouble_s=14.0, lasts_s=(0.2, 5.0), about="tasks", nodes=3
    )


DEATHS = about_tasks("owners die", kill=3, power_loss=2, restart=1)
SLOW = about_tasks("slow disks", slow_disk=4, slow_link=2)
READS = about_tasks("reads fail", read_eio=1)
CALM = about_tasks("calm", kill=1)


@mutant("a worker is answered before its word is durable", SLOW)
def settled_before_durable(patch: Patch) -> None:
    def answer(self: Any, done: Any, refused: Any, *, waits: bool) -> None:
        del waits
        self._actions.append(Answer(done, refused))

    patch.set(TaskQueue, "_answer", answer)


@mutant("what is told of tasks does not wait for the mirror", SLOW)
def journal_not_mirrored(patch: Patch) -> None:
    before = Mirroring.__dict__["safe"]

    def safe(self: Any, log: Any) -> Any:
        if log.log_id.topic.startswith(JOURNAL):
            return log.committed_no, MIRRORED
        return before(self, log)

    patch.set(Mirroring, "safe", safe)


def _filter(patch: Patch, keeps: Callable[[Unfinished], Unfinished | None]) -> None:
    before = Recovery.__dict__["unfinished"]

    def unfinished(self: Any, first_no: int, enqueued_us: Any, options: Any) -> Any:
        found = before(self, first_no, enqueued_us, options)
        return [each for each in map(keeps, found) if each is not None]

    patch.set(Recovery, "unfinished", unfinished)


@mutant("who goes on with tasks forgets those that are delayed", DEATHS)
def takeover_forgets_delayed(patch: Patch) -> None:
    _filter(patch, lambda each: None if each.carried.due_us else each)


@mutant("who goes on with tasks forgets dead letters", DEATHS)
def takeover_forgets_dead_letters(patch: Patch) -> None:
    _filter(patch, lambda each: None if each.carried.dead_us is not None else each)


@mutant("who goes on with tasks begins to count attempts anew", DEATHS)
def takeover_resets_attempts(patch: Patch) -> None:
    def reset(each: Unfinished) -> Unfinished:
        return replace(each, carried=replace(each.carried, attempts=0))

    _filter(patch, reset)


@mutant("who goes on with tasks does them at once, when they are due later", DEATHS)
def takeover_forgets_due_times(patch: Patch) -> None:
    _filter(patch, lambda each: replace(each, carried=replace(each.carried, due_us=0)))


@mutant("who goes on with tasks begins with fences that were used", DEATHS)
def takeover_reuses_fences(patch: Patch) -> None:
    _filter(patch, lambda each: replace(each, carried=replace(each.carried, fence=0)))


@mutant("who goes on with tasks does not read the journal", DEATHS)
def takeover_ignores_journal(patch: Patch) -> None:
    async def recover(self: Any, journal: Any) -> Recovery:
        del journal
        return Recovery(self.origin)

    patch.set(Takeover, "_recover", recover)


@mutant("a takeover that is begun again takes all tasks again", DEATHS)
def carried_counted_twice(patch: Patch) -> None:
    before = TaskClaims.__dict__["_take_over"]
    takes = Intake.__dict__["_takes"]

    async def take_over(self: Any, origin: Any, others: Any = None) -> Any:
        if others is None:
            await before(self, origin, others)
        return await before(self, origin, others)

    def takes_all(self: Any, carried: Any, origin: Any) -> bool:
        return bool(takes(self, carried, origin)) or origin != self._broker_id

    def known(self: Any, origin: Any, queue: Any) -> Any:
        return self._agreement.finished.of(origin, queue)

    patch.set(TaskClaims, "_take_over", take_over)
    patch.set(TaskClaims, "_known", known)
    patch.set(Intake, "_takes", takes_all)


@mutant("a task whose lease has ended goes to the end of its queue", CALM)
def expired_to_the_end(patch: Patch) -> None:
    before = Places.__dict__["put"]

    def put(self: Any, number: int, due_us: int, now_us: int) -> None:
        row = self.rows.get(number)
        if row is not None and row.history and row.history[-1].error == EXPIRED:
            self.ready.add(number, -9)
        else:
            before(self, number, due_us, now_us)

    patch.set(Places, "put", put)


@mutant("fences are not checked", CALM)
def fence_not_checked(patch: Patch) -> None:
    def take(self: Any, number: int, fence: int, worker: int, at_s: float) -> Any:
        del fence, worker, at_s
        grant = self.grants.get(number)
        if grant is not None:
            self.end(number)
        return grant

    patch.set(Leases, "take", take)


@mutant("leases end a second too early", CALM)
def lease_ends_early(patch: Patch) -> None:
    before = Leases.__dict__["expire"]

    def expire(self: Any, at_s: float) -> Any:
        return before(self, at_s + 1.0)

    patch.set(Leases, "expire", expire)


@mutant("a retry does not wait", CALM)
def retry_at_once(patch: Patch) -> None:
    def dues(self: Any, numbers: Any, now_us: int, random: float) -> Any:
        found = before(self, numbers, now_us, random)
        return {number: due if due < 0 else 0 for number, due in found.items()}

    before = Failures.__dict__["dues"]
    patch.set(Failures, "dues", dues)


@mutant("tasks that cannot be read for a moment are passed over", READS)
def unread_tasks_passed_over(patch: Patch) -> None:
    def read(self: Any) -> Any:
        if self._cold is not None or self._doubted_no is not None:
            return WAITING
        found = self._reader.next_in_memory(512 * 1024, 0)
        if isinstance(found, Cold):
            self._cold = found
            return WAITING
        return self._verified(found) if isinstance(found, Range) else found

    patch.set(BatchReader, "read", read)
