"""`busnode sub`: prints messages as they come, or from a place in the past on."""
# ruff: noqa: PLC0415 - the help does without the client and its event loop

import base64
import json
from collections.abc import Iterable
from datetime import datetime
from functools import lru_cache, partial
from itertools import islice
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Final, Literal

import click

from busnode.node.cli_times import AGO, parse_past
from busnode.node.connecting import Output, Target, reaching_a_node, run
from busnode.node.presentation import PREVIEW_CHARACTERS, Lines, Part, preview, printable, terminal
from busnode.wire.ids import Pattern
from busnode.wire.topics import check_pattern

if TYPE_CHECKING:
    from busnode.client import Message, MessageBatch, Subscription

_compact: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode

Start = Literal["latest", "earliest"] | datetime


def _pattern(_: click.Context, __: click.Parameter, text: str) -> Pattern:
    return check_pattern(text)


def _start(_: click.Context, __: click.Parameter, text: str) -> Start:
    match text:
        case "latest" | "earliest":
            return text
        case _:
            return parse_past(text, f"latest, earliest, {AGO}")


@click.command()
@click.argument("pattern", callback=_pattern)
@click.option(
    "--from",
    "start",
    metavar="latest|earliest|TIME",
    default="latest",
    show_default=True,
    callback=_start,
    help="Where to begin. TIME is UTC, or how long ago: 2026-01-31T08:00, 10m.",
)
@click.option(
    "--cursors",
    metavar="FILE",
    type=click.Path(dir_okay=False, resolve_path=True),
    help="Keep in FILE how far it came, and go on from there the next time.",
)
@click.option("--durable", metavar="NAME", help="The same, kept by the node under a name.")
@click.option("--queue", metavar="GROUP", help="Share the messages with all others of GROUP.")
@click.option("--count", metavar="N", type=click.IntRange(1), help="End after N messages.")
@click.option("--json", "as_json", is_flag=True, help="A JSON object a line, as `log dump` has.")
@reaching_a_node
def sub(
    *,
    pattern: Pattern,
    start: Start,
    cursors: str | None,
    durable: str | None,
    queue: str | None,
    count: int | None,
    as_json: bool,
    to: Target,
) -> None:
    """Print the messages of all topics that match PATTERN, until Ctrl-C.

    PATTERN is a topic, or one with + for any one level, or * at the end for all that follows; quote
    it. A line has topic, msgNo (- where a message is not persistent) and payload. Whatever cannot
    be had any more is named on stderr.
    """
    run(partial(_sub, to, pattern, start, cursors, durable, queue, count, as_json))


async def _sub(
    to: Target,
    pattern: Pattern,
    start: Start,
    cursors: str | None,
    durable: str | None,
    queue: str | None,
    count: int | None,
    as_json: bool,
) -> int:
    from busnode.client import connect

    async with connect(to.url, name="busnode sub", deadline_s=to.timeout_s, **to.options) as bus:
        subscription = bus.subscribe(
            pattern, start=start, cursors=cursors, durable=durable, queue=queue
        )
        async with subscription as messages:
            await _print(messages, count, as_json)
    return 0


async def _print(messages: "Subscription", count: int | None, as_json: bool) -> None:
    on = terminal()
    lines = Lines(on)
    output = Output()
    async for batch in messages.batches():
        taken = len(batch) if count is None else min(len(batch), count)
        some = islice(batch, taken)
        if as_json:
            await output.write(_json_lines(batch, some))
        elif on is None:
            await output.write(_plain_lines(batch, some))
        else:
            lines.write([_line(lines, message) for message in some])
        if count is not None:
            count -= taken
            if not count:
                messages.worked_off(taken)
                return


def _line(lines: Lines, message: "Message") -> list[Part]:
    number = "-" if message.msg_no is None else str(message.msg_no)
    parts = [(f"{printable(message.topic)} ", "cyan"), (f"{number} ", "bold")]
    return lines.with_payload(parts, message.payload)


def _plain_lines(batch: "MessageBatch", messages: "Iterable[Message]") -> bytes:
    """As `_line` for a pipe. All at once, since it may be many: measured, 2 µs of processor time a
    message, the client's part included."""
    topic = printable(batch.topic)
    lines = [
        f"{topic} {'-' if message.msg_no is None else message.msg_no} "
        f"{preview(message.payload, PREVIEW_CHARACTERS)}\n"
        for message in messages
    ]
    return "".join(lines).encode()


# JSON -----------------------------------------------------------------------------------------


def _json_lines(batch: "MessageBatch", messages: "Iterable[Message]") -> bytes:
    """The fields of `busnode log dump --json`, but for the producer's, which no consumer sees."""
    broker_id = "null" if batch.broker_id is None else f'"{batch.broker_id.hex()}"'
    start = f'{{"broker_id":{broker_id},"topic":{encode_basestring(batch.topic)},"msg_no":'
    lines = [
        f"{start}{'null' if message.msg_no is None else message.msg_no},"
        f'"utc":{_json_utc(message.utc_us)},'
        f'"id":{"null" if message.id is None else encode_basestring(message.id)},'
        f'"headers":{_json_headers(message)},{json_payload(message.payload)}}}\n'
        for message in messages
    ]
    return "".join(lines).encode()


def _json_headers(message: "Message") -> str:
    return _compact(dict(message.headers)) if message.headers else "{}"


def json_payload(payload: bytes) -> str:
    """The member of an object that has the payload: as text where it is text, else in base64."""
    try:
        return f'"payload":{encode_basestring(payload.decode())}'
    except UnicodeDecodeError:
        return f'"payload_base64":"{base64.b64encode(payload).decode("ascii")}"'


@lru_cache(maxsize=64)
def _json_utc(utc_us: int) -> str:
    from busnode.node.log_export import utc_text

    text = utc_text(utc_us)
    return f'null,"utc_us":{utc_us}' if text is None else f'"{text}"'
