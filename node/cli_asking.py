"""The same question to all nodes of the cluster: each tells only what it knows itself."""
# ruff: noqa: PLC0415 - the help does without the client and its event loop

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from busnode.node.connecting import SCHEME, Target

if TYPE_CHECKING:
    from busnode.client import Bus

STATUS: Final = "/$sys/status"
TOPICS: Final = "/$sys/topics"
LOGS: Final = "/$sys/logs"
EVENTS: Final = "/$sys/events"

BRIEFLY: Final = b'{"rows": 0}'
"""A status without lists of clients and logs."""

OTHERS_S: Final = 3.0
"""How long another node may be unreachable: the one that was named has said that it is there."""

ANSWER_S: Final = 60.0
"""How long all its answers may take: a hundred thousand logs are two hundred pages."""

Status = Mapping[str, Any]

T = TypeVar("T")


async def ask(bus: "Bus", topic: str, payload: bytes, timeout_s: float) -> dict[str, Any]:
    """What the node answers on a topic of its own."""
    reply = await bus.request(topic, payload, timeout=timeout_s)
    answer: dict[str, Any] = json.loads(reply.payload)
    return answer


async def ask_pages(
    bus: "Bus", topic: str, rows: str, at: str, asked: Mapping[str, Any], timeout_s: float
) -> list[Any]:
    """All rows of an answer that comes in pages; `at` is what says where a page begins."""
    found: list[Any] = []
    place: dict[str, Any] = {}
    while True:
        page = await ask(bus, topic, json.dumps({**asked, **place}).encode(), timeout_s)
        found += page[rows]
        if page["next"] is None:
            return found
        place = {at: page["next"]}


class Neighbour(NamedTuple):
    """Another node, and where its clients go."""

    name: str
    broker_id: str
    url: str


def neighbours(found: Status) -> list[Neighbour]:
    """The nodes that one node is linked with, from its status."""
    return [
        Neighbour(row["name"], row["broker_id"], SCHEME + ",".join(row["clients_at"]))
        for row in found["cluster"]["peers"]
        if row["clients_at"] and (row["link"] == "up" or row["dials_us"])
    ]


class Told(NamedTuple, Generic[T]):
    """What nodes have answered, by name, the one that was named first; and who has not, and why."""

    answers: dict[str, T]
    silent: dict[str, str]


Question = Callable[["Bus", Status], Awaitable[T]]
"""Asks one node, over a connection to it; it is given the status of the first one."""


async def ask_everyone(to: Target, called: str, question: Question[T]) -> Told[T]:
    """Put a question to the node that is named and then to all others at once. Raises if the first
    does not answer."""
    from busnode.client import connect

    async with connect(to.url, name=called, deadline_s=to.timeout_s) as bus:
        return await ask_around(bus, to.timeout_s, called, question)


async def ask_around(bus: "Bus", timeout_s: float, called: str, question: Question[T]) -> Told[T]:
    """The same, from a connection that there is."""
    import trio

    from busnode.client import connect
    from busnode.wire.errors import BusnodeError

    told: Told[T] = Told({}, {})
    patience_s = min(timeout_s, OTHERS_S)
    found = await ask(bus, STATUS, BRIEFLY, timeout_s)

    async def ask_one(neighbour: Neighbour) -> None:
        try:
            with trio.fail_after(ANSWER_S):
                async with connect(neighbour.url, name=called, deadline_s=patience_s) as other:
                    told.answers[neighbour.name] = await question(other, found)
        except BusnodeError as error:
            told.silent[neighbour.name] = error.text
        except trio.TooSlowError:
            told.silent[neighbour.name] = f"no whole answer within {ANSWER_S:g} s"

    told.answers[found["name"]] = await question(bus, found)
    async with trio.open_nursery() as nursery:
        for neighbour in neighbours(found):
            nursery.start_soon(ask_one, neighbour)
    return told
