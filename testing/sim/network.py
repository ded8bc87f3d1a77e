"""A simulated network: hosts in one process, streams in memory, delays and cuts from a seed."""

import errno
import math
from collections import deque
from collections.abc import Callable

import trio

from busnode.testing.sim.entropy import SimEntropy
from busnode.testing.sim.stream import Ending, SimStream
from busnode.world.network import Address, Listener, Stream

BUFFER_BYTES = 64 * 1024
"""For each direction of a connection, all on the way included. Small, so that it fills in tests."""

LATENCY_S = (0.0001, 0.001)
"""The shortest and the longest way of a parcel: a local network."""

BACKLOG = 128
DIAL_TIMEOUT_S = 60.0
"""About what a kernel takes to give up on a host that does not answer."""

EVERYWHERE = ("", "0.0.0.0", "::")
FIRST_FREE_PORT = 32768


class SimNetwork:
    """All hosts and the ways between them.

    A cut holds up what is on the way and what is sent, in both directions, as TCP does: nothing is
    lost when it heals in time, and nobody is told. Who wants to know must listen for heartbeats.
    """

    def __init__(
        self,
        seed: int | str = 0,
        *,
        latency_s: tuple[float, float] = LATENCY_S,
        buffer_bytes: int = BUFFER_BYTES,
    ) -> None:
        self.latency_s = latency_s
        self.buffer_bytes = buffer_bytes
        self.changed = trio.lowlevel.ParkingLot()
        """Where those wait who dial a host that does not answer."""
        self._entropy = SimEntropy(seed).fork("network")
        self._hosts: dict[str, SimHost] = {}
        self._streams: list[SimStream] = []
        self._cuts: list[tuple[str, str]] = []

    def host(self, name: str) -> "SimHost":
        """The network as one host sees it. Its name is its address."""
        return self._hosts.setdefault(name, SimHost(name, self))

    def find(self, name: str) -> "SimHost | None":
        return self._hosts.get(name)

    def partition(self, one: str, other: str) -> None:
        """Cut the ways between two hosts; a connection between them falls silent."""
        if not self._is_cut(one, other):
            self._cuts.append((one, other))
            for stream in self._between(one, other):
                stream.hold()

    def heal(self, one: str, other: str) -> None:
        self._cuts = [cut for cut in self._cuts if cut not in ((one, other), (other, one))]
        for stream in self._between(one, other):
            stream.release()
        self.changed.unpark_all()

    def heal_all(self) -> None:
        for one, other in list(self._cuts):
            self.heal(one, other)

    def reset_connections(self, name: str) -> None:
        """Something between resets all connections of a host; it lives on."""
        for stream in [each for each in self._streams if each.host == name and not each.closed]:
            stream.drop(Ending.RESET)

    def reset(self, name: str) -> None:
        """A process has died: its listeners are gone, and its connections are reset.

        For a machine without power, which resets nothing, `partition` it first: word of the reset
        gets through when it is back.
        """
        self.reset_connections(name)
        host = self.find(name)
        if host is not None:
            host.close_listeners()

    def arrival(self, sender: str, receiver: str) -> float:
        """When something that is sent now arrives."""
        if self._is_cut(sender, receiver):
            return math.inf
        return trio.current_time() + self._entropy.between(*self.latency_s)

    def connect(self, one: Address, other: Address) -> tuple[SimStream, SimStream]:
        self._streams = [stream for stream in self._streams if not stream.closed]
        ends = (
            SimStream(one.host, other, self.buffer_bytes, self.arrival),
            SimStream(other.host, one, self.buffer_bytes, self.arrival),
        )
        ends[0].connect(ends[1])
        self._streams += ends
        return ends

    def _is_cut(self, one: str, other: str) -> bool:
        return (one, other) in self._cuts or (other, one) in self._cuts

    def _between(self, one: str, other: str) -> list[SimStream]:
        return [
            stream
            for stream in self._streams
            if (stream.host, stream.peer.host) in ((one, other), (other, one))
        ]


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
            if self.waiting:
                self._network.changed.unpark_all()
                return self.waiting.popleft()
            await self._changed.park()
        raise OSError(errno.EBADF, "it was closed on this side")

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._forget()
            self._changed.unpark_all()
            for stream in self.waiting:
                if not stream.closed:
                    stream.drop(Ending.RESET)


class SimHost:
    """The seam `Network` of one host."""

    def __init__(self, name: str, network: SimNetwork) -> None:
        self.name = name
        self._network = network
        self._listeners: dict[int, SimListener] = {}
        self._next_port = FIRST_FREE_PORT

    async def dial(self, address: Address) -> Stream:
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
        return near

    async def listen(self, address: Address) -> Listener:
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
