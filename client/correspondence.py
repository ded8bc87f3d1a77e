"""Correspondence: what a client sends to services, and the replies that it waits for.

A reply goes first to the very client that sent, which says whether somebody there still waits for
it. If nobody does it goes into the queue of the service that sent, where it waits for as long as
that takes. So a reply is handed over once, at once or later.
"""

import inspect
import logging
from collections.abc import Callable
from typing import Any, Final, Protocol

import anyio

from busnode.client.bell import Bell
from busnode.client.messages import NO_HEADERS
from busnode.client.new_task import Retry
from busnode.client.providers import CONCURRENCY, Provider, ProviderHost, Request
from busnode.client.queue import Queue
from busnode.client.requests import Requests
from busnode.client.service_letters import (
    PLAIN,
    REPLIES,
    OnReply,
    Pending,
    ServiceReply,
    read,
    reply_of,
    service_queue,
    service_topic,
    write,
)
from busnode.client.task import error_text
from busnode.wire.errors import BadTask, BusnodeError, LimitReached, Refused, RequestFailed
from busnode.wire.topics import check_pattern
from busnode.world.entropy import Entropy

logger = logging.getLogger("busnode.client")

AWAITED_MAX: Final = 4096
"""Replies that one client may wait for."""

CID_BYTES_MAX: Final = 128

TAKEN: Final = b"\xc3"
NOT_TAKEN: Final = b"\xc2"
"""Whether somebody waits: msgpack's true and false."""


class CorrespondenceHost(ProviderHost, Protocol):
    @property
    def requests(self) -> Requests: ...


class Awaited:
    """A reply that somebody waits for."""

    __slots__ = ("bell", "is_pending", "reply")

    def __init__(self) -> None:
        self.bell = Bell()
        self.reply: ServiceReply | None = None
        self.is_pending = False
        """Whether the first attempt has failed: there will be no reply soon."""

    @property
    def settled(self) -> bool:
        return self.reply is not None or self.is_pending

    def outcome(self, cid: str) -> ServiceReply | Pending:
        if self.reply is None:
            return Pending(cid)
        if self.reply.error is not None:
            raise RequestFailed(self.reply.error)
        return self.reply


class Correspondence:
    """The letters of one client."""

    def __init__(
        self, host: CorrespondenceHost, queue: Callable[[str], Queue], entropy: Entropy
    ) -> None:
        self.services: dict[str, OnReply | None] = {}
        """Those that this client is, with who takes late replies."""
        self._host = host
        self._queue = queue
        self._entropy = entropy
        self._awaited: dict[str, Awaited] = {}
        self._reply_to = REPLIES.format(entropy.u64())
        self._provider: Provider | None = None
        self._one_at_a_time = anyio.Lock()

    async def send(
        self,
        to: str,
        pattern: str,
        data: Any,
        cid: str | None,
        sender: str | None,
        timeout_s: float,
        retry: Retry | None,
    ) -> ServiceReply | Pending:
        """See `Bus.send`."""
        topic, queue = service_topic(to), self._queue(service_queue(to))
        if cid is None:
            cid = f"{self._entropy.u64():016x}{self._entropy.u64():016x}"
        if type(cid) is not str or not 0 < len(cid.encode(errors="replace")) <= CID_BYTES_MAX:
            raise BadTask(f"cid {cid!r:.40}; expected a text of 1 to {CID_BYTES_MAX} bytes")
        if type(pattern) is not str or not pattern:
            raise BadTask(f"pattern {pattern!r:.40}; expected a text")
        if sender is None and len(self.services) == 1:
            [sender] = self.services
        letter = {"pattern": pattern, "data": data, "cid": cid, "from": sender}
        if pattern.startswith(PLAIN):
            written = write(letter)
            reply = await self._host.requests.call(topic, written, NO_HEADERS, timeout_s)
            return ServiceReply(cid, read(reply.payload).get("data"), to)
        written = write({**letter, "reply_to": self._reply_to})
        await self._begin()
        awaited = self._await(cid)
        try:
            await queue.enqueue(written, retry=retry)
            with anyio.move_on_after(timeout_s):
                if awaited.settled or await self._is_up(to, timeout_s):
                    while not awaited.settled:
                        await awaited.bell.wait()
        except BaseException:
            if awaited.reply is not None:  # nobody takes it here, so it is late
                self._host.tasks.start_soon(self.take_late, awaited.reply, sender)
            raise
        finally:
            del self._awaited[cid]
        return awaited.outcome(cid)

    async def post(self, to: str, written: bytes) -> None:
        """Put a reply into the queue of a service."""
        await self._queue(service_queue(to)).enqueue(written)

    def _await(self, cid: str) -> Awaited:
        if cid in self._awaited:
            raise Refused(f"a reply to {cid[:40]} is awaited already: give each letter its own cid")
        if len(self._awaited) >= AWAITED_MAX:
            raise LimitReached(f"{AWAITED_MAX} replies are awaited by this client")
        awaited = self._awaited[cid] = Awaited()
        return awaited

    async def _begin(self) -> None:
        """Be there for replies, from the first letter on."""
        async with self._one_at_a_time:
            if self._provider is None:
                topic = check_pattern(self._reply_to)
                provider = Provider(self._host, topic, self._take, None, CONCURRENCY)
                self._provider = await provider.__aenter__()

    async def _is_up(self, to: str, timeout_s: float) -> bool:
        try:
            asked = write({"up": True})
            await self._host.requests.call(service_topic(to), asked, NO_HEADERS, timeout_s)
        except BusnodeError:
            return False
        return True

    def _take(self, request: Request) -> bytes:
        """A reply has come; whether somebody waits for it."""
        letter = read(request.payload)
        if letter.get("pending"):
            awaited = self._awaited.get(str(letter.get("reply")))
            if awaited is not None:
                awaited.is_pending = True
                awaited.bell.ring()
            return TAKEN
        return TAKEN if self.take(reply_of(letter)) else NOT_TAKEN

    def take(self, reply: ServiceReply) -> bool:
        """Hand a reply to whoever waits for it here, if somebody does."""
        awaited = self._awaited.get(reply.cid)
        if awaited is None or awaited.reply is not None:
            return False
        awaited.reply = reply
        awaited.bell.ring()
        return True

    async def take_late(self, reply: ServiceReply, sender: str | None) -> None:
        """Nobody waits for it any more."""
        on_reply = None if sender is None else self.services.get(sender)
        if on_reply is None:
            logger.warning("nobody takes the late reply %s of %s", reply.cid, reply.sender)
            return
        try:
            answer = on_reply(reply)
            if inspect.isawaitable(answer):
                await answer
        except Exception as error:  # noqa: BLE001 - the user's own; it must not end the bus
            logger.error("on_reply failed with %s: %s", reply.cid, error_text(error))
