"""Nodes agree about the tasks of an incarnation that several of them know of.

Who holds a copy of its logs tells whoever goes on with its tasks which of them are finished, and is
told in return which of them that one knows to be finished, and which it has. What it has itself
beside that one it lets go of then, and not before: so a task is never dropped on the word of a node
that may have had no copy of it, or may never have got to it. And with what nobody is known to have
the first of the holders goes on itself, and says so.

Finished is what was completed or deleted: a number under which a task goes on no more, because it
does so under another one, is never told as finished.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from busnode.tasks.ranges import Numbers
from busnode.wire.control import Control, TaskFinished
from busnode.wire.ids import BrokerId
from busnode.wire.limits import CONTROL_ELEMENTS_MAX

NUMBERS_MAX: Final = 1 << 20
"""Numbers that another node may tell of, where no log here says how far they go: to note a range of
so many takes a millisecond."""

CHUNKS_MAX: Final = 1 << 14
"""What is kept of what others tell, in chunks of numbers and queues: some megabytes. What is told
after that puts the oldest out, whose tasks may be done again then."""

WAITING_MAX: Final = 1 << 16
"""Ranges that others have told and that nobody has looked at yet: some megabytes."""


ASK_S: Final = 1.0
ASK_S_MAX: Final = 60.0
"""How often somebody is asked for whose sake we let go of something: at first, and later on."""


class Link(Protocol):
    """A link to another node."""

    def tell(self, message: Control) -> None: ...


HEARD_MAX: Final = 16
"""Of whom parts are awaited at the same time: frames of several nodes may come mixed."""


@dataclass(slots=True)
class _Asking:
    """Tasks that are to be let go of when another has them."""

    due_s: float
    pause_s: float = ASK_S


class Agreement:
    """What was said of whose tasks, as one incarnation knows it."""

    def __init__(self) -> None:
        self.finished = Known()
        """Tasks that nobody has to care for any more."""
        self.elsewhere = Known()
        """Tasks that go on elsewhere: whoever has them lets go of them only when another has them
        itself. So nobody needs to take them over; but nobody lets go of them because of this."""
        self._compared: dict[BrokerId, Link] = {}
        """With whom an origin was compared."""
        self._leaving: dict[BrokerId, _Asking] = {}

    def lets_go(self, origin: BrokerId, now_s: float) -> None:
        """What we had taken over is another's."""
        self._leaving[origin] = _Asking(now_s)

    def keeps(self, origin: BrokerId) -> bool:
        """All of it is ours, or nothing of it is here any more; whether that is news."""
        return self._leaving.pop(origin, None) is not None

    def is_leaving(self, origin: BrokerId) -> bool:
        return origin in self._leaving

    def due(
        self,
        held: Iterable[BrokerId],
        owner_link: Callable[[BrokerId], Link | None],
        now_s: float,
    ) -> list[BrokerId]:
        """Of which origins somebody is to be told now; `held` are those whose logs are here."""
        found: list[BrokerId] = []
        for origin in {**dict.fromkeys(held), **self._leaving}:
            link = owner_link(origin)
            asking = self._leaving.get(origin)
            is_due = asking is not None and asking.due_s <= now_s
            if link is None or (self._compared.get(origin) is link and not is_due):
                continue
            self._compared[origin] = link
            if asking is not None:
                asking.due_s = now_s + asking.pause_s
                asking.pause_s = min(2 * asking.pause_s, ASK_S_MAX)
            found.append(origin)
        return found


class Known:
    """Numbers in the logs of origins, by queue. Beyond a bound what is new puts the oldest out."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[BrokerId, str], Numbers] = {}
        """What was told last is last."""
        self._chunks = 0

    def note(self, origin: BrokerId, queue: str, numbers: Numbers) -> bool:
        """Whether any of it is news."""
        known = self._forget((origin, queue))
        before = len(known)
        known.add_all(numbers)
        self._numbers[origin, queue] = known
        self._chunks += 1 + known.chunk_count
        while self._chunks > CHUNKS_MAX and len(self._numbers) > 1:
            self._forget(next(iter(self._numbers)))
        return len(known) > before

    def of(self, origin: BrokerId, queue: str) -> Numbers:
        return self._numbers.get((origin, queue), Numbers())

    def _forget(self, whose: tuple[BrokerId, str]) -> Numbers:
        known = self._numbers.pop(whose, None)
        if known is None:
            return Numbers()
        self._chunks -= 1 + known.chunk_count
        return known


class Account(NamedTuple):
    """What a node has told of one queue of an origin."""

    finished: Numbers
    held: Numbers
    elsewhere: Numbers


class Hearing:
    """What nodes tell in several frames, until all of it has come."""

    def __init__(self) -> None:
        self._heard: dict[tuple[BrokerId, BrokerId, str], tuple[int, Account]] = {}

    def hear(self, sender: BrokerId, message: TaskFinished, last_no: int) -> Account | None:
        """All that was told, of numbers up to the last that can mean anything here; None while
        parts are missing."""
        whose = sender, message.origin, message.queue
        parts, heard = self._heard.pop(whose, (0, None))
        if heard is None or message.part == 0:
            parts, heard = 0, Account(Numbers(), Numbers(), Numbers())
        if message.part != parts:
            return None
        add_ranges(heard.finished, message.finished, last_no)
        add_ranges(heard.held, message.held, last_no)
        add_ranges(heard.elsewhere, message.elsewhere, last_no)
        if parts + 1 >= message.parts:
            return heard
        self._heard[whose] = parts + 1, heard
        if len(self._heard) > HEARD_MAX:
            del self._heard[next(iter(self._heard))]
        return None


def tell(
    link: Link,
    origin: BrokerId,
    queue: str,
    finished: Numbers,
    held: Numbers,
    elsewhere: Numbers | None = None,
) -> None:
    """In one frame, or in several; also that there are none."""
    columns = [list(each.runs()) for each in (finished, held, elsewhere or Numbers())]
    most = CONTROL_ELEMENTS_MAX
    parts = max(1, *(-(-len(runs) // most) for runs in columns))
    for part in range(parts):
        over, there, others = (runs[part * most : (part + 1) * most] for runs in columns)
        link.tell(TaskFinished(origin, queue, over, there, others, part, parts))


def add_ranges(numbers: Numbers, ranges: Iterable[tuple[int, int]], last_no: int) -> None:
    """Ranges come in order: so whatever a node sends, each number is looked at once."""
    most = max(last_no, NUMBERS_MAX)
    before = 0
    for first, last in ranges:
        if before < first <= last and first <= most:
            before = min(last, most)
            numbers.add_run(first, before)


def merged(*several: Numbers) -> Numbers:
    found = Numbers()
    for numbers in several:
        found.add_all(numbers)
    return found


def without(numbers: Numbers, *others: Numbers) -> Numbers:
    found = merged(numbers)
    for each in others:
        for first, last in each.runs():
            found.discard_run(first, last)
    return found
