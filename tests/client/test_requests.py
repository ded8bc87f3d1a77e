"""Asking and answering."""

import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from busnode.client import Bus, Reply, Request
from busnode.client.providers import Handler
from busnode.wire import control
from busnode.wire.errors import (
    BusnodeError,
    Disconnected,
    Forbidden,
    FrameTooLarge,
    LimitReached,
    NoProvider,
    RequestFailed,
    TimedOut,
    Unavailable,
)
from busnode.wire.frames import FrameType
from busnode.wire.limits import REQUEST_BYTES_MAX
from tests.client.scripted_node import Peer, ScriptedNode, eventually, on_both_loops, visit


class Asking:
    """A request in a task of its own, and what became of it."""

    def __init__(self, bus: Bus, timeout: float = 5.0) -> None:
        self.bus = bus
        self.timeout = timeout
        self.reply: Reply | None = None
        self.error: BusnodeError | None = None

    async def run(self) -> None:
        try:
            self.reply = await self.bus.request(
                "/dtc/read", b"42", headers={"k": "v"}, timeout=self.timeout
            )
        except BusnodeError as error:
            self.error = error

    async def end(self) -> None:
        await eventually(lambda: self.ended)

    @property
    def ended(self) -> bool:
        return self.reply is not None or self.error is not None


@on_both_loops
async def test_a_request_is_answered() -> None:
    async with visit() as (bus, peer, _), anyio.create_task_group() as tasks:
        asking = Asking(bus, timeout=2)
        tasks.start_soon(asking.run)
        asked = await peer.expect(control.Request)
        assert (asked.topic, asked.payload, asked.headers) == ("/dtc/read", b"42", {"k": "v"})
        assert (asked.provider, asked.many, asked.timeout_s) == (0, False, 2.0)
        await peer.send(control.Reply(asked.request, None, {"a": "b"}, b"P0420", True))
        await eventually(lambda: asking.ended)
        assert asking.reply == Reply(b"P0420", {"a": "b"})
        assert bus.statistics().requests == 0


@on_both_loops
async def test_an_error_is_raised_by_its_code() -> None:
    for code, kind in (
        ("NO_PROVIDER", NoProvider),
        ("REQUEST_FAILED", RequestFailed),
        ("TIMED_OUT", TimedOut),
        ("OF_THE_FUTURE", BusnodeError),
    ):
        async with visit() as (bus, peer, _), anyio.create_task_group() as tasks:
            asking = Asking(bus)
            tasks.start_soon(asking.run)
            asked = await peer.expect(control.Request)
            await peer.send(control.Reply(asked.request, code, {}, b"it broke", True))
            await asking.end()
            assert isinstance(asking.error, kind)
            assert (asking.error.code, asking.error.text) == (code, "it broke")


@on_both_loops
async def test_a_refused_request_raises() -> None:
    async with visit() as (bus, peer, _), anyio.create_task_group() as tasks:
        asking = Asking(bus)
        tasks.start_soon(asking.run)
        asked = await peer.expect(control.Request)
        kind = int(FrameType.REQUEST)
        await peer.send(control.Error("FORBIDDEN", "no", kind, asked.request, None))
        await eventually(lambda: asking.ended)
        assert isinstance(asking.error, Forbidden)


@on_both_loops
async def test_many_replies_come_one_by_one_until_the_end() -> None:
    async with visit() as (bus, peer, _), anyio.create_task_group() as tasks:
        got: list[Reply] = []

        async def ask() -> None:
            async for reply in bus.request_many("/dtc/read", b"42"):
                got.append(reply)
            got.append(Reply(b"end"))

        tasks.start_soon(ask)
        asked = await peer.expect(control.Request)
        assert asked.many
        await peer.send(control.Reply(asked.request, None, {}, b"one", False))
        await eventually(lambda: got == [Reply(b"one")])
        await peer.send(
            control.Reply(asked.request, "REQUEST_FAILED", {}, b"broken", False),
            control.Reply(asked.request, "END", {}, b"", True),
            control.Reply(asked.request, None, {}, b"too late", True),
        )
        await eventually(lambda: len(got) == 3)
        error = got[1].error
        assert isinstance(error, RequestFailed)
        assert error.text == "broken"
        assert got[2] == Reply(b"end")
        # The end may also be a reply itself.
        got.clear()
        tasks.start_soon(ask)
        asked = await peer.expect(control.Request)
        await peer.send(control.Reply(asked.request, None, {}, b"the only one", True))
        await eventually(lambda: got == [Reply(b"the only one"), Reply(b"end")])


@on_both_loops
async def test_whoever_stops_reading_replies_is_forgotten() -> None:
    async with visit() as (bus, peer, _):
        replies = bus.request_many("/dtc/read", b"42")
        number = 0
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anext, replies)
            number = (await peer.expect(control.Request)).request
            await peer.send(control.Reply(number, None, {}, b"one", False))
        assert bus.statistics().requests == 1
        del replies
        gc.collect()
        assert bus.statistics().requests == 0
        await peer.send(control.Reply(number, None, {}, b"two", True), control.Ping(1))
        await peer.expect(control.Pong)


@on_both_loops
async def test_replies_that_nobody_reads_are_bounded() -> None:
    async with visit() as (bus, peer, _), anyio.create_task_group() as tasks:
        replies = bus.request_many("/dtc/read", b"42")
        tasks.start_soon(anext, replies)
        asked = await peer.expect(control.Request)
        block = bytes(REQUEST_BYTES_MAX - 100)
        for _ in range(20):
            await peer.send(control.Reply(asked.request, None, {}, block, False))
        await peer.send(control.Ping(1))
        await peer.expect(control.Pong)
        with pytest.raises(LimitReached):
            async for _ in replies:
                pass


@on_both_loops
async def test_a_request_ends_in_time_also_when_the_node_says_nothing() -> None:
    async with visit() as (bus, _, _):
        with pytest.raises(TimedOut):
            await bus.request("/dtc/read", b"42", timeout=0.01)
        assert bus.statistics().requests == 0


@on_both_loops
async def test_each_request_ends_in_its_own_time_whichever_was_made_first() -> None:
    async with visit() as (bus, peer, _), anyio.create_task_group() as tasks:
        patient, hasty, late = (Asking(bus, timeout) for timeout in (60, 0.01, 0.02))
        tasks.start_soon(patient.run)
        asked = await peer.expect(control.Request)
        tasks.start_soon(hasty.run)
        await eventually(lambda: hasty.ended)
        assert isinstance(hasty.error, TimedOut)
        tasks.start_soon(late.run)
        await eventually(lambda: late.ended)
        assert isinstance(late.error, TimedOut)
        assert not patient.ended
        await peer.send(control.Reply(asked.request, None, {}, b"P0420", True))
        await eventually(lambda: patient.ended)
        assert patient.reply == Reply(b"P0420")


@on_both_loops
async def test_a_request_made_long_after_the_last_one_ended_still_ends_in_time() -> None:
    async with visit() as (bus, peer, _), anyio.create_task_group() as tasks:
        answered = Asking(bus, 0.01)
        tasks.start_soon(answered.run)
        asked = await peer.expect(control.Request)
        await peer.send(control.Reply(asked.request, None, {}, b"", True))
        await eventually(lambda: answered.ended)
        calls = bus._requests._calls
        await eventually(lambda: calls._watched_until is None)  # nothing is left to watch
        with pytest.raises(TimedOut):
            await bus.request("/dtc/read", timeout=0.01)


@on_both_loops
async def test_a_cancelled_request_is_forgotten_and_its_late_reply_ignored() -> None:
    async with visit() as (bus, peer, _):
        number = 0
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(Asking(bus, timeout=60).run)
            number = (await peer.expect(control.Request)).request
            assert bus.statistics().requests == 1
            tasks.cancel_scope.cancel()
        assert bus.statistics().requests == 0
        await peer.send(control.Reply(number, None, {}, b"late", True), control.Ping(1))
        await peer.expect(control.Pong)


@on_both_loops
async def test_a_lost_connection_fails_requests_at_once() -> None:
    async with visit() as (bus, peer, node), anyio.create_task_group() as tasks:
        asking = Asking(bus, timeout=60)
        tasks.start_soon(asking.run)
        await peer.expect(control.Request)
        peer.close()
        await eventually(lambda: asking.ended)
        assert type(asking.error) is Unavailable
        # One that is made while there is no home waits for one.
        later = Asking(bus, timeout=60)
        tasks.start_soon(later.run)
        again = await node.accept()
        asked = await again.expect(control.Request)
        await again.send(control.Reply(asked.request, None, {}, b"there", True))
        await eventually(lambda: later.ended)
        assert later.reply == Reply(b"there")
        again.close()
        await node.accept(greet=False)
        with pytest.raises(Disconnected):
            await bus.request("/dtc/read", timeout=0.05)


@on_both_loops
async def test_a_request_that_is_too_large_is_refused_before_it_is_sent() -> None:
    async with visit() as (bus, peer, _):
        with pytest.raises(FrameTooLarge, match=str(REQUEST_BYTES_MAX)):
            await bus.request("/dtc/read", bytes(REQUEST_BYTES_MAX))
        await peer.send(control.Ping(1))
        assert isinstance(await peer.receive(), control.Pong)


@asynccontextmanager
async def providing(
    handler: Handler, **options: object
) -> AsyncIterator[tuple[Bus, Peer, ScriptedNode, int]]:
    async with visit() as (bus, peer, node), anyio.create_task_group() as tasks:
        numbers: list[int] = []

        async def confirm() -> None:
            numbers.append((await peer.expect(control.Provide)).provider)
            ping = await peer.expect(control.Ping)
            await peer.send(control.Pong(ping.token))

        tasks.start_soon(confirm)
        async with bus.provide("/dtc/read", handler, **options):  # type: ignore[arg-type]
            yield bus, peer, node, numbers[0]


def request(number: int, provider: int, payload: bytes = b"42") -> control.Request:
    return control.Request(number, provider, "/dtc/read", {"k": "v"}, payload, False, 2.0)


@on_both_loops
async def test_a_provider_bids_and_answers() -> None:
    seen: list[Request] = []

    def plain(asked: Request) -> bytes:
        seen.append(asked)
        return asked.payload * 2

    async def slow(asked: Request) -> Reply:
        await anyio.lowlevel.checkpoint()
        return Reply(asked.payload * 2, {"how": "slow"})

    async def nothing(_: Request) -> None:
        return None

    for handler, payload, headers in (
        (plain, b"4242", {}),
        (slow, b"4242", {"how": "slow"}),
        (nothing, b"", {}),
    ):
        async with providing(handler) as (_, peer, _, provider):
            await peer.send(control.Ask(7, provider, "/dtc/read", {"k": "v"}))
            assert await peer.expect(control.Bid) == control.Bid(7, True)
            await peer.send(request(7, provider))
            reply = await peer.expect(control.Reply)
            assert reply == control.Reply(7, None, headers, payload, True)
    assert seen == [Request("/dtc/read", b"42", {"k": "v"}, False)]


@on_both_loops
async def test_a_provider_accepts_what_it_likes() -> None:
    async def likes_later(asked: Request) -> bool:
        await anyio.lowlevel.checkpoint()
        return asked.headers["k"] == "v"

    def breaks(_: Request) -> bool:
        raise ZeroDivisionError

    async def breaks_later(_: Request) -> bool:
        raise ZeroDivisionError

    for accepts, yes in (
        (lambda asked: asked.topic == "/dtc/read", True),
        (lambda asked: False, False),
        (likes_later, True),
        (breaks, False),
        (breaks_later, False),
    ):
        async with providing(lambda _: b"", accepts=accepts) as (_, peer, _, provider):
            await peer.send(control.Ask(7, provider, "/dtc/read", {"k": "v"}))
            assert await peer.expect(control.Bid) == control.Bid(7, yes)
            await peer.send(control.Ask(8, 999, "/dtc/read", {}))  # one that has just ended
            assert await peer.expect(control.Bid) == control.Bid(8, False)


@on_both_loops
async def test_a_handler_that_fails_or_says_too_much_answers_with_an_error() -> None:
    def breaks(_: Request) -> bytes:
        raise ValueError("no such code")

    async def breaks_later(_: Request) -> bytes:
        raise ValueError("no such code")

    async def says_too_much(_: Request) -> bytes:
        return bytes(REQUEST_BYTES_MAX)

    for handler, words in (
        (breaks, "ValueError: no such code"),
        (breaks_later, "ValueError: no such code"),
        (says_too_much, str(REQUEST_BYTES_MAX)),
    ):
        async with providing(handler) as (bus, peer, _, provider):
            await peer.send(request(7, provider))
            reply = await peer.expect(control.Reply)
            assert (reply.code, reply.last) == ("REQUEST_FAILED", True)
            assert words in reply.payload.decode()
            assert bus.statistics().connections == 1


@on_both_loops
async def test_a_provider_works_on_some_requests_at_once_and_on_the_rest_in_turn() -> None:
    running = most = 0
    go_on = anyio.Event()

    async def handler(asked: Request) -> bytes:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await go_on.wait()
        running -= 1
        return asked.payload

    async with providing(handler, concurrency=3) as (_, peer, _, provider):
        for number in range(10):
            await peer.send(request(number, provider, b"%d" % number))
        await eventually(lambda: running == 3)
        go_on.set()
        replies = [await peer.expect(control.Reply) for _ in range(10)]
        assert {reply.payload for reply in replies} == {b"%d" % number for number in range(10)}
        assert most == 3


@on_both_loops
async def test_a_provider_with_enough_to_do_bids_no() -> None:
    async def never(_: Request) -> bytes:
        await anyio.sleep_forever()
        return b""

    with anyio.CancelScope() as scope:
        async with providing(never, concurrency=1) as (_, peer, _, provider):
            for number in range(257):
                await peer.send(request(number, provider))
            await peer.send(control.Ask(7, provider, "/dtc/read", {}))
            assert await peer.expect(control.Bid) == control.Bid(7, False)
            scope.cancel()


@on_both_loops
async def test_a_provider_moves_to_the_next_home_and_late_answers_stay_behind() -> None:
    go_on = anyio.Event()

    async def handler(asked: Request) -> bytes:
        if asked.payload == b"old":
            await go_on.wait()
        return asked.payload

    async with providing(handler) as (_, peer, node, provider):
        await peer.send(request(7, provider, b"old"), control.Ping(9))
        await peer.expect(control.Pong)
        peer.close()
        again = await node.accept()
        provided = await again.expect(control.Provide)
        go_on.set()
        await anyio.wait_all_tasks_blocked()
        await again.send(request(1, provided.provider, b"new"))
        assert (await again.expect(control.Reply)).payload == b"new"
        again.close()


@on_both_loops
async def test_who_provides_no_more_says_so_and_answers_what_it_has_begun() -> None:
    go_on = anyio.Event()

    async def handler(asked: Request) -> bytes:
        await go_on.wait()
        return asked.payload

    async with visit() as (bus, peer, _), anyio.create_task_group() as tasks:

        async def serve() -> None:
            provided = await peer.expect(control.Provide)
            ping = await peer.expect(control.Ping)
            await peer.send(request(7, provided.provider), control.Pong(ping.token))
            assert (await peer.expect(control.Unprovide)).provider == provided.provider
            go_on.set()
            assert (await peer.expect(control.Reply)).payload == b"42"

        tasks.start_soon(serve)
        async with bus.provide("/dtc/read", handler):
            pass
        assert go_on.is_set()


@on_both_loops
async def test_a_refused_provider_raises() -> None:
    async with visit() as (bus, peer, _), anyio.create_task_group() as tasks:

        async def refuse() -> None:
            provided = await peer.expect(control.Provide)
            kind = int(FrameType.PROVIDE)
            await peer.send(control.Error("FORBIDDEN", "no", kind, provided.provider, None))

        tasks.start_soon(refuse)
        with pytest.raises(Forbidden):
            async with bus.provide("/dtc/read", lambda _: b""):
                pytest.fail("it was let in")
