"""The real world for a client: the same seams on whatever event loop runs, trio or asyncio."""

import errno
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import anyio
import anyio.abc
import anyio.to_thread
import trio

from busnode.world.files import AppendFile
from busnode.world.network import Address, Stream, Tls
from busnode.world.real_entropy import RealEntropy
from busnode.world.real_files import RealFiles
from busnode.world.real_network import RealStream, real_tls
from busnode.world.tls import TlsTerms

T = TypeVar("T")
R = TypeVar("R")

ATTEMPT_DELAY_S = 0.25
"""How long one address of a name may take before the next is tried beside it (RFC 8305)."""


class AnyioClock:
    """The clock of the event loop, and the calendar of the machine. `monotonic` needs a loop."""

    def monotonic(self) -> float:
        return trio.current_time() if trio.lowlevel.in_trio_run() else anyio.current_time()

    def utc_us(self) -> int:
        return time.time_ns() // 1000

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)


class AnyioStream(RealStream):
    """A TCP connection that waits on whatever event loop runs."""

    __slots__ = ()

    async def wait_readable(self) -> None:
        try:
            await anyio.wait_readable(self._fd)
        except (anyio.ClosedResourceError, ValueError) as error:  # ValueError: closed before
            raise _closed() from error

    async def wait_writable(self) -> None:
        try:
            await anyio.wait_writable(self._fd)
        except (anyio.ClosedResourceError, ValueError) as error:
            raise _closed() from error

    def close(self) -> None:
        if self._fd >= 0:
            anyio.notify_closing(self._fd)
            self._fd = -1
            self._socket.close()


class AnyioNetwork:
    """Dials. A client never listens."""

    async def dial(self, address: Address, tls: Tls | None = None) -> Stream:
        """Tries all addresses that the host's name stands for; a slow one does not hold up another.

        When none answers it raises the error of the one that failed first.
        """
        try:
            found = await anyio.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        except UnicodeError as error:  # a name that no host can have
            raise OSError(errno.EINVAL, f"{address.host[:100]!r} is no name of a host") from error
        if len(found) == 1:
            ((family, kind, protocol, _, sockaddr),) = found
            connection = await _connect(family, kind, protocol, sockaddr)
        else:
            connection = await _Race().run(found)
        host, port = connection.getpeername()[:2]
        # On trio without the way around through anyio: it is taken for each message that comes.
        stream = RealStream if trio.lowlevel.in_trio_task() else AnyioStream
        dialled = stream(connection, Address(host, port))
        return dialled if tls is None else tls.wrap(dialled, address.host)

    def tls(self, terms: TlsTerms) -> Tls:
        return real_tls(terms)


class AnyioFiles(RealFiles):
    """The machine's file system, synced from a thread that any event loop can wait for."""

    async def sync_all(
        self, files: Sequence[AppendFile], directories: Sequence[str] = ()
    ) -> list[OSError | None]:
        return await anyio.to_thread.run_sync(self._sync_one_by_one, files, directories)

    def _sync_one_by_one(
        self, files: Sequence[AppendFile], directories: Sequence[str]
    ) -> list[OSError | None]:
        outcomes: list[OSError | None] = []
        for file in files:
            try:
                file.sync()
                outcomes.append(None)
            except OSError as error:
                outcomes.append(error)
        for directory in directories:
            try:
                self.sync_directory(directory)
                outcomes.append(None)
            except OSError as error:
                outcomes.append(error)
        return outcomes


@dataclass(frozen=True, slots=True)
class AnyioWorld:
    """All that a client asks of the world."""

    clock: AnyioClock = field(default_factory=AnyioClock)
    entropy: RealEntropy = field(default_factory=RealEntropy)
    files: AnyioFiles = field(default_factory=AnyioFiles)
    network: AnyioNetwork = field(default_factory=AnyioNetwork)


async def run_in_thread(work: Callable[[T], R], argument: T) -> R:
    """Do something that blocks, a handler of a user without async say, beside the loop."""
    return await anyio.to_thread.run_sync(work, argument)


class _Race:
    """Several addresses of one host: the first that answers wins."""

    def __init__(self) -> None:
        self._winner: socket.socket | None = None
        self._errors: list[OSError] = []

    async def run(self, found: Sequence[tuple[Any, ...]]) -> socket.socket:
        try:
            async with anyio.create_task_group() as tasks:
                for family, kind, protocol, _, sockaddr in found:
                    failed = anyio.Event()
                    tasks.start_soon(self._attempt, tasks, failed, family, kind, protocol, sockaddr)
                    with anyio.move_on_after(ATTEMPT_DELAY_S):
                        await failed.wait()
        except BaseException:
            if self._winner is not None:
                self._winner.close()
            raise
        if self._winner is None:
            raise self._errors[0]
        return self._winner

    async def _attempt(
        self,
        tasks: anyio.abc.TaskGroup,
        failed: anyio.Event,
        family: int,
        kind: int,
        protocol: int,
        sockaddr: tuple[Any, ...],
    ) -> None:
        try:
            connection = await _connect(family, kind, protocol, sockaddr)
        except OSError as error:
            self._errors.append(error)
            failed.set()
            return
        if self._winner is None:
            self._winner = connection
            tasks.cancel_scope.cancel()
        else:
            connection.close()


async def _connect(
    family: int, kind: int, protocol: int, sockaddr: tuple[Any, ...]
) -> socket.socket:
    connection = socket.socket(family, kind, protocol)
    try:
        connection.setblocking(False)
        outcome = connection.connect_ex(sockaddr)
        if outcome == errno.EINPROGRESS:
            await anyio.wait_writable(connection)
            outcome = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if outcome:
            raise OSError(outcome, f"{Address(*sockaddr[:2])}: {errno.errorcode.get(outcome)}")
    except BaseException:
        connection.close()
        raise
    return connection


def _closed() -> OSError:
    return OSError(errno.EBADF, "it was closed on this side")
