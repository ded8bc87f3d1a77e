"""Holders of the same logs compare their copies now and then, so that none rots unseen.

One log after the other is read in the background, both hashes of each record are checked, and
another holder is asked for the digest of the same range; it reads its copy in the same way. What is
damaged at either side is a hole from then on, and mended like any other.
"""

import logging
from collections import deque
from typing import Final, Protocol

import trio

from busnode.node.event_kinds import COPIES_DIFFER
from busnode.node.events import Tell, log_only
from busnode.node.mending import Mending
from busnode.node.peer_link import PeerLink
from busnode.node.steps import carry_out
from busnode.replication.comparison import Verdict, judge
from busnode.replication.throttle import Throttle
from busnode.segments.damage import Hole
from busnode.segments.digest import digest_steps, next_steps
from busnode.segments.store import Log, Store
from busnode.wire.control import Compare, Compared, encode_trusted
from busnode.wire.errors import StorageError
from busnode.wire.fields import U64_MAX
from busnode.wire.ids import BrokerId, LogId, MsgNo, Topic
from busnode.wire.limits import MIB
from busnode.world.clock import Clock
from busnode.world.files import Files

logger = logging.getLogger(__name__)

RANGE_BYTES: Final = 4 * MIB
"""What is compared at once."""

BYTES_PER_S: Final = 16.0 * MIB
"""How fast logs are read for it: little beside what one processor hashes; 100 GB in two hours."""

ANSWER_S: Final = 10.0
"""How long another node may take: it does one after the other."""

ASKED_MAX: Final = 64
"""Questions of other nodes that wait; each asks for one at a time."""


class Partners(Protocol):
    """With whom copies are compared."""

    def partners_for(self, broker_id: BrokerId) -> list[PeerLink]:
        """Links to other holders of an incarnation's logs whom this node asks."""
        ...


class Asker(Protocol):
    """The session of a node that has asked."""

    def send(self, frame: bytes) -> None: ...


class Comparing:
    """Asks others, and answers them. `run` it."""

    def __init__(
        self,
        files: Files,
        store: Store,
        clock: Clock,
        every_s: float,
        partners: Partners,
        mending: Mending,
        tell: Tell = log_only,
    ) -> None:
        self.compared = 0
        """Messages that are the same in two copies."""
        self.damaged = 0
        """Ranges in which this copy was found to be damaged."""
        self.different = 0
        """Ranges that are good in both copies, and not the same."""
        self._files = files
        self._store = store
        self._clock = clock
        self._every_s = every_s
        self._partners = partners
        self._mending = mending
        self._tell = tell
        self._throttle = Throttle(BYTES_PER_S)
        self._asked: deque[tuple[Asker, Compare]] = deque()
        self._woken = trio.Event()
        self._answers: dict[int, tuple[trio.Event, list[bytes]]] = {}
        self._number = 0

    # Asking ---------------------------------------------------------------------------------------

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._answer_again_and_again)
            while True:
                await self._clock.sleep(self._every_s)
                for log in self._store.logs():
                    await trio.lowlevel.checkpoint()
                    for link in self._partners.partners_for(log.log_id.broker_id):
                        try:
                            await self._compare(log, link)
                        except (OSError, StorageError) as error:
                            # It cannot be read now; whoever reads it hears of it, too.
                            logger.warning("%s cannot be compared: %s", log.log_id, error)

    async def _compare(self, log: Log, link: PeerLink) -> None:
        after_no = log.first_no - 1
        while True:
            found = await carry_out(self._files, next_steps(log.reader(after_no), RANGE_BYTES))
            if found is None:
                return
            after_no = found.last_no
            if isinstance(found, Hole):
                self._mending.noticed(log, found)
                continue
            await self._clock.sleep(self._throttle.wait_s(self._clock.monotonic()))
            self._throttle.sent(found.length, self._clock.monotonic())
            mine = await self._digest(log, found.first_no, found.last_no)
            other = await self._ask(link, log.log_id, found.first_no, found.last_no)
            if other is None:
                return
            match judge(mine, other):
                case Verdict.SAME:
                    self.compared += found.last_no + 1 - found.first_no
                case Verdict.DIFFERENT:
                    self.different += 1
                    self._tell(
                        COPIES_DIFFER, log=log.log_id, first_no=found.first_no,
                        last_no=found.last_no, name=link.name,
                    )  # fmt: skip
                case Verdict.LACKING:
                    pass

    async def _digest(self, log: Log, first_no: MsgNo, last_no: MsgNo) -> bytes:
        """Of this node's copy; what is damaged in it is examined."""
        found = await carry_out(self._files, digest_steps(log, first_no, last_no))
        if found.damaged_no is not None:
            self.damaged += 1
            await self._mending.examine(log, found.damaged_no)
        return found.digest

    async def _ask(
        self, link: PeerLink, log_id: LogId, first_no: MsgNo, last_no: MsgNo
    ) -> bytes | None:
        """The digest of another copy; None when the node does not answer."""
        self._number += 1
        number, answered, answer = self._number, trio.Event(), list[bytes]()
        self._answers[number] = answered, answer
        try:
            link.tell(Compare(number, *log_id, first_no, last_no))
            with trio.move_on_after(ANSWER_S):
                await answered.wait()
        finally:
            del self._answers[number]
        return answer[0] if answer else None

    def answered(self, message: Compared) -> None:
        if message.compare in self._answers:
            answered, answer = self._answers[message.compare]
            answer.append(message.digest)
            answered.set()

    # Answering ------------------------------------------------------------------------------------

    def asked(self, asker: Asker, message: Compare) -> None:
        if len(self._asked) >= ASKED_MAX or not 0 < message.first_no <= message.last_no < U64_MAX:
            asker.send(encode_trusted(Compared, message.compare, b""))
            return
        self._asked.append((asker, message))
        self._woken.set()

    async def _answer_again_and_again(self) -> None:
        while True:
            await self._woken.wait()
            self._woken = trio.Event()
            while self._asked:
                asker, message = self._asked.popleft()
                asker.send(encode_trusted(Compared, message.compare, await self._answer(message)))

    async def _answer(self, message: Compare) -> bytes:
        log = self._store.get(LogId(message.broker_id, Topic(message.topic)))
        await trio.lowlevel.checkpoint()
        if log is None or message.last_no > log.committed_no:
            return b""
        try:
            return await self._digest(log, MsgNo(message.first_no), MsgNo(message.last_no))
        except (OSError, StorageError) as error:
            logger.warning("%s cannot be compared: %s", log.log_id, error)
            return b""
