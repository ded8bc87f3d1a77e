"""The client for code without async, against a real node."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

import busnode
from busnode.blocking import BlockingBus, connect
from busnode.node.config import NodeConfig
from busnode.node.node import start_node
from busnode.wire.limits import PAYLOAD_BYTES_MAX
from busnode.world.real_world import real_world

BACKENDS = pytest.mark.parametrize("backend", ["asyncio", "trio"])


@asynccontextmanager
async def node_at(path: Path) -> AsyncIterator[str]:
    config = NodeConfig("test", name="n1", data=str(path), port=0, peer_port=None, http_port=None)
    async with start_node(real_world(), config) as node:
        yield f"bus://{node.address}"


async def run(path: Path, backend: str, use: Callable[[BlockingBus], None]) -> None:
    """Use a blocking bus in a thread, beside the node."""

    def work(url: str) -> None:
        with connect(url, name="blocking", backend=backend) as bus:
            use(bus)

    with trio.fail_after(20):
        async with node_at(path) as url:
            await trio.to_thread.run_sync(work, url)


@BACKENDS
async def test_publish_and_subscribe(tmp_path: Path, backend: str) -> None:
    def use(bus: BlockingBus) -> None:
        with bus.subscribe("/t/*", start="earliest") as messages:
            receipt = bus.publish("/t/a", b"kept", persistent=True, headers={"k": "v"})
            assert receipt is not None
            message = messages.get(timeout=5)
            assert (message.payload, message.headers) == (b"kept", {"k": "v"})
            assert (message.broker_id, message.msg_no) == (receipt.broker_id, receipt.msg_no)
            assert bus.publish("/t/b", b"live") is None
            assert next(messages).payload == b"live"
            with pytest.raises(busnode.TimedOut):
                messages.get(timeout=0.01)
        assert bus.statistics().acked == 1

    await run(tmp_path, backend, use)


@BACKENDS
async def test_a_publisher_keeps_the_order_and_gets_all_receipts(
    tmp_path: Path, backend: str
) -> None:
    def use(bus: BlockingBus) -> None:
        with (
            bus.subscribe("/t", start="earliest") as messages,
            bus.publisher("/t", persistent=True) as out,
        ):
            for i in range(20_000):
                out.send(b"%d" % i, headers={"n": f"{i}"} if i % 1000 == 0 else None)
            receipts = out.flush()
            assert [receipt.msg_no for receipt in receipts] == list(range(1, 20_001))
            for i, message in zip(range(20_000), messages, strict=False):
                assert message.payload == b"%d" % i
                assert message.headers == ({"n": f"{i}"} if i % 1000 == 0 else {})
            with pytest.raises(busnode.BatchTooLarge):
                out.send(bytes(PAYLOAD_BYTES_MAX + 1))

    await run(tmp_path / "data", backend, use)


@BACKENDS
async def test_what_was_sent_goes_out_without_a_flush(tmp_path: Path, backend: str) -> None:
    def use(bus: BlockingBus) -> None:
        with bus.subscribe("/t") as messages:
            out = bus.publisher("/t")
            for i in range(3):
                out.send(b"%d" % i)
                assert messages.get(timeout=5).payload == b"%d" % i

    await run(tmp_path, backend, use)


@BACKENDS
async def test_a_message_is_done_when_the_next_is_asked_for(tmp_path: Path, backend: str) -> None:
    cursors = tmp_path / "t.cursors"

    def use(bus: BlockingBus) -> None:
        with bus.publisher("/t", persistent=True) as out:
            for i in range(1, 101):
                out.send(b"%d" % i)
        with bus.subscribe("/t", start="earliest", cursors=cursors) as messages:
            for message in messages:
                assert [*messages.position.values()] == [
                    message.msg_no - 1 if message.msg_no else 0
                ]
                if message.payload == b"50":
                    break
        with bus.subscribe("/t", cursors=cursors) as messages:
            assert next(messages).payload == b"50"
            messages.done()
        with bus.subscribe("/t", cursors=cursors) as messages:
            batch = next(messages.batches())
            assert batch.payloads[0] == b"51"
        with bus.subscribe("/t", cursors=cursors) as messages:
            assert next(messages).payload == b"51"

    await run(tmp_path / "data", backend, use)


@BACKENDS
async def test_requests_are_asked_and_answered(tmp_path: Path, backend: str) -> None:
    def handler(request: busnode.Request) -> bytes:
        if request.payload == b"bad":
            raise ValueError("no such thing")
        return request.payload[::-1]

    def use(bus: BlockingBus) -> None:
        with bus.provide("/svc", handler, accepts=lambda request: "no" not in request.headers):
            assert bus.request("/svc", b"abc").payload == b"cba"
            assert [reply.payload for reply in bus.request_many("/svc", b"xy")] == [b"yx"]
            with pytest.raises(busnode.RequestFailed, match="no such thing"):
                bus.request("/svc", b"bad")
            with pytest.raises(busnode.NoProvider):
                bus.request("/svc", headers={"no": ""}, timeout=5)
        with pytest.raises(busnode.NoProvider):
            bus.request("/svc", b"abc")

    await run(tmp_path, backend, use)


@BACKENDS
async def test_errors_come_out_as_they_are(tmp_path: Path, backend: str) -> None:
    def use(bus: BlockingBus) -> None:
        with pytest.raises(busnode.BadTopic):
            bus.publish("no/slash", b"")
        with pytest.raises(busnode.BadPattern), bus.subscribe("/a*"):
            pytest.fail("it was let in")

    await run(tmp_path, backend, use)


@BACKENDS
async def test_an_exception_in_the_block_comes_out_as_it_is(tmp_path: Path, backend: str) -> None:
    def fail(url: str) -> None:
        with pytest.raises(ZeroDivisionError), connect(url, backend=backend):
            raise ZeroDivisionError

    async with node_at(tmp_path) as url:
        await trio.to_thread.run_sync(fail, url)


@BACKENDS
def test_nobody_there(backend: str) -> None:
    with (
        pytest.raises(busnode.Disconnected),
        connect("bus://127.0.0.1:1", backend=backend, deadline_s=0.1),
    ):
        pytest.fail("it was let in")
