"""A node inside of a process: on trio and on asyncio, by the same words."""

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trio

from busnode.node.config import BadSetting
from busnode.node.embedding import Node
from busnode.wire.control import Goodbye
from busnode.wire.errors import DataDirectoryInUse
from busnode.world.network import Address
from busnode.world.real_world import real_world

from .raw_client import RawClient, dialled

T = TypeVar("T")
Run = Callable[[Callable[[], Awaitable[T]]], T]


def on_trio(main: Callable[[], Awaitable[T]]) -> T:
    return trio.run(main)


def on_asyncio(main: Callable[[], Awaitable[T]]) -> T:
    async def wrapped() -> T:
        return await main()

    found = asyncio.run(wrapped())
    gc.collect()  # a coroutine or socket that was left behind warns here, and that is an error
    return found


@pytest.fixture(params=[on_trio, on_asyncio])
def run(request: pytest.FixtureRequest) -> Run[Any]:
    """Runs an async function on a loop of each kind."""
    chosen: Run[Any] = request.param
    return chosen


def address(node: Node) -> Address:
    host, _, port = node.url.removeprefix("bus://").rpartition(":")
    return Address(host, int(port))


def with_client(node: Node, use: Callable[[RawClient], Awaitable[T]]) -> T:
    """What a client on a loop of its own, in the same thread, finds there."""

    async def main() -> T:
        async with dialled(real_world().network, address(node)) as client:
            await client.hello()
            return await use(client)

    return trio.run(main)


async def publish_and_read(client: RawClient) -> bytes:
    await client.subscribe("/a", "earliest")
    await client.publish("/a", [b"x" * 200_000])  # more than fits into one piece
    await client.acked(1)
    return (await client.messages(1))[0][1]


def test_a_node_in_memory_serves_clients_and_needs_no_directory(
    run: Run[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    async def main() -> None:
        async with Node("x", storage="memory", port=0, name="n7") as node:
            assert node.name == "n7"
            assert len(node.broker_id) == 16
            assert node.http_url is None
            found = await in_thread(with_client, node, publish_and_read)
            assert found == b"x" * 200_000

    run(main)
    assert list(tmp_path.iterdir()) == []


async def in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Run something blocking while the loop, whichever it is, goes on."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return await trio.to_thread.run_sync(function, *arguments)
    return await asyncio.to_thread(function, *arguments)


def test_what_was_stored_is_there_the_next_time_under_a_new_broker_id(
    run: Run[Any], tmp_path: Path
) -> None:
    async def store(client: RawClient) -> None:
        await client.publish("/a", [b"kept"])
        await client.acked(1)

    async def read(client: RawClient) -> bytes:
        await client.subscribe("/a", "earliest")
        return (await client.messages(1))[0][1]

    async def main() -> None:
        async with Node("x", data=str(tmp_path / "n"), port=0, name="first") as node:
            before = node.broker_id
            await in_thread(with_client, node, store)
        async with Node("x", data=str(tmp_path / "n"), port=0) as node:
            assert node.name == "first"
            assert node.broker_id != before
            assert await in_thread(with_client, node, read) == b"kept"

    run(main)


def test_the_default_directory_is_named_after_the_node(
    run: Run[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    async def main() -> None:
        async with Node("x", port=0, name="n7"):
            pass

    run(main)
    assert (tmp_path / "busnode-data" / "n7" / "logs").is_dir()


def test_an_error_at_the_start_is_raised_to_whoever_starts_it(
    run: Run[Any], tmp_path: Path
) -> None:
    async def main() -> None:
        async with Node("x", data=str(tmp_path), port=0) as node:
            with pytest.raises(DataDirectoryInUse):
                await Node("x", data=str(tmp_path), port=0).__aenter__()
            taken = Node("x", storage="memory", port=address(node).port)
            with pytest.raises(OSError, match=f"in use: '127.0.0.1:{address(node).port}'"):
                await taken.__aenter__()

    run(main)


def test_the_error_of_the_block_comes_through_as_it_is(run: Run[Any]) -> None:
    async def main() -> None:
        async with Node("x", storage="memory", port=0):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run(main)


def test_a_drained_node_takes_no_more_clients_and_says_goodbye(run: Run[Any]) -> None:
    async def main() -> None:
        async with Node("x", storage="memory", port=0, drain_timeout_s=5.0) as node:
            said_hello = threading.Event()

            async def stay(client: RawClient) -> str:
                said_hello.set()
                goodbye = await client.expect(Goodbye)
                await client.send(Goodbye("me too", []))
                await client.ended()
                return goodbye.reason

            if run is on_trio:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(in_thread, with_client, node, stay)
                    await in_thread(said_hello.wait)
                    await node.drain()
            else:
                staying = asyncio.create_task(in_thread(with_client, node, stay))
                await in_thread(said_hello.wait)
                await node.drain()
                assert await staying == "this node is leaving"
            with pytest.raises(OSError, match=r"."):
                await in_thread(with_client, node, stay)

    run(main)


def test_http_is_there_when_it_is_asked_for(run: Run[Any]) -> None:
    async def main() -> None:
        async with Node("x", storage="memory", port=0, http_port=0) as node:
            assert node.http_url is not None
            assert node.http_url.startswith("http://127.0.0.1:")

    run(main)


def test_two_nodes_live_in_one_process(run: Run[Any]) -> None:
    async def main() -> None:
        async with (
            Node("x", storage="memory", port=0) as one,
            Node("x", storage="memory", port=0) as other,
        ):
            assert one.url != other.url
            assert one.broker_id != other.broker_id

    run(main)


def test_leaving_under_cancellation_still_closes_the_node() -> None:
    async def main() -> str:
        node = Node("x", storage="memory", port=0)
        entered = asyncio.Event()

        async def hold() -> None:
            async with node:
                entered.set()
                await asyncio.sleep(3600)

        task = asyncio.create_task(hold())
        await entered.wait()
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return node.url

    on_asyncio(main)
    assert not [each for each in threading.enumerate() if each.name == "busnode x"]


def test_on_trio_a_cancelled_block_ends_with_the_node_closed() -> None:
    async def main() -> None:
        with trio.move_on_after(0.05) as scope:
            async with Node("x", storage="memory", port=0):
                await trio.sleep_forever()
        assert scope.cancelled_caught

    on_trio(main)


def test_wrong_settings_are_told_where_they_are_written() -> None:
    with pytest.raises(BadSetting, match="everybody"):
        Node("x", listen="0.0.0.0")
    with pytest.raises(BadSetting, match="name"):
        Node("x", name="../up")
    with pytest.raises(TypeError):
        Node("x", retian_s=5)  # type: ignore[call-arg]


def test_a_node_that_does_not_run_has_no_address() -> None:
    with pytest.raises(RuntimeError, match="async with"):
        assert Node("x", storage="memory").url
