"""The seam to the network: streams in the shape of the hot path.

Nothing here waits except what begins with `wait_`, `accept`, `dial` and `listen`, so that a run of
frames costs no checkpoint, task or channel.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol

from busnode.world.files import Bytes, ReadFile
from busnode.world.tls import Certificate, TlsTerms


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str, default_port: int) -> Address:
    """`host`, `host:port` or `[ipv6]:port`; ValueError for anything else."""
    host, colon, port = text.strip().rpartition(":")
    if not colon or (host.startswith("[") and not host.endswith("]")):
        host, port = text.strip(), str(default_port)  # there was no port, or only in an IPv6
    bare = host.removeprefix("[").removesuffix("]")
    bracketed = host != bare
    if not bare or (":" in bare) != bracketed or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"address {text!r:.100} is not host:port; an IPv6 address stands in [ ]")
    return Address(bare, int(port))


class Stream(Protocol):
    """One connection. All methods raise `OSError` when it is broken."""

    @property
    def peer(self) -> Address: ...

    @property
    def certificate(self) -> Certificate | None:
        """Who the other side has proved to be; None without a certificate that was verified, and
        as long as nothing has been received."""
        ...

    def receive_into(self, view: memoryview) -> int | None:
        """How many bytes came; 0 at the end of the stream, None when there is nothing yet.

        `view` has room for one byte or more.
        """
        ...

    def send(self, data: Bytes) -> int:
        """How many bytes were taken; 0 when the other side does not read fast enough.

        What is sent next, by whatever method, begins with the bytes that were not taken: they may
        be encrypted already.
        """
        ...

    def send_both(self, first: Bytes, second: Bytes) -> int:
        """Like `send` for two buffers, one behind the other, without joining them."""
        ...

    def send_range(self, file: ReadFile, offset: int, length: int) -> int:
        """Like `send`, from a file and without copying where the system can.

        ENODATA when the file ends at or before `offset`: waiting would not help.
        """
        ...

    async def wait_readable(self) -> None: ...

    async def wait_writable(self) -> None: ...

    def close(self) -> None:
        """What was sent still arrives. Who waits here gets an `OSError`, as all later calls do."""
        ...


class Crowd(Protocol):
    """Streams that are waited for all at once, without a task for each: those of strangers."""

    def add(self, stream: Stream) -> None: ...

    def discard(self, stream: Stream) -> None:
        """Whoever closes a stream, or hands it on, says so before."""
        ...

    async def run(
        self, ready: Callable[[Stream], None], turn: AbstractAsyncContextManager[None]
    ) -> None:
        """Call `ready` for a stream whenever there is something to receive, or its end: for a few
        at once, while it holds `turn`."""
        ...


class Listener(Protocol):
    @property
    def address(self) -> Address:
        """Where it listens; the port is the real one also when 0 was asked for."""
        ...

    async def accept(self) -> Stream:
        """The next connection. It fails only when the listener was closed, never for a shortage."""
        ...

    def accept_nowait(self) -> Stream | None:
        """One more, if there is one to be had at once. It never fails: `accept` says why there is
        none."""
        ...

    def close(self) -> None: ...


class Tls(Protocol):
    """Makes connections private. Its certificates are those of the last `load` that succeeded."""

    def load(self) -> None:
        """Read the files anew, for connections to come. `OSError` says what is wrong with them,
        and then nothing has changed."""
        ...

    def wrap(self, stream: Stream, host: str | None) -> Stream:
        """The same connection in TLS; `host` is who was dialled. It never waits: the handshake
        goes on while the stream is used, and `TlsError` is raised there."""
        ...


class Network(Protocol):
    async def dial(self, address: Address, tls: Tls | None = None) -> Stream: ...

    async def listen(self, address: Address, tls: Tls | None = None) -> Listener:
        """Raises `OSError` when the address is taken or not ours."""
        ...

    def crowd(self) -> Crowd: ...

    def tls(self, terms: TlsTerms) -> Tls:
        """Raises `OSError` when a file is missing or is not what it should be."""
        ...

    def reachable_at(self, address: Address) -> list[Address]:
        """How others can dial a listener that has this address: the best first, and never none
        unless this machine has no address."""
        ...
