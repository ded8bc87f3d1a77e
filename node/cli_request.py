"""`busnode request` asks whoever provides a topic; `busnode reply` is one who does."""
# ruff: noqa: PLC0415 - the help does without the client and its event loop

import json
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from busnode.node.cli_exec import execute
from busnode.node.cli_sub import json_payload
from busnode.node.connecting import Target, payload_of, reaching_a_node, run
from busnode.node.presentation import Lines, Part, counted, printable, size
from busnode.wire.ids import Pattern, Topic
from busnode.wire.topics import check_pattern, check_topic

if TYPE_CHECKING:
    from busnode.client import Reply, Request

SOME_FAILED: Final = 1
ERROR_CHARACTERS_MAX: Final = 500
"""What an error reply tells of a command's stderr: its end, where the reason usually stands."""


def _topic(_: click.Context, __: click.Parameter, text: str) -> Topic:
    return check_topic(text)


def _pattern(_: click.Context, __: click.Parameter, text: str) -> Pattern:
    return check_pattern(text)


_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, an object a line.")


# request --------------------------------------------------------------------------------------


@click.command()
@click.argument("topic", callback=_topic)
@click.argument("payload", required=False)
@click.option("--many", is_flag=True, help="Ask all who provide the topic, not the first.")
@_as_json
@reaching_a_node
def request(*, topic: Topic, payload: str | None, many: bool, as_json: bool, to: Target) -> None:
    """Ask whoever provides TOPIC, and print the reply. Without PAYLOAD, what is piped in is asked.

    In a pipe the reply is written byte for byte; with --many each ends with a new line. Exit code
    1: nobody answered, or one who did has failed.
    """
    run(partial(_request, to, topic, payload_of(payload), many, as_json))


async def _request(to: Target, topic: Topic, payload: bytes, many: bool, as_json: bool) -> int:
    from busnode.client import connect

    show = _show_json if as_json else partial(_show, many=many)
    failed = 0
    async with connect(
        to.url, name="busnode request", deadline_s=to.timeout_s, **to.options
    ) as bus:
        if not many:
            show(await bus.request(topic, payload, timeout=to.timeout_s))
            return 0
        answers = 0
        async for reply in bus.request_many(topic, payload, timeout=to.timeout_s):
            show(reply)
            answers += 1
            failed += reply.error is not None
    if not as_json:
        failures = f", {counted(failed, 'error')}" if failed else ""
        click.echo(f"{counted(answers, 'answer')}{failures}", err=True)
    return SOME_FAILED if failed or not answers else 0


def _show(reply: "Reply", many: bool) -> None:
    if reply.error is not None:
        click.echo(f"busnode: {printable(str(reply.error))}", err=True)
    elif sys.stdout.isatty():
        text = reply.payload.decode(errors="backslashreplace")
        Lines().write([[(printable(line), "")] for line in text.splitlines() or [""]])
    else:
        click.echo(reply.payload, nl=many)
        sys.stdout.flush()


def _show_json(reply: "Reply") -> None:
    headers = json.dumps(dict(reply.headers), ensure_ascii=False)
    if reply.error is not None:
        told = json.dumps({"error": reply.error.code, "text": reply.error.text})
        click.echo(f'{told[:-1]},"headers":{headers}}}')
    else:
        click.echo(f'{{"headers":{headers},{json_payload(reply.payload)}}}'.encode())


# reply ----------------------------------------------------------------------------------------


class CommandFailed(Exception):
    """The command of --exec has not ended well; whoever asked is told so."""


Answering = Callable[["Request"], Awaitable[bytes]]


@click.command()
@click.argument("topic", metavar="PATTERN", callback=_pattern)
@click.option("--echo", is_flag=True, help="The reply is what was asked.")
@click.option(
    "--exec",
    "command",
    metavar="CMD",
    help="Run CMD in a shell for each request: it reads the payload from stdin, and what it prints "
    "is the reply. BUSNODE_TOPIC is the topic.",
)
@click.option("--count", metavar="N", type=click.IntRange(1), help="End after N requests.")
@_as_json
@reaching_a_node
def reply(
    *,
    topic: Pattern,
    echo: bool,
    command: str | None,
    count: int | None,
    as_json: bool,
    to: Target,
) -> None:
    """Answer requests on all topics that match PATTERN, until Ctrl-C.

    A CMD that ends with another exit code than 0 is an error for whoever asked, with what it has
    written to stderr. A line tells of each request.
    """
    if echo == (command is not None):
        raise click.UsageError("how to answer? Give one of --echo and --exec CMD")
    answer = _echo if command is None else partial(_execute, command)
    run(partial(_reply, to, topic, answer, count, as_json))


async def _echo(request: "Request") -> bytes:
    return request.payload


async def _execute(command: str, request: "Request") -> bytes:
    ended = await execute(command, request.payload, {"BUSNODE_TOPIC": request.topic})
    if ended.exit_code:
        said = f": {ended.errors[-ERROR_CHARACTERS_MAX:]}" if ended.errors else ""
        raise CommandFailed(f"exit code {ended.exit_code}{said}")
    ended.tell_errors()
    return ended.stdout


async def _reply(
    to: Target, topic: Pattern, answer: Answering, count: int | None, as_json: bool
) -> int:
    import trio

    from busnode.client import connect

    answered = 0
    enough = trio.Event()
    lines = Lines()

    async def handle(request: "Request") -> bytes:
        nonlocal answered
        outcome: dict[str, Any] = {"topic": request.topic, "request_bytes": len(request.payload)}
        try:
            answer_bytes = await answer(request)
            outcome["reply_bytes"] = len(answer_bytes)
            return answer_bytes
        except CommandFailed as error:
            outcome["error"] = str(error)
            raise
        finally:
            if len(outcome) > 2:  # it was not cancelled
                _tell(lines, outcome, as_json)
                answered += 1
                if answered == count:
                    enough.set()

    async with (
        connect(to.url, name="busnode reply", deadline_s=to.timeout_s, **to.options) as bus,
        bus.provide(topic, handle),
    ):
        click.echo(f"answering on {topic}; Ctrl-C ends it", err=True)
        await enough.wait()
    return 0


def _tell(lines: Lines, outcome: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(outcome, ensure_ascii=False).encode())
    else:
        parts: list[Part] = [
            (f"{printable(outcome['topic'])} ", "cyan"),
            (f"{size(outcome['request_bytes'])} → ", "dim"),
        ]
        if "error" in outcome:
            parts.append((printable(outcome["error"]), "red"))
        else:
            parts.append((size(outcome["reply_bytes"]), "dim"))
        lines.write([parts])
    sys.stdout.flush()
