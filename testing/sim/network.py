"""A simulated network: hosts in one process, streams in memory, delays and cuts from a seed."""

import errno
import math
from collections import deque
from collections.abc import Callable

import trio

from busnode.testing.sim.entropy import SimEntropy
from busnode.testing.sim.stream import Ending, SimStream
from busnode.testing.sim.ways import LATENCY_S, Trouble, Ways
from busnode.world.network import Address, Crowd, Listener, Stream, Tls
from busnode.world.task_crowd import TaskCrowd
from busnode.world.tls import TlsTerms

BUFFER_BYTES = 64 * 1024
"""For each direction of a connection, all on the way included. Small, so that it fills in tests."""

BACKLOG = 128
DIAL_TIMEOUT_S = 60.0
"""About what a kernel takes to give up on a host that does not answer."""

EVERYWHERE = ("", "0.0.0.0", "::")
FIRST_FREE_PORT = 32768


class SimNetwork:
    """All hosts and the ways between them.

    A cut holds up what is on the way and what is sent, as TCP does: nothing is lost when it heals
    in time, and nobody is told. Who wants to know must listen for heartbeats. Cuts and other
    trouble have a cause (see `ways`); where it does not matter it has no name.
    """

    def __init__(
        self,
        seed: int | str = 0,
        *,
        latency_s: tuple[float, float] = LATENCY_S,
        buffer_bytes: int = BUFFER_BYTES,
    ) -> None:
        self.buffer_bytes = buffer_bytes
        self.changed = trio.lowlevel.ParkingLot()
        """Where those wait who dial a host that does not answer."""
        self.sent_bytes = 0
        """By all hosts, to all others."""
        self._entropy = SimEntropy(seed).fork("network")
        self._ways = Ways(self._entropy, latency_s)
        self._hosts: dict[str, SimHost] = {}
        self._streams: list[SimStream] = []
        self._doubled: dict[str, None] = {}

    @property
    def latency_s(self) -> tuple[float, float]:
        return self._ways.latency_s

    @latency_s.setter
    def latency_s(self, latency_s: tuple[float, float]) -> None:
        self._ways.latency_s = latency_s

    def host(self, name: str) -> "SimHost":
        """The network as one host sees it. Its name is its address."""
        return self._hosts.setdefault(name, SimHost(name, self))

    def find(self, name: str) -> "SimHost | None":
        return self._hosts.get(name)

    @property
    def hosts(self) -> list[str]:
        return list(self._hosts)

    # Cuts -----------------------------------------------------------------------------------------

    def cut(self, sender: str, receiver: str, cause: str = "") -> None:
        """Cut the way from one host to another; what goes the other way still arrives."""
        if self._ways.cut((sender, receiver), cause):
            for stream in self._arriving_at(receiver, sender):
                stream.hold()

    def mend(self, sender: str, receiver: str, cause: str = "") -> None:
        if self._ways.mend((sender, receiver), cause):
            for stream in self._arriving_at(receiver, sender):
                stream.release()
            self.changed.unpark_all()

    def partition(self, one: str, other: str, cause: str = "") -> None:
        """Cut the ways between two hosts; a connection between them falls silent."""
        self.cut(one, other, cause)
        self.cut(other, one, cause)

    def heal(self, one: str, other: str, cause: str = "") -> None:
        self.mend(one, other, cause)
        self.mend(other, one, cause)

    def heal_all(self) -> None:
        for (sender, receiver), causes in self._ways.all_cut:
            for cause in causes:
                self.mend(sender, receiver, cause)

    def isolate(self, name: str, cause: str = "") -> None:
        """Cut all ways to and from a host."""
        for other in self._hosts:
            if other != name:
                self.partition(name, other, cause)

    def rejoin(self, name: str, cause: str = "") -> None:
        for sender, receiver in self._ways.cut_for(cause):
            if name in (sender, receiver):
                self.mend(sender, receiver, cause)

    # Other trouble --------------------------------------------------------------------------------

    def trouble(self, sender: str, receiver: str, trouble: Trouble, cause: str = "") -> None:
        """Let a way be slow, uneven or lossy from now on."""
        self._ways.trouble((sender, receiver), cause, trouble)

    def relieve(self, cause: str = "") -> None:
        self._ways.relieve(cause)

    def double_dials(self, name: str) -> None:
        """From now on a host gets a second connection, on which nothing is ever said, with each
        that somebody makes to it: as from a dial that was sent twice."""
        self._doubled[name] = None

    def no_double_dials(self, name: str) -> None:
        self._doubled.pop(name, None)

    def is_doubled(self, name: str) -> bool:
        return name in self._doubled

    def sever(self, one: str, other: str) -> int:
        """Something between two hosts resets their connections, both ends at once; how many."""
        severed = [stream for stream in self._streams if _is_between(stream, one, other)]
        for stream in severed:
            stream.sever()
        return len(severed) // 2

    def sever_half(self, one: str, other: str) -> int:
        """The same, but only the first is told: the other keeps half of a connection."""
        ends = [s for s in self._streams if (s.host, s.peer.host) == (one, other) and not s.closed]
        for stream in ends:
            stream.sever()
        return len(ends)

    def reset_connections(self, name: str) -> None:
        """Something between resets all connections of a host; it lives on."""
        for stream in [each for each in self._streams if each.host == name and not each.closed]:
            stream.drop(Ending.RESET)

    def reset(self, name: str) -> None:
        """A process has died: its listeners are gone, and its connections are reset.

        For a machine without power, which resets nothing, `isolate` it first: word of the reset
        gets through when it is back.
        """
        self.reset_connections(name)
        host = self.find(name)
        if host is not None:
            host.close_listeners()

    # For hosts ------------------------------------------------------------------------------------

    def arrival(self, sender: str, receiver: str) -> float:
        """When something that is sent now arrives."""
        return self._ways.arrival(sender, receiver)

    def connect(self, one: Address, other: Address) -> tuple[SimStream, SimStream]:
        self._streams = [stream for stream in self._streams if not stream.closed]
        ends = (
            SimStream(one.host, other, self.buffer_bytes, self.arrival, self._sent),
            SimStream(other.host, one, self.buffer_bytes, self.arrival, self._sent),
        )
        ends[0].connect(ends[1])
        self._streams += ends
        return ends

    def _sent(self, size_bytes: int) -> None:
        self.sent_bytes += size_bytes

    def _arriving_at(self, receiver: str, sender: str) -> list[SimStream]:
        return [s for s in self._streams if (s.host, s.peer.host) == (receiver, sender)]


def _is_between(stream: SimStream, one: str, other: str) -> bool:
    return not stream.closed and {stream.host, stream.peer.host} == {one, other}


class SimListener:
    def __init__(self, address: Address, network: SimNetwork, forget: Callable[[], object]) -> None:
        self.address = address
        self.waiting: deque[SimStream] = deque()
        self._network = network
        self._forget = forget
        self._closed = False
        self._changed = trio.lowlevel.ParkingLot()

    def offer(self, stream: SimStream) -> None:
        self.waiting.append(stream)
        self._changed.unpark()

    async def accept(self) -> Stream:
        await trio.lowlevel.checkpoint()
        while not self._closed:
            stream = self.accept_nowait()
            if stream is not None:
                return stream
            await self._changed.park()
        raise OSError(errno.EBADF, "it was closed on this side")

    def accept_nowait(self) -> Stream | None:
        if self._closed or not self.waiting:
            return None
        self._network.changed.unpark_all()
        return self.waiting.popleft()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._forget()
            self._changed.unpark_all()
            for stream in self.waiting:
                if not stream.closed:
                    stream.drop(Ending.RESET)


class SimTls:
    """None at all: what it is for cannot happen here."""

    def load(self) -> None: ...

    def wrap(self, stream: Stream, host: str | None) -> Stream:
        del host
        return stream


class SimHost:
    """The seam `Network` of one host."""

    def __init__(self, name: str, network: SimNetwork) -> None:
        self.name = name
        self._network = network
        self._listeners: dict[int, SimListener] = {}
        self._next_port = FIRST_FREE_PORT

    async def dial(self, address: Address, tls: Tls | None = None) -> Stream:
        del tls  # nobody listens in on these wires
        host = self._network.find(address.host)
        if host is None:
            raise OSError(errno.EHOSTUNREACH, f"there is no host {address.host}")
        with trio.move_on_after(DIAL_TIMEOUT_S):
            while True:
                answered = max(self._arrival(address.host), self._arrival(address.host))
                if answered < math.inf:
                    await trio.sleep_until(answered)
                    stream = host.answer(self, address)
                    if stream is not None:
                        return stream
                await self._network.changed.park()
        raise TimeoutError(errno.ETIMEDOUT, f"{address} does not answer")

    def answer(self, dialler: "SimHost", address: Address) -> SimStream | None:
        """The dialler's end of a new connection; None when nothing comes back."""
        if dialler._arrival(self.name) == math.inf:
            return None
        listener = self._listeners.get(address.port)
        if listener is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"nobody listens at {address}")
        if len(listener.waiting) >= BACKLOG:
            return None
        near, far = self._network.connect(Address(dialler.name, dialler._free_port()), address)
        listener.offer(far)
        if self._network.is_doubled(self.name):
            _, ghost = self._network.connect(Address(dialler.name, dialler._free_port()), address)
            listener.offer(ghost)
        return near

    async def listen(self, address: Address, tls: Tls | None = None) -> Listener:
        del tls
        await trio.lowlevel.checkpoint()
        if address.host not in (self.name, *EVERYWHERE):
            raise OSError(errno.EADDRNOTAVAIL, f"{address} is not an address of {self.name}")
        port = address.port or self._free_port()
        if port in self._listeners:
            raise OSError(errno.EADDRINUSE, f"{address} is taken")
        place = Address(self.name, port)
        listener = SimListener(place, self._network, lambda: self._listeners.pop(port, None))
        self._listeners[port] = listener
        return listener

    def crowd(self) -> Crowd:
        return TaskCrowd()

    def tls(self, terms: TlsTerms) -> Tls:
        del terms
        return SimTls()

    def reachable_at(self, address: Address) -> list[Address]:
        return [Address(self.name, address.port)]

    def close_listeners(self) -> None:
        for listener in list(self._listeners.values()):
            listener.close()

    def _arrival(self, receiver: str) -> float:
        return self._network.arrival(self.name, receiver)

    def _free_port(self) -> int:
        self._next_port += 1
        while self._next_port in self._listeners:
            self._next_port += 1
        return self._next_port
