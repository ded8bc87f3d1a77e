"""What all commands share that talk to a running node: where it is, how long to wait, how to end.

A command's body is one async function on trio. Ctrl-C and SIGTERM cancel it, so that it leaves as
any other function does: cursors are saved, and what was published is sent.
"""
# ruff: noqa: PLC0415 - the help does without trio

import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from functools import wraps
from io import BufferedReader
from typing import Any, Final, NamedTuple, TextIO, TypedDict, cast

import click

from busnode.node.presentation import printable
from busnode.wire.errors import Disconnected
from busnode.wire.limits import PAYLOAD_BYTES_MAX

DEFAULT_URL: Final = "bus://127.0.0.1:4250"
SCHEME: Final = "bus://"
TLS_SCHEME: Final = "bus+tls://"
TIMEOUT_S: Final = 5.0

SIGNALLED: Final = 128
"""A shell's exit code for a process that a signal has ended is this and the signal's number."""

CHUNK_BYTES: Final = 256 * 1024
"""What is read from stdin at once."""

PIPE_BYTES: Final = 4096
"""What a pipe takes without blocking once it says that it is writable (PIPE_BUF)."""


class NoNode(Disconnected):
    """The same, told to somebody who sits at a terminal."""

    advice = (
        "Start a node with `busnode start --cluster-id NAME`, or name one that runs with --url "
        "or BUSNODE_URL; --timeout says how long to try."
    )


class Options(TypedDict, total=False):
    """Of `connect`, as far as they come from flags or the environment."""

    tls_ca: str | None
    tls_cert: str | None
    tls_key: str | None


class Target(NamedTuple):
    """Which node, and for how long none may be reachable."""

    url: str
    timeout_s: float
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None

    @property
    def options(self) -> Options:
        """What `connect` is told beside. Nothing of TLS where the URL is plain: the environment may
        hold files for other commands."""
        if not self.url.startswith(TLS_SCHEME):
            return {}
        return {"tls_ca": self.tls_ca, "tls_cert": self.tls_cert, "tls_key": self.tls_key}


def reaching_a_node(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command --url and --timeout; it is handed both as `to`."""

    @click.option(
        "--url",
        metavar="URL",
        envvar="BUSNODE_URL",
        default=DEFAULT_URL,
        show_default=True,
        help="The nodes to try: bus://HOST:PORT,HOST:PORT, or bus+tls://…; also from BUSNODE_URL.",
    )
    @click.option(
        "--timeout",
        "timeout_s",
        metavar="S",
        type=click.FloatRange(0, min_open=True),
        default=TIMEOUT_S,
        show_default=True,
        help="Give up when no node, or nobody, has answered for so many seconds.",
    )
    @click.option(
        "--tls-ca",
        metavar="FILE",
        envvar="BUSNODE_TLS_CA",
        help="For bus+tls://: who signs nodes' certificates; else those that the machine trusts.",
    )
    @click.option(
        "--tls-cert",
        metavar="FILE",
        envvar="BUSNODE_TLS_CERT",
        help="For bus+tls://: the certificate to show.",
    )
    @click.option(
        "--tls-key",
        metavar="FILE",
        envvar="BUSNODE_TLS_KEY",
        help="For bus+tls://: its private key.",
    )
    @wraps(command)
    def with_target(
        *arguments: Any,
        url: str,
        timeout_s: float,
        tls_ca: str | None,
        tls_cert: str | None,
        tls_key: str | None,
        **options: Any,
    ) -> None:
        url = url if "://" in url else SCHEME + url
        command(*arguments, to=Target(url, timeout_s, tls_ca, tls_cert, tls_key), **options)

    return with_target


def run(main: Callable[[], Awaitable[int]]) -> None:
    """Run a command's body and end with the exit code that it returns, or that of a signal."""
    import trio

    _tell_what_the_client_logs()
    code, signalled = trio.run(_until_signalled, main)
    if signalled:
        import signal

        if signalled == signal.SIGINT:
            raise KeyboardInterrupt
        code = SIGNALLED + signalled
    if code:
        raise click.exceptions.Exit(code)


async def _until_signalled(main: Callable[[], Awaitable[int]]) -> tuple[int, int]:
    """The body's exit code, and the signal that has ended it before its time or 0."""
    import signal

    import trio

    code = signalled = 0

    async def watch(task_status: trio.TaskStatus[None]) -> None:
        nonlocal signalled
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started()
            signalled = await anext(signals)
        # From here on a second one ends it at once.
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        await nursery.start(watch)
        try:
            code = await main()
        except Disconnected as error:
            raise NoNode(error.text) from error
        nursery.cancel_scope.cancel()
    return code, signalled


# What the client library has to say ------------------------------------------------------------


class _ToStderr(logging.Handler):
    """A line for each thing; what is said over and over is said once."""

    def __init__(self) -> None:
        super().__init__()
        self._last = ""

    def emit(self, record: logging.LogRecord) -> None:
        text = printable(record.getMessage())
        if text != self._last:
            self._last = text
            click.echo(f"busnode: {text}", err=True)


def _tell_what_the_client_logs() -> None:
    """Gaps, drops and whatever else it warns of."""
    logger = logging.getLogger("busnode.client")
    logger.setLevel(logging.WARNING)
    logger.propagate = False
    if not logger.handlers:
        logger.addHandler(_ToStderr())


# Standard input and output ---------------------------------------------------------------------
#
# Both may make us wait for as long as they like, and the session must not starve meanwhile. A
# thread would do but for Ctrl-C, which cannot end its waiting. A file cannot be waited for and
# need not be: epoll says so with EPERM.


def _has_stdin() -> bool:
    """False where whoever started us has closed it."""
    return cast("TextIO | None", sys.stdin) is not None


def payload_of(given: str | None) -> bytes:
    """A PAYLOAD of the command line; without one all that stdin has, unless that is a terminal."""
    if given is not None:
        return given.encode(errors="surrogateescape")
    if not _has_stdin() or sys.stdin.isatty():
        raise click.UsageError("no PAYLOAD, and nothing is piped in; '' is an empty one")
    return sys.stdin.buffer.read(PAYLOAD_BYTES_MAX + 1)


async def stdin_chunks() -> AsyncIterator[bytes]:
    """What comes in on stdin, as it comes."""
    import trio

    if not _has_stdin():
        return
    stdin = cast(BufferedReader, sys.stdin.buffer)
    while True:
        with suppress(PermissionError):
            await trio.lowlevel.wait_readable(stdin.fileno())
        chunk = stdin.read1(CHUNK_BYTES)
        if not chunk:
            return
        yield chunk


class Output:
    """Stdout, for a lot of bytes, each piece seen at once by whoever reads."""

    def __init__(self) -> None:
        self._can_wait = True

    async def write(self, data: bytes) -> None:
        """Raises BrokenPipeError when nobody reads any more."""
        import trio

        view = memoryview(data)
        while view:
            piece = view
            if self._can_wait:
                try:
                    await trio.lowlevel.wait_writable(sys.stdout.fileno())
                    piece = view[:PIPE_BYTES]
                except PermissionError:
                    self._can_wait = False
            sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()
            view = view[len(piece) :]
