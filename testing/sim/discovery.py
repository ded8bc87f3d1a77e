"""Simulated discovery: nodes in one ether hear of each other, and of what a test adds."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import trio

from busnode.world.discovery import Announcement, DiscoveryStatistics, Hint

REPEAT_S = 60.0
"""How often all in an ether hear of each other again, as mDNS asks again."""

HINTS_MAX = 1024
"""That wait for one node, which takes them at once: more only if a test adds more."""


@dataclass(slots=True, eq=False)
class _Listening:
    """A node that runs, and the hints on their way to it."""

    announcement: Announcement
    send: Callable[[Hint], None]


class SimEther:
    """What all nodes share that are to hear of each other. It keeps their order: the first to run
    is the first told of, so that a seed gives one history."""

    def __init__(self) -> None:
        self.loses: Callable[[Announcement, Announcement], bool] | None = None
        """Whether what the first tells is lost on its way to the second; a test may set it."""
        self._listening: list[_Listening] = []

    @property
    def announced(self) -> list[Announcement]:
        """Who is in it now, in the order in which they came."""
        return [each.announcement for each in self._listening]

    def forge(self, hint: Hint) -> None:
        """Let all who are in it now hear this; who comes later does not."""
        for each in self._listening:
            each.send(hint)

    def repeat(self) -> None:
        """Let all hear of all others again, now."""
        for hearer in self._listening:
            self.tell(hearer)

    def enter(self, newcomer: _Listening) -> None:
        self._listening.append(newcomer)
        self.tell(newcomer)
        for hearer in self._listening:
            self._carry(newcomer, hearer)

    def leave(self, node: _Listening) -> None:
        self._listening.remove(node)

    def tell(self, hearer: _Listening) -> None:
        """Let one hear of all others."""
        for teller in self._listening:
            self._carry(teller, hearer)

    def _carry(self, teller: _Listening, hearer: _Listening) -> None:
        if teller is hearer:
            return
        if self.loses is None or not self.loses(teller.announcement, hearer.announcement):
            hearer.send(_hint(teller.announcement))


class SimDiscovery:
    """Tells everyone who runs it what a test adds, also late; and who else is in its ether.

    Several nodes may share one, or have one each in the same ether. It never ends by itself.
    """

    def __init__(self, hints: Iterable[Hint] = (), ether: SimEther | None = None) -> None:
        self.ether = ether or SimEther()
        self._hints = list(hints)
        self._running: list[_Listening] = []
        self._events = 0
        self._dropped = 0

    def add(self, hint: Hint) -> None:
        self._hints.append(hint)
        for each in self._running:
            each.send(hint)

    async def run(self, announcement: Announcement, found: Callable[[Hint], None]) -> None:
        sender, receiver = trio.open_memory_channel[Hint](HINTS_MAX)

        def send(hint: Hint) -> None:
            self._events += 1
            try:
                sender.send_nowait(hint)
            except trio.WouldBlock:
                self._dropped += 1

        node = _Listening(announcement, send)
        for hint in self._hints:
            send(hint)
        self._running.append(node)
        self.ether.enter(node)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._repeat, node)
                async for hint in receiver:
                    found(hint)
        finally:
            self.ether.leave(node)
            self._running.remove(node)

    def statistics(self) -> DiscoveryStatistics:
        return DiscoveryStatistics(events=self._events, dropped=self._dropped)

    async def _repeat(self, node: _Listening) -> None:
        while True:
            await trio.sleep(REPEAT_S)
            self.ether.tell(node)


def _hint(announcement: Announcement) -> Hint:
    return Hint(
        announcement.addresses,
        "sim",
        announcement.cluster_id,
        announcement.protocol,
        announcement.broker_id,
        announcement.name,
    )
