"""A command that the user names, run in a shell: what it is given, and how it has ended."""
# ruff: noqa: PLC0415 - the help does without trio

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from busnode.node.presentation import printable

if TYPE_CHECKING:
    import trio

SHELL: Final = "/bin/sh"

LEAVE_S: Final = 5.0
"""How long a command that is told to end may take."""


class Ended(NamedTuple):
    exit_code: int
    stdout: bytes
    """Nothing where it was passed on."""
    errors: str
    """What it has written to stderr."""

    def tell_errors(self) -> None:
        for line in self.errors.splitlines():
            click.echo(printable(line), err=True)


async def execute(
    command: str, stdin: bytes, variables: Mapping[str, str], passed_to: int | None = None
) -> Ended:
    """Run it to its end. What it prints comes back, or goes to a file descriptor as it comes.

    It has a session of its own, so that a Ctrl-C is for us alone: cancelled, it and all that it has
    started is told to end, and is made to after a while.
    """
    import trio

    from busnode.world.real_process import environment

    output: dict[str, Any] = {"stdout": passed_to} if passed_to is not None else {}
    ended = await trio.run_process(
        [SHELL, "-c", command],
        stdin=stdin,
        **output,
        capture_stdout=passed_to is None,
        capture_stderr=True,
        check=False,
        env={**environment(), **variables},
        start_new_session=True,
        deliver_cancel=_end,
    )
    errors = ended.stderr.decode(errors="replace").strip()
    return Ended(ended.returncode, ended.stdout or b"", errors)


async def _end(process: "trio.Process") -> None:
    import signal

    import trio

    from busnode.world.real_process import signal_session

    signal_session(process.pid, signal.SIGTERM)
    await trio.sleep(LEAVE_S)
    signal_session(process.pid, signal.SIGKILL)
