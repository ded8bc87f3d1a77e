"""HTTP: the pages, and what becomes of those who ask for too much, too slowly or wrongly."""

import json
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from busnode.node.config import NodeConfig
from busnode.node.doors import Doors
from busnode.node.events import log_only
from busnode.node.http import CONNECTIONS_MAX, Answer, HttpServer, json_answer
from busnode.node.http_connection import REQUEST_BYTES_MAX, TIMEOUT_S
from busnode.testing.sim.clock import SimClock
from busnode.testing.sim.network import SimNetwork
from busnode.world.network import Address, Network, Stream

from .raw_client import LIVE, WAIT_S, Bus, real_bus


class Response(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, object]:
        value = json.loads(self.body)
        assert isinstance(value, dict)
        return value


async def send(stream: Stream, data: bytes) -> None:
    unsent = memoryview(data)
    while unsent:
        count = stream.send(unsent)
        unsent = unsent[count:]
        if not count:
            await stream.wait_writable()


async def receive(stream: Stream, enough: Callable[[bytes], bool]) -> bytes:
    """All that comes until it is enough, or until the other side closes."""
    buffer = memoryview(bytearray(65536))
    found = b""
    with trio.fail_after(WAIT_S * 10):
        while not enough(found):
            count = stream.receive_into(buffer)
            if count is None:
                await stream.wait_readable()
            elif count:
                found += buffer[:count]
            else:
                break
    return found


async def until_closed(stream: Stream) -> bytes:
    return await receive(stream, lambda _: False)


async def is_cut_off(stream: Stream) -> bool:
    """Whether the other side ends it without a word: resets it, where it left something unread."""
    try:
        return await until_closed(stream) == b""
    except ConnectionResetError:
        return True


def parse(raw: bytes) -> Response:
    head, _, body = raw.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    return Response(int(first.split()[1]), headers, body)


async def ask(network: Network, address: Address, path: str, method: str = "GET") -> Response:
    """One request on a connection of its own."""
    stream = await network.dial(address)
    try:
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        await send(stream, head.encode())
        return parse(await until_closed(stream))
    finally:
        stream.close()


async def page(bus: Bus, path: str, method: str = "GET") -> Response:
    http = bus.node.listeners.http
    assert http is not None
    return await ask(bus.network, http.address, path, method)


# The pages ----------------------------------------------------------------------------------------


async def test_a_node_is_live_and_ready_and_tells_its_status(tmp_path: Path) -> None:
    async with real_bus(tmp_path, http_port=0) as bus:
        live = await page(bus, "/health/live")
        assert (live.status, live.json) == (200, {"live": True})
        ready = await page(bus, "/health/ready")
        assert (ready.status, ready.json) == (200, {"ready": True})
        status = await page(bus, "/status?pretty")
        assert status.headers["Content-Type"] == "application/json"
        assert status.json["name"] == "n1"
        assert status.json["broker_id"] == bus.broker_id.hex()


async def test_metrics_are_the_counters_of_the_node(tmp_path: Path) -> None:
    async with real_bus(tmp_path, http_port=0) as bus:
        async with bus.client() as client:
            await client.subscribe("/a/*")
            await client.publish("/a/b", [b"x"] * 3)
            await client.acked(1)
            await client.publish("/a/b", [b"x"] * 2, LIVE)
            await client.messages(5)
            there = await page(bus, "/metrics")
        assert there.headers["Content-Type"].startswith("text/plain")
        lines = there.body.decode().splitlines()
        for line in (
            'busnode_messages_total{kind="persistent"} 3.0',
            'busnode_messages_total{kind="live"} 2.0',
            "busnode_clients 1.0",
            "busnode_subscriptions 1.0",
            "busnode_behind_messages 0.0",
            "busnode_logs 1.0",
            "busnode_commits_total 1.0",
            "busnode_ready 1.0",
        ):
            assert line in lines
        assert any(line.startswith("process_resident_memory_bytes ") for line in lines)
        (sent,) = (line for line in lines if line.startswith("busnode_sent_bytes_total "))
        await bus.settled(lambda: not bus.node.sessions)
        later = (await page(bus, "/metrics")).body.decode().splitlines()
        assert "busnode_clients 0.0" in later
        (total,) = (line for line in later if line.startswith("busnode_sent_bytes_total "))
        assert float(total.split()[1]) >= float(sent.split()[1]) > 0


async def test_head_is_get_without_the_body(tmp_path: Path) -> None:
    async with real_bus(tmp_path, http_port=0) as bus:
        head = await page(bus, "/health/live", "HEAD")
        get = await page(bus, "/health/live")
    assert (head.status, head.body) == (200, b"")
    assert head.headers["Content-Length"] == str(len(get.body))


async def test_a_node_that_drains_is_live_and_not_ready(tmp_path: Path) -> None:
    async with (
        real_bus(tmp_path, http_port=0) as bus,
        trio.open_nursery() as nursery,
        bus.client(),  # it does not say goodbye, so draining takes a while
    ):
        nursery.start_soon(bus.node.drain)
        await bus.settled(lambda: bus.node.draining)
        ready = await page(bus, "/health/ready")
        assert ready.status == 503
        assert str(ready.json["reason"]).startswith("draining")
        assert (await page(bus, "/health/live")).status == 200


async def test_a_node_that_has_not_begun_to_serve_is_not_ready(tmp_path: Path) -> None:
    async with real_bus(tmp_path, http_port=0) as bus:
        await bus.settled(lambda: bus.node.serving)
        bus.node.serving = False
        ready = await page(bus, "/health/ready")
    assert ready.status == 503
    assert str(ready.json["reason"]).startswith("starting")


# What is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/statuses", "/status/", "//status", "/%2e%2e/status", "*"])
async def test_any_other_path_is_told_what_there_is(tmp_path: Path, path: str) -> None:
    async with real_bus(tmp_path, http_port=0) as bus:
        answer = await page(bus, path)
    assert answer.status == 404
    assert answer.json["error"] == "NOT_FOUND"
    assert "/health/ready" in str(answer.json["text"])


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "get"])
async def test_nothing_can_be_changed(tmp_path: Path, method: str) -> None:
    async with real_bus(tmp_path, http_port=0) as bus:
        answer = await page(bus, "/status", method)
    assert answer.status == 405
    assert answer.headers["Allow"] == "GET, HEAD"
    assert answer.json["error"] == "METHOD_NOT_ALLOWED"


# Limits, in virtual time --------------------------------------------------------------------------

Dial = Callable[[], Awaitable[Stream]]
HELLO = b"GET /hello HTTP/1.1\r\nHost: x\r\n\r\n"


@asynccontextmanager
async def served() -> AsyncGenerator[Dial, None]:
    """A server on a simulated network: gives a way to dial it."""
    network = SimNetwork(buffer_bytes=2 * 1024 * 1024)
    listener = await network.host("server").listen(Address("server", 80))

    async def hello() -> Answer:
        return json_answer("hello")

    async def broken() -> Answer:
        raise ZeroDivisionError

    async def large() -> Answer:
        return Answer(200, bytes(8 * 1024 * 1024))

    pages = {"/hello": hello, "/broken": broken, "/large": large}
    async with trio.open_nursery() as nursery:
        config = NodeConfig("test")
        doors = Doors(config, SimClock(), log_only)
        nursery.start_soon(HttpServer(listener, pages, doors.http).run)
        yield partial(network.host("client").dial, listener.address)
        nursery.cancel_scope.cancel()


async def test_a_hundred_who_say_nothing_keep_nobody_from_an_answer(
    autojump_clock: MockClock,
) -> None:
    async with served() as dial:
        silent = [await dial() for _ in range(CONNECTIONS_MAX)]
        for stream in silent:
            await send(stream, HELLO[:5])
        await trio.sleep(0.1)
        began = trio.current_time()
        stream = await dial()
        await send(stream, HELLO)
        await receive(stream, lambda found: b'"hello"' in found)
        assert trio.current_time() - began < 1
        assert await is_cut_off(silent[0])  # who has been there the longest


@pytest.mark.parametrize("piece_bytes", [1, 7, 1000])
async def test_any_split_of_the_bytes_gives_the_same_answers(
    autojump_clock: MockClock, piece_bytes: int
) -> None:
    async with served() as dial:
        stream = await dial()
        requests = HELLO * 3
        for at in range(0, len(requests), piece_bytes):
            await send(stream, requests[at : at + piece_bytes])
            await trio.sleep(0.01)
        found = await receive(stream, lambda found: found.count(b'"hello"') == 3)
        assert found.count(b"HTTP/1.1 200") == 3


async def test_a_request_that_comes_too_slowly_is_cut_off(autojump_clock: MockClock) -> None:
    async with served() as dial:
        stream = await dial()
        began = trio.current_time()
        async with trio.open_nursery() as nursery:

            async def drip() -> None:
                for byte in HELLO:
                    await trio.sleep(1)
                    await send(stream, bytes([byte]))

            nursery.start_soon(drip)
            assert await is_cut_off(stream)
            nursery.cancel_scope.cancel()
        assert trio.current_time() - began == pytest.approx(TIMEOUT_S, abs=0.1)


async def test_a_connection_on_which_nothing_is_asked_is_closed(autojump_clock: MockClock) -> None:
    async with served() as dial:
        stream = await dial()
        await send(stream, HELLO)
        assert parse(await until_closed(stream)).status == 200
        assert trio.current_time() < TIMEOUT_S + 1


async def test_an_answer_that_is_not_read_is_given_up(autojump_clock: MockClock) -> None:
    async with served() as dial:
        stream = await dial()
        await send(stream, HELLO.replace(b"hello", b"large"))
        await trio.sleep(TIMEOUT_S + 1)
        found = await until_closed(stream)
        assert 0 < len(found) < 8 * 1024 * 1024


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /hello HTTP/1.1\r\nHost: x\r\nX: " + b"x" * REQUEST_BYTES_MAX, 431),
        (b"GET /" + b"x" * REQUEST_BYTES_MAX, 431),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 10 + b"\r\n\r\n", 400),
        (b"GET /hello\r\n\r\n", 400),
        (b"GET /hello HTTP/1.1\r\n\r\n", 400),
        (b"GET /hello HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n12345", 413),
        (b"GET /hello HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", 413),
        (b"GET /hello HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400),
        (b"GET /broken HTTP/1.0\r\n\r\n", 500),
    ],
)
async def test_a_bad_request_gets_one_coded_error_and_the_end(
    autojump_clock: MockClock, request_bytes: bytes, status: int
) -> None:
    async with served() as dial:
        stream = await dial()
        await send(stream, request_bytes)
        answer = parse(await until_closed(stream))
        assert answer.status == status
        assert set(answer.json) == {"error", "text"}
        await send(await dial(), HELLO)  # and nobody else has noticed


async def test_a_page_that_fails_takes_nobody_along(autojump_clock: MockClock) -> None:
    async with served() as dial:
        stream = await dial()
        await send(stream, HELLO.replace(b"hello", b"broken") + HELLO)
        found = await receive(stream, lambda found: b'"hello"' in found)
        assert found.startswith(b"HTTP/1.1 500")


async def test_a_client_that_resets_the_connection_harms_nobody(autojump_clock: MockClock) -> None:
    async with served() as dial:
        for _ in range(10):
            stream = await dial()
            await send(stream, HELLO)
            await trio.sleep(0.01)
            stream.close()  # with the answer unread
        stream = await dial()
        await send(stream, HELLO)
        assert b"200" in await receive(stream, lambda found: b'"hello"' in found)


# Nobody waits for it ------------------------------------------------------------------------------


@pytest.mark.scenario
def test_neither_start_nor_a_client_loads_what_only_http_needs() -> None:
    program = (
        "import sys, busnode.node.cli_start, busnode.node.node, busnode.world.real_world;"
        "print([name for name in sys.modules if name in ('h11', 'prometheus_client', 'rich')])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ran.stdout == "[]\n"
