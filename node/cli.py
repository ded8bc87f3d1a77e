"""The command line: which commands there are, and what becomes of whatever goes wrong in one.

A command's module is imported when the command is run and not before, since start-up is what
people feel: `busnode --help` takes as long as Python and click do. trio alone would treble it.
"""
# ruff: noqa: PLC0415 - see above
# ruff: noqa: ARG002 - click says what the methods of a group take

import errno
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NoReturn, TextIO, cast

import click

from busnode import __version__
from busnode.node.config import BadSetting
from busnode.wire.errors import (
    BadPattern,
    BadTask,
    BadTopic,
    BusnodeError,
    DataDirectoryInUse,
    NotADataDirectory,
    StorageFailed,
)

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

PROGRAM: Final = "busnode"

COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "start": ("busnode.node.cli_start:start", "Run a node."),
    "dev": ("busnode.node.cli_dev:dev", "Run a cluster on this machine, to try things out."),
    "pub": ("busnode.node.cli_pub:pub", "Publish messages."),
    "sub": ("busnode.node.cli_sub:sub", "Print messages as they come."),
    "request": ("busnode.node.cli_request:request", "Ask a service and print its reply."),
    "reply": ("busnode.node.cli_request:reply", "Answer requests, by echo or a command."),
    "task": ("busnode.node.cli_task:task", "Enqueue tasks, work on them, look at queues."),
    "dlq": ("busnode.node.cli_dlq:dlq", "Look at dead letters: requeue or delete them."),
    "status": ("busnode.node.cli_status:status", "Show how a node is doing."),
    "nodes": ("busnode.node.cli_nodes:nodes", "List the nodes of the cluster and their links."),
    "topics": ("busnode.node.cli_status:topics", "List the topics that a node has."),
    "top": ("busnode.node.cli_top:top", "Watch a node at work."),
    "events": ("busnode.node.cli_events:events", "Print what happens in the cluster."),
    "cursor": ("busnode.node.cli_cursor:cursor", "Look at and move the cursors in a file."),
    "key": ("busnode.node.cli_key:key", "Make keys and certificates."),
    "bench": ("busnode.node.cli_bench:bench", "Measure how fast this machine is."),
    "sim": ("busnode.node.cli_sim:sim", "Run a simulated cluster under faults, from a seed."),
    "log": ("busnode.node.cli_log:log", "Look into a node's logs on disk, with the node down."),
    "pipeline": (
        "busnode.pipeline.commands:pipeline",
        "Archive, check, measure and draw logs, on Spark.",
    ),
    "user": ("busnode.node.cli_user:user", "Say who may come in as a client."),
    "acl": ("busnode.node.cli_acl:acl", "Say whether somebody may do something, and why."),
    "doctor": ("busnode.node.cli_doctor:doctor", "Say what is wrong and what to do."),
    "explain": ("busnode.node.cli_explain:explain", "Say what an error code means."),
}
"""Each command by its name: where it is found, and the line that `--help` shows for it."""

FAILED: Final = 1
WRONG_USAGE: Final = 2
INTERRUPTED: Final = 130
"""What a shell reports for a process that SIGINT has ended."""
BROKEN_PIPE: Final = 141
"""The same for SIGPIPE, so that a script can tell `| head` from a failure."""


class WrongUsage(BusnodeError):
    """The command line asks for something that cannot be, and nothing was done."""

    code = "USAGE"
    advice = "`busnode COMMAND --help` tells what a command takes."


THE_CALLER_CAN_MEND: Final = (
    WrongUsage,
    BadSetting,
    BadPattern,
    BadTask,
    BadTopic,
    DataDirectoryInUse,
    NotADataDirectory,
)
"""Errors of the command line itself, which end with exit code 2."""

ADDRESS_TAKEN: Final = {errno.EADDRINUSE, errno.EADDRNOTAVAIL}


class HelpfulGroup(click.Group):
    """A group that shows its help when it is asked for nothing, and knows what was meant."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args or ["--help"])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, names = args[0], self.list_commands(ctx)
        if name not in names and not name.startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}"
            raise click.UsageError(f"there is no command {name!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)


class LazyGroup(HelpfulGroup):
    """A group that knows the names and help lines of its commands without importing them."""

    def __init__(self, *, table: Mapping[str, tuple[str, str]], **attributes: Any) -> None:
        super().__init__(**attributes)
        self._table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._table:
            return None
        module, _, attribute = self._table[cmd_name][0].partition(":")
        try:
            command = getattr(import_module(module), attribute)
        except ModuleNotFoundError as error:
            if (error.name or PROGRAM).partition(".")[0] == PROGRAM:
                raise
            raise click.ClickException(
                f"{error.name} is not installed: pip install 'busnode[spark]'"
            ) from error
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in self._table.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        """For the shell, which must not wait for every command to be imported either."""
        from click.shell_completion import CompletionItem

        names = [
            CompletionItem(name, help=line)
            for name, (_, line) in self._table.items()
            if name.startswith(incomplete)
        ]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]


class CommandLine(LazyGroup):
    """The outermost group: every way in which a command ends becomes an exit code here."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> NoReturn:
        """Run the command and end the process, whatever the mode."""
        arguments = sys.argv[1:] if args is None else list(args)
        self._main_shell_completion(extra, prog_name or PROGRAM, complete_var)
        try:
            code = self._run(arguments, extra)
        except BrokenPipeError:
            _close(sys.stdout, sys.stderr)
            code = BROKEN_PIPE
        sys.exit(code)

    def _run(self, arguments: list[str], extra: dict[str, Any]) -> int:
        code, told = 0, False
        try:
            with self.make_context(PROGRAM, list(arguments), **extra) as context:
                self.invoke(context)
        except click.exceptions.Exit as ended:
            code = ended.exit_code
        except (
            BusnodeError,
            click.ClickException,
            click.Abort,
            OSError,
            KeyboardInterrupt,
            BaseExceptionGroup,
        ) as raised:
            code, told = _told_code(_only_one(raised), arguments), True
        try:
            sys.stdout.flush()  # now, or Python complains at the very end if it cannot
        except OSError as error:
            if not told:
                code = _told_code(error, arguments)
            _close(sys.stdout)
        return code


def _close(*streams: TextIO) -> None:
    """Let go of what is buffered and cannot be written."""
    for stream in streams:
        with suppress(OSError):
            stream.close()


def _told_code(error: BaseException, arguments: list[str]) -> int:
    """The exit code for an error, which people have then been told of where there is a need."""
    if isinstance(error, BrokenPipeError):
        raise error
    if isinstance(error, KeyboardInterrupt | click.Abort):
        if sys.stderr.isatty():
            click.echo(err=True)  # the prompt shall not stand behind a ^C
        return INTERRUPTED
    return _report(error, as_json=_wants_json(arguments))


def _only_one(error: BaseException) -> BaseException:
    """The error itself where nurseries have wrapped a single one, each in a group of its own."""
    while isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        if len(group.exceptions) != 1:
            return group
        error = group.exceptions[0]
    return error


def _wants_json(arguments: list[str]) -> bool:
    """Whether `--json` was given. Asked of the words: the parser may be what failed."""
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--json" in options


def _report(error: BaseException, *, as_json: bool) -> int:
    """Say what went wrong on stderr, a line and an advice, and return the exit code."""
    code, text, advice = _told(error)
    if as_json:
        import json

        told = {"error": code, "text": text, "advice": advice}
        click.echo(json.dumps(told, ensure_ascii=False).encode(), err=True)
    else:
        from busnode.node.presentation import printable

        click.echo(f"{PROGRAM}: {code}: {printable(text)}\n  → {printable(advice)}", err=True)
    return WRONG_USAGE if _is_the_callers(error) else FAILED


def _is_the_callers(error: BaseException) -> bool:
    match error:
        case click.ClickException():
            return error.exit_code == WRONG_USAGE
        case OSError():
            return error.errno in ADDRESS_TAKEN
        case _:
            return isinstance(error, THE_CALLER_CAN_MEND)


def _told(error: BaseException) -> tuple[str, str, str]:
    """Code, text and advice for an error that somebody may expect; any other is a bug of ours."""
    match error:
        case BusnodeError():
            return error.code, error.text, error.advice
        case click.UsageError(ctx=click.Context() as context):
            advice = f"`{context.command_path} --help` tells what it takes."
            return WrongUsage.code, error.format_message(), advice
        case click.ClickException():
            return WrongUsage.code, error.format_message(), WrongUsage.advice
        case OSError() if error.errno in ADDRESS_TAKEN:
            advice = "Stop whoever listens there, or name another port; 0 picks a free one."
            return WrongUsage.code, _system_text(error), advice
        case OSError():
            return StorageFailed.code, _system_text(error), StorageFailed.advice
        case _:
            raise error


def _system_text(error: OSError) -> str:
    text = error.strerror or str(error)
    return f"{error.filename}: {text}" if error.filename else text


@click.command(
    cls=CommandLine,
    name=PROGRAM,
    table=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, message="busnode %(version)s")
def main() -> None:
    """A clustered message bus: what was acknowledged is on two disks."""
