"""What a node reads again when it is told to: by SIGHUP, and without dropping anybody."""

import logging
import signal
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from busnode.node.logs import fields
from busnode.wire.errors import BusnodeError

logger = logging.getLogger(__name__)

SIGNAL: Final = signal.SIGHUP

Reload = Callable[[], Awaitable[None] | None]


class Reloading:
    """Parts that can be read again. One that fails keeps what it had, and does not stop others."""

    def __init__(self) -> None:
        self._parts: dict[str, Reload] = {}

    def add(self, what: str, reload: Reload) -> None:
        """`reload` raises OSError or BusnodeError, and then has changed nothing."""
        self._parts[what] = reload

    async def reload(self) -> None:
        for what, reload in self._parts.items():
            try:
                waiting = reload()
                if waiting is not None:
                    await waiting
            except (OSError, BusnodeError) as error:
                logger.error("not reloaded, the old one stays", extra=fields(what=what, why=error))
            else:
                logger.info("reloaded", extra=fields(what=what))

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Reload whenever SIGHUP comes, which ends the process no more from here on."""
        with trio.open_signal_receiver(SIGNAL) as signals:
            task_status.started()
            async for _ in signals:
                await self.reload()
