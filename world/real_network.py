"""The real network: non-blocking TCP sockets, with nothing between them and the hot path."""

import errno
import os
import socket
from io import UnsupportedOperation

import trio

from busnode.world.files import Bytes, ReadFile
from busnode.world.network import Address, Crowd, Listener, Stream, Tls
from busnode.world.real_crowd import RealCrowd
from busnode.world.real_interfaces import reachable_addresses
from busnode.world.tls import TlsTerms

BACKLOG = 1024
"""A whole cluster's clients come back at once after an outage; the kernel lowers it to its own."""

EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""What `accept` says when this machine has no room for one more connection: room comes back."""

EXHAUSTED_PAUSE_S = 0.1
"""The socket stays readable meanwhile, so without a pause the loop would spin."""

COPY_BYTES = 256 * 1024
"""What is copied at once from a file that is no file of the system."""

GIVEN_UP = frozenset(
    {
        errno.ECONNABORTED,
        errno.EPERM,
        errno.EPROTO,
        errno.ENETDOWN,
        errno.ENOPROTOOPT,
        errno.EHOSTDOWN,
        errno.ENONET,
        errno.EHOSTUNREACH,
        errno.EOPNOTSUPP,
        errno.ENETUNREACH,
    }
)
"""What `accept` says about one connection that died before it was taken: see accept(2), Linux."""


class RealStream:
    """One TCP connection. It has one reader and one writer; the owner closes it."""

    __slots__ = ("_fd", "_socket", "peer")

    certificate = None

    def __init__(self, connection: socket.socket, peer: Address) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.peer = peer
        self._socket = connection
        self._fd = connection.fileno()

    @property
    def local(self) -> Address:
        """This end, as the other one sees it."""
        return _address(self._socket.getsockname())

    @property
    def descriptor(self) -> int:
        return self._fd

    def receive_into(self, view: memoryview) -> int | None:
        assert view, "no bytes would look like the end of the stream"
        try:
            return self._socket.recv_into(view)
        except BlockingIOError:
            return None

    def send(self, data: Bytes) -> int:
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0

    def send_both(self, first: Bytes, second: Bytes) -> int:
        try:
            return self._socket.sendmsg((first, second))
        except BlockingIOError:
            return 0

    def send_range(self, file: ReadFile, offset: int, length: int) -> int:
        try:
            sent = os.sendfile(self._fd, file.fileno(), offset, length)
        except BlockingIOError:
            return 0
        except UnsupportedOperation:  # it lies in memory
            return self._send_copy(file, offset, min(length, COPY_BYTES))
        if sent == 0 and length:
            raise _ends_before(file)
        return sent

    def _send_copy(self, file: ReadFile, offset: int, length: int) -> int:
        view = memoryview(bytearray(length))
        count = file.read_into(view, offset)
        if count == 0 and length:
            raise _ends_before(file)
        return self.send(view[:count])

    async def wait_readable(self) -> None:
        self._check_open()
        try:
            await trio.lowlevel.wait_readable(self._fd)
        except trio.ClosedResourceError as error:
            raise _closed() from error

    async def wait_writable(self) -> None:
        self._check_open()
        try:
            await trio.lowlevel.wait_writable(self._fd)
        except trio.ClosedResourceError as error:
            raise _closed() from error

    def _check_open(self) -> None:
        # Two who wait for a descriptor that is none would be taken for two who wait for the same.
        if self._fd < 0:
            raise _closed()

    def close(self) -> None:
        """What was sent is still delivered; who waits here gets an `OSError`."""
        if self._fd >= 0:
            trio.lowlevel.notify_closing(self._fd)
            self._fd = -1
            self._socket.close()


class RealListener:
    def __init__(self, listening: socket.socket, tls: Tls | None = None) -> None:
        self.address = _address(listening.getsockname())
        self._socket = listening
        self._tls = tls

    async def accept(self) -> Stream:
        """Waits out a shortage of descriptors or memory; a listener dies only by `close`."""
        while True:
            # First a checkpoint: a flood of connections must not keep the loop from its other work.
            await trio.lowlevel.checkpoint()
            try:
                return self._accept()
            except BlockingIOError:
                await self._wait_readable()
            except OSError as error:
                if error.errno in EXHAUSTED:
                    await trio.sleep(EXHAUSTED_PAUSE_S)
                elif error.errno not in GIVEN_UP:
                    raise

    def accept_nowait(self) -> Stream | None:
        try:
            return self._accept()
        except OSError:
            return None

    def _accept(self) -> Stream:
        connection, sockaddr = self._socket.accept()
        stream = RealStream(connection, _address(sockaddr))
        return stream if self._tls is None else self._tls.wrap(stream, None)

    async def _wait_readable(self) -> None:
        try:
            await trio.lowlevel.wait_readable(self._socket)
        except trio.ClosedResourceError as error:
            raise _closed() from error

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()


class RealNetwork:
    async def dial(self, address: Address, tls: Tls | None = None) -> Stream:
        """Tries all addresses that the host's name stands for; a slow one does not hold up another.

        When none answers it raises the error of the one that failed first.
        """
        opened = await _open(address)
        if isinstance(opened, OSError):
            try:
                raise opened
            finally:
                del opened  # whose traceback has this frame
        stream = opened
        connection = socket.socket(fileno=stream.socket.detach())
        try:
            # trio has it called writable only below 16 KiB unsent; a sendfile wants all the buffer.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, 0)
            dialled = RealStream(connection, _address(connection.getpeername()))
            return dialled if tls is None else tls.wrap(dialled, address.host)
        except OSError:  # it was reset meanwhile
            connection.close()
            raise

    async def listen(self, address: Address, tls: Tls | None = None) -> Listener:
        """Where a name stands for several addresses, the first that can be bound is taken.

        `::` serves IPv4 too.
        """
        found = await trio.socket.getaddrinfo(
            address.host or None, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        first_error: OSError | None = None
        for family, kind, protocol, _, sockaddr in found:
            listening = socket.socket(family, kind, protocol)
            try:
                listening.setblocking(False)
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                listening.bind(sockaddr)
                listening.listen(BACKLOG)
                return RealListener(listening, tls)
            except OSError as error:
                listening.close()
                first_error = first_error or error
        raise first_error or OSError(errno.EADDRNOTAVAIL, f"{address} stands for no address")

    def crowd(self) -> Crowd:
        return RealCrowd()

    def tls(self, terms: TlsTerms) -> Tls:
        return real_tls(terms)

    def reachable_at(self, address: Address) -> list[Address]:
        return [Address(host, address.port) for host in reachable_addresses(address.host)]


def real_tls(terms: TlsTerms) -> Tls:
    from busnode.world.real_tls import RealTls  # noqa: PLC0415 - who has no TLS is up sooner

    return RealTls(terms)


def _address(sockaddr: tuple[str, int] | tuple[str, int, int, int]) -> Address:
    """An address that can be dialled: with the scope of a link-local one, and IPv4 as IPv4."""
    if len(sockaddr) == 2:
        return Address(*sockaddr)  # IPv4, in numbers already
    host, port = socket.getnameinfo(sockaddr, socket.NI_NUMERICHOST | socket.NI_NUMERICSERV)
    if "." in host:
        host = host.removeprefix("::ffff:")
    return Address(host, int(port))


async def _open(address: Address) -> trio.SocketStream | OSError:
    try:
        return await trio.open_tcp_stream(address.host, address.port)
    except OSError as error:
        return _first_of(error)


def _first_of(error: OSError) -> OSError:
    """What the first of the addresses failed with.

    Who cannot be dialled is dialled again and again. trio's errors have frames that have these
    errors; what is not cut apart here waits for the garbage collector, 80 objects each time.
    """
    match error.__cause__:
        case BaseExceptionGroup(exceptions=(OSError() as first, *_) as all_of_them):
            for each in all_of_them:
                each.__traceback__ = None
            return first
        case _:
            return error.with_traceback(None)


def _ends_before(file: ReadFile) -> OSError:
    return OSError(errno.ENODATA, "the file ends before the range", file.path)


def _closed() -> OSError:
    return OSError(errno.EBADF, "it was closed on this side")
