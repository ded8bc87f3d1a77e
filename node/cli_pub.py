"""`busnode pub`: publishes a message, the same one many times, or one for each line of stdin."""
# ruff: noqa: PLC0415 - the help does without the client and its event loop

import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

import click

from busnode.node.connecting import Target, payload_of, reaching_a_node, run, stdin_chunks
from busnode.node.presentation import counted
from busnode.wire.errors import BatchTooLarge
from busnode.wire.ids import Topic
from busnode.wire.limits import PAYLOAD_BYTES_MAX
from busnode.wire.topics import check_topic

if TYPE_CHECKING:
    from busnode.client import Bus, Receipts

AT_ONCE: Final = 1024
"""Messages that are handed to the publisher at once."""

NOT_ALL_ACKED: Final = 1


def _topic(_: click.Context, __: click.Parameter, text: str) -> Topic:
    return check_topic(text)


def read_headers(_: click.Context, __: click.Parameter, texts: Sequence[str]) -> dict[str, str]:
    """For an option that may be repeated."""
    headers: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"{text!r} is not K=V, such as kind=book")
        headers[name] = value
    return headers


@dataclass
class Outcome:
    """What became of the messages."""

    topic: Topic
    persistent: bool
    sent: int = 0
    """Handed to the client."""
    done: int = 0
    """Acked; those that are not persistent: taken by the socket, and the connection lived on."""
    levels: Counter[str] = field(default_factory=Counter[str])
    """How many were acked at which level, as far as receipts came."""

    def note(self, receipts: "Receipts") -> None:
        for each in receipts.ranges:
            self.levels[each.level] += each.messages

    def take(self, bus: "Bus") -> None:
        statistics = bus.statistics()
        self.done = statistics.acked if self.persistent else statistics.sent

    def fields(self) -> dict[str, object]:
        done = {"acked": self.done, "levels": self.levels} if self.persistent else {}
        return {
            "topic": self.topic,
            "persistent": self.persistent,
            "messages": self.sent,
            "sent": self.done,
            **done,
        }

    def __str__(self) -> str:
        count = counted(self.sent, "message")
        if self.done != self.sent:
            count = f"{self.done:,} of {count}"
        text = f"published {count} to {self.topic}"
        if not self.persistent:
            return text
        return f"{text}, acked: {levels_text(self.levels)}"


def levels_text(levels: Mapping[str, int]) -> str:
    """`mirrored`, `3 mirrored, 2 local`."""
    if len(levels) < 2:
        return next(iter(levels), "level unknown")
    return ", ".join(f"{count:,} {level}" for level, count in levels.items())


@click.command()
@click.argument("topic", callback=_topic)
@click.argument("payload", required=False)
@click.option("--persistent", is_flag=True, help="Wait until it is safe on disk.")
@click.option(
    "--header",
    "headers",
    metavar="K=V",
    multiple=True,
    callback=read_headers,
    help="May be repeated.",
)
@click.option("--id", "message_id", metavar="ID", help="The message's id, for who receives it.")
@click.option("--count", metavar="N", type=click.IntRange(1), help="Publish it N times.")
@click.option("--lines", is_flag=True, help="One message for each line of stdin, as they come.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@reaching_a_node
def pub(
    *,
    topic: Topic,
    payload: str | None,
    persistent: bool,
    headers: dict[str, str],
    message_id: str | None,
    count: int | None,
    lines: bool,
    as_json: bool,
    to: Target,
) -> None:
    """Publish PAYLOAD to TOPIC; without PAYLOAD, what is piped in.

    It goes on through a restart of the node: what was not acked is sent again, and stored once.
    Exit code 1: not all messages were sent and, where persistent, acked.
    """
    if lines and (payload is not None or count is not None):
        raise click.UsageError("--lines takes messages from stdin: no PAYLOAD, no --count")
    if message_id is not None and (lines or count is not None):
        raise click.UsageError("--id is for one message: neither --lines nor --count")
    source = read_lines() if lines else repeated(payload_of(payload), count or 1)
    run(partial(_pub, to, Outcome(topic, persistent), source, headers, message_id, as_json))


async def repeated(payload: bytes, count: int) -> AsyncIterator[list[bytes]]:
    """The same so many times, some at once."""
    while count:
        some = min(count, AT_ONCE)
        count -= some
        yield [payload] * some


async def read_lines() -> AsyncIterator[list[bytes]]:
    """Those of stdin, as they come. BatchTooLarge for one that no payload can be."""
    rest = b""
    async for chunk in stdin_chunks():
        lines = (rest + chunk).split(b"\n")
        rest = lines.pop()
        if len(rest) > PAYLOAD_BYTES_MAX:
            raise BatchTooLarge(f"a line of over {PAYLOAD_BYTES_MAX} bytes, the limit of a payload")
        if lines:
            yield lines
    if rest:
        yield [rest]


async def _pub(
    to: Target,
    outcome: Outcome,
    source: AsyncIterator[list[bytes]],
    headers: dict[str, str],
    message_id: str | None,
    as_json: bool,
) -> int:
    from busnode.client import connect

    bus: Bus | None = None
    try:
        async with connect(
            to.url, name="busnode pub", deadline_s=to.timeout_s, **to.options
        ) as bus:
            await _publish(bus, outcome, source, headers or None, message_id)
    finally:
        # However it ends, Ctrl-C and refusals included: people want to know how far it came.
        if bus is not None:
            outcome.take(bus)
            click.echo(json.dumps(outcome.fields()) if as_json else str(outcome))
    return 0 if outcome.done == outcome.sent else NOT_ALL_ACKED


async def _publish(
    bus: "Bus",
    outcome: Outcome,
    source: AsyncIterator[list[bytes]],
    headers: dict[str, str] | None,
    message_id: str | None,
) -> None:
    out = bus.publisher(outcome.topic, persistent=outcome.persistent)
    async for payloads in source:
        if headers is None and message_id is None:
            await out.send_many(payloads)
            outcome.sent += len(payloads)
        else:
            for payload in payloads:
                await out.send(payload, headers=headers, message_id=message_id)
                outcome.sent += 1
        if bus.statistics().refused:
            break  # what follows would be refused as well: `flush` says why
    outcome.note(await out.flush())
