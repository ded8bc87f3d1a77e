"""Real sockets between nodes of one process, whose cables can be cut.

Between two nodes whose cable is cut nothing passes in either direction and nobody is told: streams
fall silent, dials hang. What was sent before and not yet received waits, as it would for TCP to
send it again, and arrives when the cut heals, if both ends are still there. A connection that is
closed meanwhile ends for its other side when that side can hear of it.

Clients are no nodes: they are not dialled from here, and their connections are never cut. All of it
lives on one event loop, so that a cut is there for both sides in the same moment.
"""

import trio

from busnode.world.files import Bytes, ReadFile
from busnode.world.network import Address, Crowd, Listener, Stream, Tls
from busnode.world.real_network import RealNetwork, RealStream
from busnode.world.task_crowd import TaskCrowd
from busnode.world.tls import TlsTerms

Route = tuple[int, int]
"""The ports of a connection's two ends: the dialler's and the listener's."""


class Cables:
    """All cables between nodes, each known by the names of the two."""

    def __init__(self) -> None:
        self.changed = trio.lowlevel.ParkingLot()
        """Where those wait whose way is cut."""
        self.listening: dict[int, str] = {}
        """Whose each port is, also while that node is down."""
        self.dialled: dict[Route, str] = {}
        """Who has dialled, for as long as that end is open."""
        self._cuts: set[frozenset[str]] = set()

    def cut(self, one: str, other: str) -> None:
        self._cuts.add(frozenset((one, other)))

    def heal(self) -> None:
        """All of them."""
        self._cuts.clear()
        self.changed.unpark_all()

    def is_cut(self, one: str, other: str | None) -> bool:
        return bool(self._cuts) and other is not None and frozenset((one, other)) in self._cuts


class CutNetwork:
    """The seam `Network` of one node's process, from its start to its death."""

    def __init__(self, name: str, cables: Cables) -> None:
        self.name = name
        self.cables = cables
        self.is_dead = False
        self._network = RealNetwork()
        self._open: set[CutStream | CutListener] = set()

    def die(self) -> None:
        """Do what the system does when a process is killed: close its sockets, all at once."""
        self.is_dead = True
        for each in list(self._open):
            each.close()

    async def dial(self, address: Address, tls: Tls | None = None) -> Stream:
        far = self.cables.listening.get(address.port)
        while self.cables.is_cut(self.name, far):
            await self.cables.changed.park()
        stream = await self._network.dial(address)
        assert isinstance(stream, RealStream)
        route = stream.local.port, address.port
        self.cables.dialled[route] = self.name
        kept = self._kept(CutStream(stream, self, route, far))
        return kept if tls is None else tls.wrap(kept, address.host)

    async def listen(self, address: Address, tls: Tls | None = None) -> Listener:
        listener = await self._network.listen(address)
        self.cables.listening[listener.address.port] = self.name
        kept = CutListener(listener, self, tls)
        self._open.add(kept)
        return kept

    def crowd(self) -> Crowd:
        return TaskCrowd()

    def tls(self, terms: TlsTerms) -> Tls:
        return self._network.tls(terms)

    def reachable_at(self, address: Address) -> list[Address]:
        return self._network.reachable_at(address)

    def accepted(self, stream: Stream, port: int) -> Stream:
        return self._kept(CutStream(stream, self, (stream.peer.port, port), None))

    def closed(self, closed: "CutStream | CutListener") -> None:
        self._open.discard(closed)

    def _kept(self, stream: "CutStream") -> Stream:
        self._open.add(stream)
        if self.is_dead:
            stream.close()
        return stream


class CutListener:
    def __init__(self, listener: Listener, network: CutNetwork, tls: Tls | None) -> None:
        self.address = listener.address
        self._tls = tls
        self._listener = listener
        self._network = network

    async def accept(self) -> Stream:
        try:
            stream = await self._listener.accept()
        except OSError:
            if self._network.is_dead:
                await trio.sleep_forever()  # the dead do not wonder where their sockets are
            raise
        return self._kept(stream)

    def accept_nowait(self) -> Stream | None:
        stream = self._listener.accept_nowait()
        return None if stream is None else self._kept(stream)

    def _kept(self, stream: Stream) -> Stream:
        kept = self._network.accepted(stream, self.address.port)
        return kept if self._tls is None else self._tls.wrap(kept, None)

    def close(self) -> None:
        self._listener.close()
        self._network.closed(self)


class CutStream:
    certificate = None

    def __init__(self, stream: Stream, network: CutNetwork, route: Route, far: str | None) -> None:
        """`far` is the node at the other end. Who has accepted does not know it yet: a node that
        has dialled says so before it sends anything. A client never does."""
        self.peer = stream.peer
        self._stream = stream
        self._network = network
        self._far = far
        self._route = route
        self._has_dialled = far is not None
        self._closed = False

    def receive_into(self, view: memoryview) -> int | None:
        return None if self._is_cut() else self._stream.receive_into(view)

    def send(self, data: Bytes) -> int:
        return 0 if self._is_cut() else self._stream.send(data)

    def send_both(self, first: Bytes, second: Bytes) -> int:
        return 0 if self._is_cut() else self._stream.send_both(first, second)

    def send_range(self, file: ReadFile, offset: int, length: int) -> int:
        return 0 if self._is_cut() else self._stream.send_range(file, offset, length)

    async def wait_readable(self) -> None:
        await self._wait_healed()
        await self._stream.wait_readable()

    async def wait_writable(self) -> None:
        await self._wait_healed()
        await self._stream.wait_writable()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._stream.close()
            self._network.closed(self)
            if self._has_dialled:
                self._network.cables.dialled.pop(self._route, None)
            self._network.cables.changed.unpark_all()

    async def _wait_healed(self) -> None:
        while self._is_cut():
            await self._network.cables.changed.park()

    def _is_cut(self) -> bool:
        if self._closed:
            return False  # and the stream says so
        if self._far is None:
            self._far = self._network.cables.dialled.get(self._route)
        return self._network.cables.is_cut(self._network.name, self._far)
