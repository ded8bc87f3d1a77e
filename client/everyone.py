"""The same question to all nodes of the cluster: each tells only what it knows itself."""

import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

import anyio

from busnode.client.directory import SCHEME
from busnode.client.messages import NO_HEADERS
from busnode.client.reply import Reply
from busnode.wire.errors import BusnodeError

STATUS: Final = "/$sys/status"

BRIEFLY: Final = b'{"rows": 0}'
"""A status without lists of clients and logs."""

OTHERS_S: Final = 3.0
"""How long another node may be unreachable: the one that was asked first is linked with it."""

ANSWER_S: Final = 60.0
"""How long all its answers may take: a hundred thousand logs are two hundred pages."""

Status = Mapping[str, Any]

B = TypeVar("B", bound="Asking")
T = TypeVar("T")


class Asking(Protocol):
    """A bus, as far as it asks."""

    async def request(
        self,
        topic: str,
        payload: bytes = b"",
        *,
        headers: Mapping[str, str] = NO_HEADERS,
        timeout: float = ...,
    ) -> Reply: ...


class Neighbour(NamedTuple):
    """Another node, and where its clients go."""

    name: str
    broker_id: str
    url: str


class Told(NamedTuple, Generic[T]):
    """What nodes have answered, by name, the one that was asked first; and who has not, and why."""

    answers: dict[str, T]
    silent: dict[str, str]


async def ask(bus: Asking, topic: str, payload: bytes, timeout_s: float) -> dict[str, Any]:
    """What the node answers on a topic of its own."""
    reply = await bus.request(topic, payload, timeout=timeout_s)
    answer: dict[str, Any] = json.loads(reply.payload)
    return answer


async def ask_pages(
    bus: Asking, topic: str, rows: str, at: str, asked: Mapping[str, Any], timeout_s: float
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


def neighbours(found: Status) -> list[Neighbour]:
    """The nodes that one node is linked with, from its status."""
    return [
        Neighbour(row["name"], row["broker_id"], SCHEME + ",".join(row["clients_at"]))
        for row in found["cluster"]["peers"]
        if row["clients_at"] and (row["link"] == "up" or row["dials_us"])
    ]


def unlinked(found: Status) -> dict[str, str]:
    """The nodes that one node knows by name and is not linked with, and why, from its status."""
    return {
        row["name"]: f"not linked with {found['name']}"
        + (f": {why}" if (why := row["error"]) else "")
        for row in found["cluster"]["peers"]
        if row["name"] is not None and row["link"] != "up" and not row["dials_us"]
    }


class Everyone(Generic[B]):
    """All nodes: the home, and those that it is linked with."""

    def __init__(
        self, bus: B, connect: Callable[[str, float], AbstractAsyncContextManager[B]]
    ) -> None:
        """`connect` is given a URL, and for how long nobody may be there."""
        self._bus = bus
        self._connect = connect

    async def ask(self, timeout_s: float, question: Callable[[B, Status], Awaitable[T]]) -> Told[T]:
        """Put a question to the home and then to all others at once. It is given a connection to
        one node, and the status of the home. A node that the home knows and is not linked with is
        silent. Raises if the home does not answer."""
        told: Told[T] = Told({}, {})
        found = await ask(self._bus, STATUS, BRIEFLY, timeout_s)

        async def ask_one(neighbour: Neighbour) -> None:
            try:
                with anyio.fail_after(ANSWER_S):
                    async with self._connect(neighbour.url, min(timeout_s, OTHERS_S)) as other:
                        told.answers[neighbour.name] = await question(other, found)
            except BusnodeError as error:
                told.silent[neighbour.name] = error.text
            except TimeoutError:
                told.silent[neighbour.name] = f"no whole answer within {ANSWER_S:g} s"

        told.answers[found["name"]] = await question(self._bus, found)
        async with anyio.create_task_group() as tasks:
            for neighbour in neighbours(found):
                tasks.start_soon(ask_one, neighbour)
        for name, why in unlinked(found).items():
            if name not in told.answers:  # an earlier incarnation may be known as well
                told.silent.setdefault(name, why)
        return told
