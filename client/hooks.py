"""Hooks: functions that are called when tasks of a queue are completed or fail for good."""

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import anyio
import anyio.abc

from busnode.client.bell import Bell
from busnode.client.subscription import Subscription
from busnode.client.task_event import Hook, TaskEvent, event_of
from busnode.wire.errors import BusnodeError, Refused

logger = logging.getLogger("busnode.client")


class HookHost(Protocol):
    tasks: anyio.abc.TaskGroup


class Hooks:
    """`async with queue.hooks(): …` calls them while the block runs.

    They hear what happens anywhere in the cluster, one event after the other. Nobody keeps events
    for those who are away: what must not be missed stands in the dead letters. A hook that raises
    is logged, and the next event comes all the same.
    """

    def __init__(
        self,
        host: HookHost,
        subscribe: Callable[[str], Subscription],
        queue: str,
        hooks: Mapping[str, Sequence[Hook]],
    ) -> None:
        """`hooks` by the topics of their events."""
        self._host = host
        self._queue = queue
        self._hooks = {topic: list(each) for topic, each in hooks.items() if each}
        self._heard = [(topic, subscribe(topic)) for topic in self._hooks]
        self._scopes = [anyio.CancelScope() for _ in self._heard]
        self._listening = 0
        self._ended = Bell()
        if not self._hooks:
            raise Refused(
                f"no hooks of {queue}: register some with @queue.on_completed or @queue.on_failed"
            )

    async def __aenter__(self) -> "Hooks":
        """Returns when they hear; raises where that is refused."""
        begun: list[Subscription] = []
        try:
            for _, messages in self._heard:
                begun.append(await messages.__aenter__())
        except BaseException:
            for messages in begun:
                await messages.__aexit__()
            raise
        self._listening = len(self._heard)
        for (topic, messages), scope in zip(self._heard, self._scopes, strict=True):
            self._host.tasks.start_soon(self._listen, topic, messages, scope)
        return self

    async def __aexit__(self, *args: object) -> None:
        """Returns when none of them runs any more: one that is not async may be in its last."""
        for scope in self._scopes:
            scope.cancel()
        with anyio.CancelScope(shield=True):
            while self._listening:
                await self._ended.wait()

    async def _listen(self, topic: str, messages: Subscription, scope: anyio.CancelScope) -> None:
        try:
            with scope:
                async for message in messages:
                    await self._hear(topic, message.payload)
        except BusnodeError as error:
            logger.error("hooks for %s of %s hear no more: %s", topic, self._queue, error)
        finally:
            await messages.__aexit__()
            self._listening -= 1
            self._ended.ring()

    async def _hear(self, topic: str, payload: bytes) -> None:
        try:
            event = event_of(payload)
        except Exception:
            logger.exception("an event on %s cannot be read", topic)
            return
        if event.queue == self._queue:
            await self._call(topic, event)

    async def _call(self, topic: str, event: TaskEvent) -> None:
        for hook in self._hooks[topic]:
            try:
                answer = hook(event)
                if inspect.isawaitable(answer):
                    await answer
            except Exception:
                logger.exception("a hook for %s failed with %s", topic, event.id)
