"""Who may do what, on every path that leads to content: identity × verb × topic × path.

Each row is one way to content. Somebody who may go it gets the content, which shows that the way is
open; for everybody else there is no byte of it in anything that their socket receives, and what
they are told is the same whether there is such a topic or not. What a node can do for a client and
is in no row fails the last tests.
"""

import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from busnode.node.pages import pages
from busnode.node.task_answers import ACTS
from busnode.security.verbs import VERBS, Verb
from busnode.wire.batches import Columns, encode_columns
from busnode.wire.control import (
    Ack,
    Control,
    Error,
    Provide,
    Reply,
    Request,
    Subscribe,
    Subscribed,
    TaskDone,
    TaskPoll,
    Tasks,
    TaskSettled,
)
from busnode.wire.frames import CONTROL_PREFIX_BYTES, PREFIX_BYTES, FrameType
from busnode.wire.sessions import CLIENT_TABLE, Side, State

from .guarded import GuardedClient, Nodes, Papers, came_as, token_of
from .raw_client import AMPLE, LIVE, PERSISTENT, WAIT_S, Bus
from .test_http import send, until_closed

PAYLOAD: Final = b"MARKED-PAYLOAD"
HEADER: Final = "MARKED-HEADER"
UNTOLD: Final = "/secret/MARKED-TOPIC"
"""A topic that nobody names who may not have it."""

HASH_BYTES: Final = CONTROL_PREFIX_BYTES - PREFIX_BYTES
MARKS: Final = (PAYLOAD, base64.b64encode(PAYLOAD), HEADER.encode(), UNTOLD.encode())

KNOWN: Final = "secret-known"
MISSING: Final = "secret-phony"
DEAD_QUEUE: Final = "secret-buried"
UNBURIED: Final = "secret-absent"

ACL: Final = """
[ada.allow]
any = ["/secret/*", "/$task/*"]

[root.allow]
any = ["/*", "/$task/*", "/$sys/*"]

[eve.allow]
any = ["/other/*", "/$task/other"]

["mallory".allow]
any = ["/*", "/$task/*", "/$sys/*"]
["mallory".deny]
any = ["/secret/*", "/$task/secret-known", "/$task/secret-phony",
  "/$task/secret-buried", "/$task/secret-absent", "/$sys/*"]

[anonymous.allow]
subscribe = ["/news"]
"""

DENIED: Final = ("eve", "mallory", "nil", "anonymous")
"""Who has rights elsewhere, who is denied what all else allows, who has none, and who is nobody."""

Act = Callable[["Stage", GuardedClient, str], Awaitable[None]]


@dataclass(frozen=True)
class Row:
    path: str
    verb: Verb
    act: Act
    at: str = "a"
    who: str = "ada"
    """Who may."""
    kind: FrameType | None = None
    """What the client sends for it."""
    names: bool = True
    """Whether it names what it is about, so that unknown and forbidden can be compared."""
    content: bool = True
    """Whether who may gets content for it."""


@dataclass
class Stage:
    a: Bus
    b: Bus
    origin: bytes
    """A node that has died, and whose log is held by its mirror."""
    writer: GuardedClient
    task_ids: list[str]

    def bus(self, row: Row) -> Bus:
        return self.a if row.at == "a" else self.b


async def answered(client: GuardedClient, *kinds: type[Control]) -> Control:
    """The first answer: one of these, or an error."""
    passed: list[Any] = []
    while True:
        event = await client.receive()
        if isinstance(event, Control) and isinstance(event, (Error, *kinds)):
            client._events.extendleft(reversed(passed))  # pyright: ignore[reportPrivateUsage]
            return event
        passed.append(event)


def marked(topic: str, client: GuardedClient, flags: int) -> bytes:
    body = encode_columns(Columns([PAYLOAD], headers=[{"k": HEADER}]))
    return client.batch(topic, body=body, flags=flags, count=1)


async def publish_more(stage: Stage) -> None:
    """What is live while a row goes on: both topics, kept and not."""
    frames = [
        marked(topic, stage.writer, flags)
        for topic in (f"/secret/{KNOWN}", UNTOLD)
        for flags in (LIVE, PERSISTENT)
    ]
    await stage.writer.send(*frames)
    await stage.writer.expect(Ack)
    await stage.writer.barrier()


ASKED: Final[set[str]] = set()
"""The system's topics that rows ask."""

# The ways -----------------------------------------------------------------------------------------


def subscribing(
    start: str | int | None,
    pattern: str | None = None,
    *,
    durable: str | None = None,
    queue: str | None = None,
    of_dead: bool = False,
) -> Act:
    async def act(stage: Stage, client: GuardedClient, name: str) -> None:
        topic = f"/secret/{name}"
        position = {stage.origin: {topic: 0}} if of_dead else {}
        message = Subscribe(1, pattern or topic, start, position, durable, queue, AMPLE)  # type: ignore[arg-type]
        await client.send(message)
        await answered(client, Subscribed)
        if start == "latest":
            await publish_more(stage)

    return act


async def publish(stage: Stage, client: GuardedClient, name: str) -> None:
    del stage
    await client.send(client.batch(f"/secret/{name}", [b"x"]))
    await answered(client, Ack)


async def publish_live(stage: Stage, client: GuardedClient, name: str) -> None:
    del stage
    await client.send(client.batch(f"/secret/{name}", [b"x"], LIVE))


async def request(stage: Stage, client: GuardedClient, name: str) -> None:
    del stage
    await client.send(Request(1, 0, f"/secret/{name}", {}, b"?", False, 10.0))
    await answered(client, Reply)


async def provide(stage: Stage, client: GuardedClient, name: str) -> None:
    await client.send(Provide(1, f"/secret/{name}/service", True))
    await client.barrier_kept()
    asked = Request(77, 0, f"/secret/{name}/service", {"k": HEADER}, PAYLOAD, False, 0.5)
    await stage.writer.send(asked)
    with trio.move_on_after(WAIT_S):
        await stage.writer.expect(Reply, lambda reply: reply.request == 77)


async def enqueue(stage: Stage, client: GuardedClient, name: str) -> None:
    del stage
    await client.send(client.batch(f"/$task/{name}", [b"x"]))
    await answered(client, Ack)


async def poll(stage: Stage, client: GuardedClient, name: str) -> None:
    del stage
    await client.send(TaskPoll(1, name, 1, 20.0, 0, "w"))
    await answered(client, Tasks)


async def settle(stage: Stage, client: GuardedClient, name: str) -> None:
    """With a number and a fence that are right."""
    owner = stage.a.broker_id
    await client.send(TaskDone(1, owner, name, "complete", [1], [1], "", 0.0, 0))
    await answered(client, TaskSettled)


def asking(topic: str, **question: Any) -> Act:
    ASKED.add(topic)

    async def act(stage: Stage, client: GuardedClient, name: str) -> None:
        said: dict[str, Any] = {}
        for key, value in question.items():
            match value:
                case "NAME":
                    said[key] = name if key == "queue" else f"/secret/{name}"
                case "BURIED":
                    said[key] = DEAD_QUEUE if name == KNOWN else UNBURIED
                case "IDS":
                    said[key] = stage.task_ids
                case "LOG":
                    said[key] = [[stage.a.broker_id.hex(), f"/secret/{name}"]]
                case _:
                    said[key] = value
        await client.send(Request(1, 0, topic, {}, json.dumps(said).encode(), False, 10.0))
        await answered(client, Reply)

    return act


SUBSCRIBE, BATCH, TASKS = FrameType.SUBSCRIBE, FrameType.BATCH, "/$sys/tasks"

ROWS: Final = [
    Row("direct", "publish", publish, kind=BATCH, content=False),
    Row("direct, not persistent", "publish", publish_live, kind=BATCH, content=False),
    *(
        Row(f"{way}, {what}", "subscribe", subscribing(start, pattern), at, kind=SUBSCRIBE,
            names=pattern is None)
        for at, way in (("a", "direct"), ("b", "forwarded"))
        for what, pattern in (("by name", None), ("all", "/*"), ("below", "/secret/*"))
        for start in ("latest",)
    ),
    *(
        Row(f"replay {way}, {what}", "subscribe", subscribing(start, pattern), at, kind=SUBSCRIBE,
            names=pattern is None)
        for at, way in (("a", "of own logs"), ("b", "of another's logs"))
        for what, pattern in (("by name", None), ("all", "/*"), ("one level", "/secret/+"))
        for start in ("earliest", 0)
    ),
    *(
        Row(f"replay of the dead, at {at}, {what}", "subscribe",
            subscribing(None, pattern, of_dead=True), at, kind=SUBSCRIBE, names=pattern is None)
        for at in "ab"
        for what, pattern in (("by name", None), ("all", "/*"))
    ),
    *(
        Row(f"durable at {at}, {what}", "subscribe",
            subscribing("earliest", pattern, durable=f"d{len(what)}"), at, kind=SUBSCRIBE,
            names=pattern is None)
        for at in "ab"
        for what, pattern in (("by name", None), ("all", "/*"))
    ),
    *(
        Row(f"queue group at {at}, {what}", "subscribe",
            subscribing("latest", pattern, queue=f"q{what}{at}"), at, kind=SUBSCRIBE,
            names=pattern is None)
        for at in "ab"
        for what, pattern in (("by name", None), ("below", "/secret/*"))
    ),
    *(
        Row(f"queue group at {at}, all", "subscribe", subscribing("latest", "/*", queue=f"all{at}"),
            at, who="root", kind=SUBSCRIBE, names=False)
        for at in "ab"
    ),
    Row("request, direct", "request", request, kind=FrameType.REQUEST),
    Row("request, over a hop", "request", request, "b", kind=FrameType.REQUEST),
    Row("provide, direct", "provide", provide, kind=FrameType.PROVIDE),
    Row("provide, over a hop", "provide", provide, "b", kind=FrameType.PROVIDE),
    Row("enqueue", "publish", enqueue, kind=BATCH, content=False),
    Row("poll", "queue", poll, kind=FrameType.TASK_POLL),
    Row("poll over a hop", "queue", poll, "b", kind=FrameType.TASK_POLL),
    Row("settle", "queue", settle, kind=FrameType.TASK_DONE, content=False),
    Row("settle over a hop", "queue", settle, "b", kind=FrameType.TASK_DONE, content=False),
    Row("queues", "queue", asking(TASKS, do="queues", queue="NAME"), content=False),
    Row("all queues", "queue", asking(TASKS, do="queues"), names=False, content=False),
    Row("tasks", "queue", asking(TASKS, do="ls", queue="NAME"), content=False),
    Row("dead letters", "queue", asking(TASKS, do="dead", queue="BURIED"), content=False),
    Row("dead letter", "queue", asking(TASKS, do="show", queue="BURIED", ids="IDS")),
    Row("requeue", "admin", asking(TASKS, do="requeue", queue="BURIED", ids=["x"]), content=False),
    Row("delete", "admin", asking(TASKS, do="delete", queue="BURIED", ids=["x"]), content=False),
    Row("purge", "admin", asking(TASKS, do="purge", queue="NAME"), content=False),
    Row("status", "admin", asking("/$sys/status", rows=100), who="root"),
    Row("events", "admin", asking("/$sys/events"), who="root", content=False),
    Row("topics", "subscribe", asking("/$sys/topics", pattern="NAME"), content=False),
    Row("all topics", "subscribe", asking("/$sys/topics"), names=False),
    Row("logs", "subscribe", asking("/$sys/logs", pattern="NAME"), content=False),
    Row("named logs", "subscribe", asking("/$sys/logs", logs="LOG"), content=False),
    Row("all logs", "subscribe", asking("/$sys/logs"), names=False),
    Row("system topics", "subscribe", subscribing("earliest", "/$sys/*"), who="root",
        kind=SUBSCRIBE, names=False, content=False),
    Row("tasks as messages", "subscribe", subscribing("earliest", "/$task/*"), kind=SUBSCRIBE,
        names=False),
    Row("a queue as messages", "subscribe", subscribing("earliest", "/$task/secret-known"),
        kind=SUBSCRIBE, names=False),
]  # fmt: skip


FILTERED: Final = ("queues", "topics", "logs", "named logs")
"""What is answered with what there is for who asks, be it nothing."""

# The stage ----------------------------------------------------------------------------------------


@asynccontextmanager
async def staged(folder: Path) -> AsyncIterator[Stage]:
    papers = Papers(folder / "papers", "ada", "root", "eve", "mallory", "nil", acl=ACL)
    nodes = Nodes(folder, papers)
    async with AsyncExitStack() as stack:
        a = await stack.enter_async_context(nodes.running("a", http_port=0))
        b = await stack.enter_async_context(nodes.running("b"))
        async with nodes.running("c") as c, came_as(c.network, c.node.address, "ada", 9) as writer:
            await writer.send(marked(f"/secret/{KNOWN}", writer, PERSISTENT))
            await writer.send(marked(UNTOLD, writer, PERSISTENT))
            await writer.expect(Ack)
            origin = c.broker_id
            await b.settled(
                lambda: any(
                    log.log_id.broker_id == origin and log.committed_no
                    for bus in (a, b)
                    for log in bus.node.store.logs()
                )
            )
        await nodes.meshed()
        writer = await stack.enter_async_context(came_as(a.network, a.node.address, "root", 10))
        for topic in (f"/secret/{KNOWN}", UNTOLD):
            await writer.send(marked(topic, writer, PERSISTENT))
        for _ in range(40):
            await writer.send(marked(f"/$task/{KNOWN}", writer, PERSISTENT))
        await writer.send(marked(f"/$task/{DEAD_QUEUE}", writer, PERSISTENT))
        await a.committed()
        await writer.send(TaskPoll(1, DEAD_QUEUE, 1, 20.0, 0, "w"))
        tasks = await writer.expect(Tasks)
        reject = TaskDone(1, tasks.owner, DEAD_QUEUE, "reject", tasks.numbers, tasks.fences, "no",
                          0.0, 0)  # fmt: skip
        await writer.send(TaskPoll(1, DEAD_QUEUE, 0, 20.0, 0, "w"), reject)
        settled = await writer.expect(TaskSettled)
        assert not settled.refused
        provider = await stack.enter_async_context(came_as(a.network, a.node.address, "ada", 11))
        await provider.send(Provide(1, f"/secret/{KNOWN}", True))
        await provider.barrier()
        stage = Stage(a, b, origin, writer, list(tasks.ids))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_reply, provider)
            yield stage
            nursery.cancel_scope.cancel()


async def _reply(provider: GuardedClient) -> None:
    while True:
        event = await _patiently(provider)
        if isinstance(event, Request):
            await provider.send(Reply(event.request, None, {"k": HEADER}, PAYLOAD, True))


async def _patiently(client: GuardedClient) -> Any:
    while True:
        try:
            return await client.receive()
        except trio.TooSlowError:
            continue


async def heard_by(stage: Stage, row: Row, identity: str, name: str) -> bytes:
    """All that the socket of somebody receives behind its welcome."""
    bus = stage.bus(row)
    async with came_as(bus.network, bus.node.address, identity, 100) as client:
        before = len(client.heard)
        await row.act(stage, client, name)
        await bus.all_sent(client)
        return client.heard[before:]


async def test_who_may_gets_content_on_every_path(tmp_path: Path) -> None:
    """Else the others' silence would say nothing."""
    async with staged(tmp_path) as stage:
        for row in ROWS:
            bus = stage.bus(row)
            async with came_as(bus.network, bus.node.address, row.who, 100) as client:
                before = len(client.heard)
                await row.act(stage, client, KNOWN)
                with trio.move_on_after(WAIT_S):
                    while row.content and not any(m in client.heard[before:] for m in MARKS):
                        await client.receive()
                heard = client.heard[before:]
                assert b"FORBIDDEN" not in heard, f"{row.path}: {heard!r}"
                assert not row.content or any(mark in heard for mark in MARKS), row.path


@pytest.mark.parametrize("identity", DENIED)
async def test_nobody_else_gets_a_byte_of_it_or_learns_what_there_is(
    tmp_path: Path, identity: str
) -> None:
    async with staged(tmp_path) as stage:
        wrong: list[str] = []
        logs = {log.log_id: log.committed_no for log in stage.a.node.store.logs()}
        for row in ROWS:
            heard = await heard_by(stage, row, identity, KNOWN)
            found = [mark for mark in MARKS if mark in heard]
            if found:
                wrong.append(f"{row.path}: {identity} got {found}")
            if row.names and row.path not in FILTERED and b"FORBIDDEN" not in heard:
                wrong.append(f"{row.path}: {identity} was not refused: {heard!r}")
            if row.names:
                missing = await heard_by(stage, row, identity, MISSING)
                if _neutral(heard) != _neutral(missing):
                    wrong.append(f"{row.path}: {heard!r} and {missing!r}")
        assert not wrong, "\n".join(wrong)
        await publish_more(stage)
        for log in stage.a.node.store.logs():
            topic = log.log_id.topic
            if topic.startswith(("/secret/secret-phony", "/$task/secret-phony")):
                raise AssertionError(f"{topic} has come to be")
            if topic.startswith("/$task/secret") and log.log_id in logs:
                assert log.committed_no == logs[log.log_id], "nothing was done to tasks"


def _neutral(heard: bytes) -> bytes:
    """With the names exchanged, and without the hash of a control frame that has one in it."""
    found = b""
    at = 0
    while at < len(heard):
        length = int.from_bytes(heard[at : at + 4], "little")
        frame = heard[at : at + length]
        if KNOWN.encode() in frame or DEAD_QUEUE.encode() in frame:
            frame = frame.replace(KNOWN.encode(), MISSING.encode())
            frame = frame.replace(DEAD_QUEUE.encode(), UNBURIED.encode())
        if MISSING.encode() in frame or UNBURIED.encode() in frame:
            frame = frame[:PREFIX_BYTES] + bytes(HASH_BYTES) + frame[CONTROL_PREFIX_BYTES:]
        found += frame
        at += length
    return found


# HTTP ---------------------------------------------------------------------------------------------


async def page_heard(bus: Bus, path: str, method: str, authorization: str | None) -> bytes:
    http = bus.node.listeners.http
    assert http is not None
    stream = await bus.network.dial(http.address)
    try:
        said = "" if authorization is None else f"Authorization: {authorization}\r\n"
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{said}\r\n"
        await send(stream, head.encode("latin-1"))
        return await until_closed(stream)
    finally:
        stream.close()


def basic(user: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


def without_names(page: bytes) -> bytes:
    """Without the path that was asked for and the time."""
    head, _, body = page.partition(b"\r\n\r\n")
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"date:")]
    for name in (b"/metrics", b"/status", b"/http"):
        body = body.replace(b"/$sys" + name, b"PAGE")
    lines = [line for line in lines if not line.lower().startswith(b"content-length:")]
    return b"\r\n".join(lines) + body


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
async def test_a_page_is_for_administrators_and_others_do_not_learn_whether_there_is_one(
    tmp_path: Path, method: str
) -> None:
    papers = Papers(tmp_path / "papers", "root", "eve", "mallory", "nil", acl=ACL)
    async with (
        Nodes(tmp_path, papers).running("a", http_port=0) as bus,
        came_as(bus.network, bus.node.address, "root") as writer,
    ):
        await writer.send(marked(UNTOLD, writer, PERSISTENT))
        await writer.expect(Ack)
        shown = "Bearer " + token_of("root")
        for path in PAGES:
            page = await page_heard(bus, path, method, shown)
            assert page.startswith(b"HTTP/1.1 200 " if method != "POST" else b"HTTP/1.1 405 ")
        seen = await page_heard(bus, "/status", "GET", shown)
        assert b"root" in seen
        for said in (
            None, "", "Bearer", "Bearer x", "Bearer eve.x", f"Bearer {token_of('nobody')}",
            basic("root", ""), basic("root", token_of("root")), "Basic !!!", "Digest x",
            *(f"Bearer {token_of(each)}" for each in ("eve", "mallory", "nil")),
            f"Bearer {token_of('root')}x", f"Bearer root.\xe9{'x' * 600}",
        ):  # fmt: skip
            answers = {
                path: await page_heard(bus, path, method, said)
                for path in (*PAGES, "/none", "/status/x", "/$sys/status", "//status")
            }
            for path, answer in answers.items():
                assert answer[:12] in (b"HTTP/1.1 401", b"HTTP/1.1 403"), (said, path, answer)
                assert b"MARKED" not in answer
                assert b"root" not in answer
            assert len(set(map(without_names, answers.values()))) == 1, said


async def test_whether_a_node_is_well_is_told_to_everybody(tmp_path: Path) -> None:
    papers = Papers(tmp_path / "papers", "root", acl=ACL)
    async with Nodes(tmp_path, papers).running("a", http_port=0) as bus:
        for path in ("/health/live", "/health/ready"):
            assert (await page_heard(bus, path, "GET", None)).startswith(b"HTTP/1.1 200 ")


PAGES: Final = ("/metrics", "/status")


# Nothing is left out ------------------------------------------------------------------------------


def test_every_verb_has_a_row() -> None:
    assert {row.verb for row in ROWS} == set(VERBS)


def test_every_frame_of_a_client_has_a_row_or_can_do_no_harm() -> None:
    harmless = {
        FrameType.PING, FrameType.PONG, FrameType.ERROR, FrameType.GOODBYE,
        # About what the client itself has begun, and was let begin:
        FrameType.UNSUBSCRIBE, FrameType.CREDIT, FrameType.UNPROVIDE, FrameType.POSITION,
        FrameType.BID, FrameType.REPLY,
        # Checked, and never answered: see test_access.
        FrameType.DAMAGED,
    }  # fmt: skip
    may_send = {kind for side, kind in CLIENT_TABLE[State.OPEN] if side is Side.DIALLER}
    assert {row.kind for row in ROWS if row.kind is not None} | harmless == may_send


async def test_every_answer_of_the_system_and_every_page_has_a_row(tmp_path: Path) -> None:
    papers = Papers(tmp_path / "papers", acl=ACL)
    async with Nodes(tmp_path, papers).running("a") as bus:
        bidding = bus.node.bidding
        answers = {*bidding._system, *bidding._later}  # pyright: ignore[reportPrivateUsage]
        assert answers == ASKED
        assert {each for each in pages(bus.node) if not each.startswith("/health/")} == {*PAGES}
    assert {row.path for row in ROWS} >= {*ACTS}
