"""The same question to all nodes of the cluster, for commands."""
# ruff: noqa: PLC0415 - the help does without the client and its event loop

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from busnode.node.connecting import Target

if TYPE_CHECKING:
    from busnode.client import Bus
    from busnode.client.everyone import Neighbour, Told

STATUS: Final = "/$sys/status"
TOPICS: Final = "/$sys/topics"
LOGS: Final = "/$sys/logs"
EVENTS: Final = "/$sys/events"
TASKS: Final = "/$sys/tasks"

BRIEFLY: Final = b'{"rows": 0}'
"""A status without lists of clients and logs."""

OTHERS_S: Final = 3.0
"""How long another node may be unreachable: the one that was named has said that it is there."""

Status = Mapping[str, Any]

T = TypeVar("T")

Question = Callable[["Bus", Status], Awaitable[T]]
"""Asks one node, over a connection to it; it is given the status of the first one."""


async def ask(bus: "Bus", topic: str, payload: bytes, timeout_s: float) -> dict[str, Any]:
    """What the node answers on a topic of its own."""
    from busnode.client import everyone

    return await everyone.ask(bus, topic, payload, timeout_s)


async def ask_pages(
    bus: "Bus", topic: str, rows: str, at: str, asked: Mapping[str, Any], timeout_s: float
) -> list[Any]:
    """All rows of an answer that comes in pages; `at` is what says where a page begins."""
    from busnode.client import everyone

    return await everyone.ask_pages(bus, topic, rows, at, asked, timeout_s)


def neighbours(found: Status) -> "list[Neighbour]":
    """The nodes that one node is linked with, from its status."""
    from busnode.client import everyone

    return everyone.neighbours(found)


async def ask_everyone(to: Target, called: str, question: Question[T]) -> "Told[T]":
    """Put a question to the node that is named and then to all others at once. Raises if the first
    does not answer."""
    from busnode.client import connect

    async with connect(to.url, name=called, deadline_s=to.timeout_s, **to.options) as bus:
        return await ask_around(bus, to.timeout_s, called, question)


async def ask_around(bus: "Bus", timeout_s: float, called: str, question: Question[T]) -> "Told[T]":
    """The same, from a connection that there is."""
    from busnode.client.everyone import Everyone

    def reach(url: str, deadline_s: float) -> "AbstractAsyncContextManager[Bus]":
        return bus.reach(url, deadline_s, called)

    return await Everyone(bus, reach).ask(timeout_s, question)
