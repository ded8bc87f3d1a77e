"""A named service: it gets what was sent to its name whenever it is up."""

import inspect
import logging
from collections.abc import Mapping
from typing import Any, Final, Protocol

import anyio

from busnode.client.bell import Bell
from busnode.client.correspondence import TAKEN, Correspondence, CorrespondenceHost
from busnode.client.messages import NO_HEADERS
from busnode.client.new_task import Retry
from busnode.client.poll import Poll
from busnode.client.providers import Provider, Request
from busnode.client.queue import Queue
from busnode.client.service_letters import (
    OnReply,
    Pending,
    ServiceCall,
    ServiceHandler,
    ServiceReply,
    call_of,
    read,
    reply_letter,
    reply_of,
    service_topic,
    write,
)
from busnode.client.task import Reject, Task, error_text
from busnode.wire.errors import BadTask, BusnodeError, Refused
from busnode.wire.topics import check_pattern, check_topic
from busnode.world.clock import Clock

logger = logging.getLogger("busnode.client")

CONCURRENCY: Final = 16
"""Letters that one instance of a service works on at once."""

LIVE_S: Final = 2.0
"""How long whoever has sent may take to say whether somebody waits for a reply."""


class ServiceHost(CorrespondenceHost, Protocol):
    clock: Clock


class Service:
    """`async with bus.service(name, handlers) as service: …`

    While the block runs it works off what was sent to its name, `concurrency` letters at a time,
    and its leases are extended while handlers run. Several may have the same name: each letter goes
    to one of them. Leaving the block waits for handlers that run; leaving it by an exception
    cancels them, and what they had goes to others.
    """

    def __init__(
        self,
        host: ServiceHost,
        correspondence: Correspondence,
        queue: Queue,
        name: str,
        handlers: Mapping[str, ServiceHandler] | ServiceHandler,
        on_reply: OnReply | None,
        concurrency: int,
        lease_s: float,
    ) -> None:
        self.name = name
        self._host = host
        self._correspondence = correspondence
        self._queue = queue
        self._handlers = handlers
        self._on_reply = on_reply
        self._lease_s = lease_s
        self._poll: Poll = queue.poll(lease=lease_s)
        topic = check_pattern(service_topic(name))
        self._provider = Provider(host, topic, self._asked, None, concurrency)
        self._free = concurrency
        self._concurrency = concurrency
        self._bell = Bell()
        self._scope = anyio.CancelScope()
        self._over = True
        if not 1 <= concurrency <= 10_000:
            raise BadTask(f"concurrency of {concurrency!r:.40}; expected 1 to 10000")

    async def __aenter__(self) -> "Service":
        """Returns when it is up."""
        services = self._correspondence.services
        if self.name in services:
            raise Refused(f"this client is the service {self.name} already: connect another one")
        services[self.name] = self._on_reply
        try:
            await self._provider.__aenter__()
        except BaseException:
            del services[self.name]
            raise
        self._over = False
        self._host.tasks.start_soon(self._run)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *args: object) -> None:
        if kind is not None:
            self._scope.cancel()
        try:
            await self._provider.__aexit__(kind, *args)
            self._poll.close()
            while not self._over:
                await self._bell.wait()
        finally:
            self._scope.cancel()
            del self._correspondence.services[self.name]

    async def send(
        self,
        to: str,
        pattern: str,
        data: Any = None,
        *,
        cid: str | None = None,
        timeout: float = 5.0,
        retry: Retry | None = None,
    ) -> ServiceReply | Pending:
        """As `Bus.send`, in the name of this service."""
        return await self._correspondence.send(to, pattern, data, cid, self.name, timeout, retry)

    # Work -----------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            with self._scope:
                async with anyio.create_task_group() as group:
                    async for task in self._poll:
                        self._free -= 1
                        group.start_soon(self._work, task)
                        while not self._free:
                            await self._bell.wait()
        except BusnodeError as error:
            logger.error("the service %s gets nothing more: %s", self.name, error)
        finally:
            self._poll.close()
            self._over = True
            self._bell.ring()

    async def _work(self, task: Task) -> None:
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._renew, task)
                try:
                    async with task:
                        await self._handle(task)
                except BusnodeError as error:
                    logger.warning("%r of the service %s: %s", task, self.name, error)
                except Exception as error:  # noqa: BLE001 - the handler's own; the task has it
                    logger.warning("%r of %s failed: %s", task, self.name, error_text(error))
                group.cancel_scope.cancel()
        finally:
            self._free += 1
            self._bell.ring()

    async def _renew(self, task: Task) -> None:
        try:
            while True:
                await self._host.clock.sleep(self._lease_s / 3)
                await task.extend(self._lease_s)
        except BusnodeError as error:
            logger.warning("the lease of %r was not extended: %s", task, error)

    async def _handle(self, task: Task) -> None:
        try:
            letter = read(task.payload)
            if "reply" in letter:
                await self._take_reply(reply_of(letter))
                return
            call = call_of(letter, task.attempt)
        except BadTask as error:
            raise Reject(error.text) from error
        reply_to = letter.get("reply_to")
        try:
            data = await self._answer(call)
            written = reply_letter(call.cid, self.name, data)
        except Reject as error:
            await self._reply(call, reply_to, reply_letter(call.cid, self.name, None, str(error)))
            raise
        except Exception:
            await self._live(reply_to, reply_letter(call.cid, self.name, pending=True))
            raise
        await self._reply(call, reply_to, written)

    async def _answer(self, call: ServiceCall) -> Any:
        handler = self._handlers if callable(self._handlers) else self._handlers.get(call.pattern)
        if handler is None:
            raise BadTask(f"the service {self.name} has no handler for {call.pattern[:60]!a}")
        answer = handler(call)
        return await answer if inspect.isawaitable(answer) else answer

    async def _asked(self, request: Request) -> bytes:
        """A pattern that only asks, or whether we are up."""
        letter = read(request.payload)
        if letter.get("up"):
            return b""
        return write({"data": await self._answer(call_of(letter, 1))})

    # Replies --------------------------------------------------------------------------------------

    async def _reply(self, call: ServiceCall, reply_to: object, written: bytes) -> None:
        """To whoever waits, or else to the queue of the service that sent."""
        if await self._live(reply_to, written):
            return
        if call.sender is None:
            logger.info("nobody waits for the reply %s, and no service sent it", call.cid)
        else:
            await self._correspondence.post(call.sender, written)

    async def _live(self, reply_to: object, written: bytes) -> bool:
        if not isinstance(reply_to, str):
            return False
        try:
            topic = check_topic(reply_to)
            reply = await self._host.requests.call(topic, written, NO_HEADERS, LIVE_S)
        except BusnodeError:
            return False  # gone, or too large for a request
        return reply.payload == TAKEN

    async def _take_reply(self, reply: ServiceReply) -> None:
        if self._correspondence.take(reply):
            return
        if self._on_reply is None:
            logger.warning("%s has no on_reply for %s of %s", self.name, reply.cid, reply.sender)
            return
        answer = self._on_reply(reply)
        if inspect.isawaitable(answer):
            await answer
