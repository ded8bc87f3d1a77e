"""Discovery by multicast DNS: whoever is on the same network, without being told."""

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import trio

from busnode.world.discovery import Announcement, DiscoveryStatistics, Hint
from busnode.world.real_import import import_in_thread
from busnode.world.real_inlet import Inlet

if TYPE_CHECKING:
    from busnode.world.real_zeroconf import Counts, Responder

HINTS_MAX = 256
"""On their way from the library's thread. More than nodes in any cluster; a forger gets no more."""

RETRY_S = 30.0
"""Until the next attempt where multicast is impossible: a cable, a route or an address may come."""

WITHDRAW_S = 3.0
"""Saying goodbye takes a quarter of a second; the stop of a node waits no longer than this."""

log = logging.getLogger(__name__)


class MdnsDiscovery:
    """Announces a node as a service `_busnode._tcp` and hints at all others that it hears.

    `interfaces` are addresses of this machine; None is all of them, IPv4 and IPv6. The library
    works in a thread of its own; nothing that it does holds up the loop.
    """

    def __init__(
        self,
        interfaces: Sequence[str] | None,
        *,
        hints_max: int = HINTS_MAX,
        retry_s: float = RETRY_S,
    ) -> None:
        self._interfaces = interfaces
        self._hints_max = hints_max
        self._retry_s = retry_s
        self._counts: Counts | None = None
        self._failure: str | None = None

    async def run(self, announcement: Announcement, found: Callable[[Hint], None]) -> None:
        inlet = Inlet[Hint](self._hints_max)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_hand_on, inlet, found)
            while True:
                failure = await self._live(announcement, inlet)
                if failure != self.statistics().failure:
                    log.warning(
                        "mDNS finds nobody and is tried again every %g s: %s",
                        self._retry_s,
                        failure,
                    )
                self._failure = failure
                if self._counts is not None:
                    self._counts.working = False
                await trio.sleep(self._retry_s)

    def statistics(self) -> DiscoveryStatistics:
        counts = self._counts
        if counts is None:
            return DiscoveryStatistics(failure=self._failure)
        return DiscoveryStatistics(
            events=counts.events,
            dropped=counts.dropped,
            malformed=counts.malformed,
            failure=None if counts.working else self._failure,
        )

    async def _live(self, announcement: Announcement, inlet: Inlet[Hint]) -> str:
        """One life of the library, which ends by cancellation alone or returns why it could not."""
        try:
            library: Any = await import_in_thread("busnode.world.real_zeroconf")
        except ImportError as error:
            return f"the zeroconf library cannot be imported: {error}"
        self._counts = self._counts or library.Counts()
        responder: Responder = library.Responder(
            announcement, self._interfaces, inlet, self._counts
        )
        failure = ""
        ended = trio.Event()
        withdrawing = trio.CancelScope(shield=True)

        async def work() -> None:
            nonlocal failure
            with withdrawing:
                try:
                    await trio.to_thread.run_sync(
                        responder.run,
                        abandon_on_cancel=True,
                        limiter=trio.CapacityLimiter(1),  # it stays: it must not take another's
                        thread_name="busnode mdns",
                    )
                except Exception as error:  # noqa: BLE001 - whatever it is, the node lives without
                    failure = f"{type(error).__name__}: {error}"
            ended.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)
            try:
                await ended.wait()
            finally:
                responder.stop()
                withdrawing.deadline = trio.current_time() + WITHDRAW_S
        return failure


async def _hand_on(inlet: Inlet[Hint], found: Callable[[Hint], None]) -> None:
    while True:
        found(await inlet.receive())
