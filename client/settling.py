"""Settling: what workers say of their tasks, on its way to whoever owns them and back.

Tasks of one owner and queue with the same word go together: what is said while a frame is in flight
goes as one next frame, so that a worker which completes one task after the other pays for a round
trip and a thousand of them share one. Nothing here is done for each task but list comprehensions.

What was said is said again at each new home, because whether the one before has passed it on nobody
knows; an owner knows a repeat by the fence. It is given up when the lease would have ended.
"""

from collections.abc import Iterable, Sequence
from typing import Final, Protocol

import anyio
import anyio.abc

from busnode.client.backoff import Backoff
from busnode.client.bell import Bell
from busnode.client.patience import Patience
from busnode.client.refusal import refusal
from busnode.client.settlement import LOCAL, Asker, Part, Pile, Settlement, Word, failure
from busnode.client.task import EXTEND, RELEASE, Task
from busnode.wire.control import Control, TaskDone, TaskSettled
from busnode.wire.errors import BusnodeError, LeaseExpired, LimitReached, Unavailable
from busnode.wire.ids import BrokerId
from busnode.wire.limits import TASKS_MAX
from busnode.world.clock import Clock
from busnode.world.entropy import Entropy

SETTLING_MAX: Final = 100_000
"""Tasks of one client that are being settled: more than its leases allow unless it is misused."""

FRAMES_MAX: Final = 8
"""Full frames in flight for one owner, queue and word. A frame that is not full goes alone."""

MIRRORED: Final = "mirrored"

GRACE_S: Final = 10.0
"""How long after the end of a lease an answer may come: the owner may have heard in time."""


class SettlingHost(Protocol):
    """What settling asks of its bus."""

    clock: Clock
    patience: Patience
    tasks: anyio.abc.TaskGroup

    def send(self, message: Control) -> bool: ...


class Settling:
    """All that a client has said of its tasks and has no answer to yet."""

    def __init__(self, host: SettlingHost, entropy: Entropy, worker: int) -> None:
        self.count = 0
        """Tasks that nobody has answered for."""
        self.progress = Bell()
        """Rings when something was answered."""
        self._host = host
        self._entropy = entropy
        self._worker = worker
        self._piles: dict[Word, Pile] = {}
        self._flights: dict[int, tuple[Pile, list[Part], int]] = {}
        """By number what was said, and what its first worker has asked for along with it."""
        self._open: dict[Settlement, None] = {}
        self._last_number = 0
        self._watched_until: float | None = None
        """When the watch looks next; None while there is none."""
        self._sooner = Bell()

    # What is said ---------------------------------------------------------------------------------

    async def settle(
        self,
        verb: str,
        tasks: Sequence[Task],
        error: str = "",
        lease_s: float = 0.0,
        asker: Asker | None = None,
    ) -> str:
        """Say it of tasks of any owner and queue, and wait for all answers; at which level it is
        safe for all of them. What the asker wants is asked for along with it.

        Raises NotSettled with those that were refused.
        """
        self._host.patience.check()
        if self.count + len(tasks) > SETTLING_MAX:
            raise LimitReached(
                f"{self.count} tasks are being settled and {SETTLING_MAX} may be: wait for some"
            )
        said = [
            self._say(Word(owner, queue, verb, error, lease_s), group, asker)
            for (owner, queue), group in _grouped(tasks).items()
        ]
        if verb != EXTEND:
            for task in tasks:
                task.settled = True
        for settlement in said:
            while settlement.left:
                await settlement.bell.wait()
        refused = [each for settlement in said for each in settlement.refused]
        if refused:
            raise failure(verb, refused)
        return next((each.level for each in said if each.level == LOCAL), MIRRORED)

    def let_go(self, tasks: Sequence[Task]) -> None:
        """Give tasks back that nobody has begun. Where that cannot be said their leases end."""
        if self._host.patience.failure is not None or self.count + len(tasks) > SETTLING_MAX:
            return
        for (owner, queue), group in _grouped(tasks).items():
            self._say(Word(owner, queue, RELEASE), group)

    def _say(self, word: Word, tasks: Sequence[Task], asker: Asker | None = None) -> Settlement:
        """Put it on its way, where it stays whether or not somebody waits for the answer."""
        until = max([task.expires_at for task in tasks])
        settlement = Settlement(len(tasks), until, self._host.clock.monotonic(), asker)
        self.count += len(tasks)
        self._open[settlement] = None
        pile = self._piles.get(word)
        if pile is None:
            pile = self._piles[word] = Pile(word)
        pile.add(settlement, tasks)
        self._send(pile)
        self._watch_until(until)
        return settlement

    def _send(self, pile: Pile) -> None:
        """What there is, unless something of it is in flight and no frame would be full."""
        while pile.parts and not self._host.patience.away:
            if pile.flying and (pile.tasks < TASKS_MAX or pile.flying >= FRAMES_MAX):
                return
            parts = pile.take()
            tasks = [task for _, each in parts for task in each]
            if not tasks:
                continue
            self._last_number += 1
            poll = want = 0
            asker = parts[0][0].asker  # others ask for themselves
            if asker is not None:
                poll, want = asker.number, asker.ask_along()
            self._flights[self._last_number] = pile, parts, want
            pile.flying += 1
            for settlement, _ in parts:
                settlement.in_flight += 1
            word = pile.word
            self._host.send(
                TaskDone(
                    self._last_number,
                    word.owner,
                    word.queue,
                    word.verb,
                    [task.number for task in tasks],
                    [task.fence for task in tasks],
                    word.error,
                    word.lease_s,
                    self._worker,
                    poll,
                    want,
                )
            )
        if pile.empty:
            self._piles.pop(pile.word, None)

    # What is answered -----------------------------------------------------------------------------

    def settled(self, message: TaskSettled) -> None:
        """One frame is answered; what could not be told to its owner is told again later."""
        codes = {code: _error(code) for _, code in message.refused}
        errors = {place: codes[code] for place, code in message.refused}
        self._answered(message.done, errors, message.level)

    def refused(self, number: int, error: BusnodeError) -> None:
        """A whole frame was refused."""
        if number in self._flights:
            _, parts, want = self._flights[number]
            count = sum(len(tasks) for _, tasks in parts)
            asker = parts[0][0].asker
            if want and asker is not None:
                asker.not_asked(want)
            self._answered(number, dict.fromkeys(range(count), error), LOCAL)

    def _answered(self, number: int, errors: dict[int, BusnodeError], level: str) -> None:
        if number not in self._flights:
            return
        pile, parts, _ = self._flights.pop(number)
        pile.flying -= 1
        first = 0
        for settlement, tasks in parts:
            settlement.in_flight -= 1
            if settlement.left:
                settlement.reached(level)
                self._answer(pile, settlement, tasks, errors, first)
            first += len(tasks)
        if pile.later:
            self._retry_later(pile)
        else:
            pile.backoff = Backoff()
        self._send(pile)
        self.progress.ring()

    def _answer(
        self,
        pile: Pile,
        settlement: Settlement,
        tasks: Sequence[Task],
        errors: dict[int, BusnodeError],
        first: int,
    ) -> None:
        accepted = tasks
        again: list[Task] = []
        if errors:
            told = [(task, errors.get(place)) for place, task in enumerate(tasks, first)]
            accepted = [task for task, error in told if error is None]
            again = [task for task, error in told if isinstance(error, Unavailable)]
            settlement.refused += [
                (task, error)
                for task, error in told
                if error is not None and not isinstance(error, Unavailable)
            ]
        if again:
            pile.later.append((settlement, again))
            self._watch_until(settlement.until)
        if pile.word.verb == EXTEND:
            for task in accepted:
                task.expires_at = settlement.asked_at + pile.word.lease_s
        self._count_off(settlement, len(tasks) - len(again))

    def _count_off(self, settlement: Settlement, tasks: int) -> None:
        settlement.left -= tasks
        self.count -= tasks
        if not settlement.left:
            self._open.pop(settlement, None)
            settlement.bell.ring()

    def _retry_later(self, pile: Pile) -> None:
        if pile.flying:
            return  # the last of them does it
        pause_s = pile.backoff.failed(self._entropy.random())
        pile.flying += 1  # what is said meanwhile goes along
        self._host.tasks.start_soon(self._retry, pile, pause_s)

    async def _retry(self, pile: Pile, pause_s: float) -> None:
        await self._host.clock.sleep(pause_s)
        pile.flying -= 1
        later, pile.later = pile.later, []
        pile.put_back(later)
        self._send(pile)

    # Leases end -----------------------------------------------------------------------------------

    def _watch_until(self, until: float) -> None:
        if self._watched_until is None:
            self._watched_until = until
            self._host.tasks.start_soon(self._watch)
        elif until < self._watched_until:
            self._watched_until = until
            self._sooner.ring()

    async def _watch(self) -> None:
        """Give up what could not be said in time."""
        while self._watched_until is not None:
            now = self._host.clock.monotonic()
            if now < self._watched_until:
                with anyio.move_on_after(self._watched_until - now):
                    await self._sooner.wait()
                continue
            over = [each for each in self._open if _end(each) <= now]
            if over:
                text = "its lease would have ended before its owner could be told"
                self._give_up(over, LeaseExpired(text))
            self._watched_until = min(map(_end, self._open), default=None)

    def _give_up(self, over: Iterable[Settlement], error: BusnodeError) -> None:
        """Those of their tasks that are not answered for are refused."""
        over = dict.fromkeys(over)
        for parts in self._all_parts():
            for settlement, tasks in parts:
                if settlement in over:
                    settlement.refused += [(task, error) for task in tasks]
        for settlement in over:
            self._count_off(settlement, settlement.left)
        for pile in list(self._piles.values()):
            pile.prune()
            if pile.empty:
                del self._piles[pile.word]
        self.progress.ring()

    def _all_parts(self) -> Iterable[Iterable[Part]]:
        for _, parts, _ in self._flights.values():
            yield parts
        for pile in self._piles.values():
            yield pile.parts
            yield pile.later

    # Homes come and go ----------------------------------------------------------------------------

    @property
    def in_flight(self) -> bool:
        return bool(self._flights)

    def arrived(self) -> None:
        """There is a home: say there what has no answer."""
        for pile in list(self._piles.values()):
            self._send(pile)

    def left(self) -> None:
        """The home is gone, and with it what was in flight."""
        flights, self._flights = self._flights, {}
        for pile, parts, _ in reversed(flights.values()):
            pile.flying -= 1
            for settlement, _ in parts:
                settlement.in_flight -= 1
            pile.put_back(parts)
        for settlement in self._open:
            self._watch_until(settlement.until)
        self.progress.ring()

    def failed(self, error: BusnodeError) -> None:
        """There will be no home any more."""
        self._give_up(list(self._open), error)


def _end(settlement: Settlement) -> float:
    """When to give it up. What is in flight may have reached its owner in time."""
    return settlement.until + (GRACE_S if settlement.in_flight else 0.0)


def _grouped(tasks: Sequence[Task]) -> dict[tuple[BrokerId, str], Sequence[Task]]:
    """By owner and queue, which is nearly always one."""
    if not tasks:
        return {}
    keys = dict.fromkeys((task.owner, task.queue) for task in tasks)
    if len(keys) == 1:
        return dict.fromkeys(keys, tasks)
    groups: dict[tuple[BrokerId, str], Sequence[Task]] = {}
    for key in keys:
        groups[key] = [task for task in tasks if (task.owner, task.queue) == key]
    return groups


def _error(code: str) -> BusnodeError:
    if code == LeaseExpired.code:
        return LeaseExpired("its lease has ended, or it is another worker's")
    return refusal(code, "its owner refused that")
