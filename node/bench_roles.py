"""What the processes of a benchmark do: each plays one role against a node, over its socket.

A role is told what to do in lines of JSON on its stdin, says `{"ready": true}` once it stands, and
answers each line with one of its own. It plays through the client library as users write it, except
for those that measure the ground: `raw`, which only receives bytes, the bare copy and the echo.
"""

import json
import logging
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from itertools import cycle, islice
from statistics import median, quantiles
from typing import Any, Final

import trio

from busnode.client import Bus, Subscription, connect
from busnode.client import Request as Asked
from busnode.node import bench_task_roles
from busnode.node.bench_copier import copy_bare
from busnode.node.bench_orders import Answer, Order, orders, sample_payloads, say
from busnode.node.bench_segments import PAYLOAD_BYTES
from busnode.node.bench_window import WindowedPublisher
from busnode.node.event import read_event
from busnode.node.event_kinds import MIRROR_CHOSEN, MIRROR_IN_FORCE
from busnode.node.events import TOPIC as EVENTS
from busnode.wire.control import Hello, Subscribe, encode_control
from busnode.wire.limits import KIB, MIB, PROTOCOL_VERSION
from busnode.world.files import ReadFile
from busnode.world.network import Address, Stream
from busnode.world.real_world import real_world
from busnode.world.world import World

RECEIVE_BYTES: Final = MIB
SEND_BYTES: Final = 256 * KIB
AMPLE: Final = 1 << 40
"""Credit that never runs out."""


def main() -> None:
    """Play the role that the only argument describes, until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever has started us ends us
    logging.getLogger("busnode").setLevel(logging.ERROR)  # what was dropped is in the report
    order = json.loads(sys.argv[1])
    trio.run(ROLES[order["role"]], real_world(), order)


# Publishing -----------------------------------------------------------------------------------


async def _send(bus: Bus, order: Order, payloads: list[bytes]) -> None:
    async with bus.publisher(order["topic"], persistent=order["persistent"]) as out:
        for payload in payloads:
            await out.send(payload)


async def _send_many(bus: Bus, order: Order, payloads: list[bytes]) -> None:
    async with bus.publisher(order["topic"], persistent=order["persistent"]) as out:
        await out.send_many(payloads)


async def _publish(bus: Bus, order: Order, payloads: list[bytes]) -> None:
    """Plainly: one task awaits each `publish`."""
    topic, persistent = order["topic"], order["persistent"]
    if persistent:
        for payload in payloads:
            await bus.publish(topic, payload, persistent=True)
    else:
        for payload in payloads:
            await bus.publish(topic, payload)


async def _publish_at_once(bus: Bus, order: Order, payloads: list[bytes]) -> None:
    """Many tasks, each of which awaits its own `publish`."""
    tasks = order["tasks"]
    async with trio.open_nursery() as nursery:
        for number in range(tasks):
            nursery.start_soon(_publish, bus, order, payloads[number::tasks])


PUBLISHING: Final[dict[str, Callable[[Bus, Order, list[bytes]], Awaitable[None]]]] = {
    "send": _send,
    "send_many": _send_many,
    "publish": _publish,
    "publish_at_once": _publish_at_once,
}


async def publisher(world: World, role: Order) -> None:
    samples = sample_payloads(world)
    async with connect(role["url"], tls_ca=role["tls_ca"], name="bench publisher") as bus:
        async for order in orders():
            payloads = list(islice(cycle(samples), order["messages"]))
            start = world.clock.monotonic()
            await PUBLISHING[order["way"]](bus, order, payloads)
            say({"seconds": world.clock.monotonic() - start})


async def awaiting(world: World, role: Order) -> None:
    """Measures how long one persistent publish takes until it is acked."""
    payload = bytes(PAYLOAD_BYTES)
    async with connect(role["url"], tls_ca=role["tls_ca"], name="bench awaiting") as bus:

        async def once() -> None:
            await bus.publish(role["topic"], payload, persistent=True)

        async for order in orders():
            say(await _time_each(world, once, order["messages"]))


async def windowed(world: World, role: Order) -> None:
    """Keeps a window of batches of a fixed size full: so many of them, or from `begin` to `end`."""
    stream = await world.network.dial(_address(role["address"]))
    out = WindowedPublisher(world, stream, role["topic"])
    end, ended = trio.Event(), trio.Event()

    async def go_on() -> None:
        await out.run(lambda: not end.is_set())
        ended.set()

    async with trio.open_nursery() as nursery:
        async for order in orders():
            if order["do"] == "begin":
                end, ended = trio.Event(), trio.Event()
                nursery.start_soon(go_on)
                say({})
            elif order["do"] == "end":
                end.set()
                await ended.wait()
                say({"samples": out.samples})
            else:
                start = world.clock.monotonic()
                last = out.sent + order["batches"]
                await out.run(lambda last=last: out.sent < last)  # type: ignore[misc]
                say({"seconds": world.clock.monotonic() - start, "levels": sorted(out.levels)})


# Consuming ------------------------------------------------------------------------------------


class Counter:
    """One subscription, and how many messages have come in it or were dropped."""

    def __init__(self, bus: Bus, topic: str, start: str = "latest") -> None:
        assert start in ("latest", "earliest")
        self.subscription: Subscription = bus.subscribe(
            topic, start="latest" if start == "latest" else "earliest", on_dropped=self._dropped
        )
        self.received = 0
        self.dropped = 0

    def _dropped(self, messages: int) -> None:
        self.dropped += messages

    async def count(self, way: str, expected: int) -> None:
        """Until as many have come or were dropped. A report of dropped ones never comes last: the
        node drops the oldest, so something newer is behind it."""
        self.received = self.dropped = 0
        if way == "batches":
            async for batch in self.subscription.batches():
                self.received += len(batch)
                if self.received + self.dropped >= expected:
                    return
        received = 0
        async for message in self.subscription:
            del message
            received += 1
            if received + self.dropped >= expected:
                break
        self.received = received


async def consumer(world: World, role: Order) -> None:
    """Counts what comes on some connections with a subscription each."""
    async with AsyncExitStack() as stack:
        counters: list[Counter] = []
        for number in range(role["connections"]):
            name = f"bench consumer {number}"
            bus = await stack.enter_async_context(
                connect(role["url"], tls_ca=role["tls_ca"], name=name)
            )
            counter = Counter(bus, role["topic"])
            await stack.enter_async_context(counter.subscription)
            counters.append(counter)
        async for order in orders():
            start = world.clock.monotonic()
            async with trio.open_nursery() as nursery:
                for counter in counters:
                    nursery.start_soon(counter.count, order["way"], order["messages"])
                say({"begun": True})
            say(
                {
                    "seconds": world.clock.monotonic() - start,
                    "received": sum(counter.received for counter in counters),
                    "dropped": sum(counter.dropped for counter in counters),
                }
            )


async def reader(world: World, role: Order) -> None:
    """Reads a log from its beginning, for each order anew."""
    async with connect(role["url"], tls_ca=role["tls_ca"], name="bench reader") as bus:
        async for order in orders():
            counter = Counter(bus, order["topic"], "earliest")
            start = world.clock.monotonic()
            async with counter.subscription:
                await counter.count(order["way"], order["messages"])
                say({"seconds": world.clock.monotonic() - start, "received": counter.received})


# The ground -----------------------------------------------------------------------------------


async def raw(world: World, role: Order) -> None:
    """Asks for a log from its beginning, or dials a `sender`, and reads when it is told to: bytes,
    without a look."""
    stream: Stream | None = None
    view = memoryview(bytearray(RECEIVE_BYTES))
    async for order in orders():
        start = world.clock.monotonic()
        received = 0
        if order["do"] == "open":
            stream = await world.network.dial(_address(role["address"]))
            hello = Hello(PROTOCOL_VERSION, "bench raw", world.entropy.u64())
            subscribe = Subscribe(1, order["topic"], "earliest", {}, None, None, AMPLE)
            stream.send(encode_control(hello) + encode_control(subscribe))
        elif order["do"] == "dial":
            stream = await world.network.dial(_address(order["address"]))
        elif stream is not None:
            while received < order["bytes"]:
                received += await _receive(stream, view)
        say({"seconds": world.clock.monotonic() - start, "received_bytes": received})
        if stream is not None and order["do"] == "read":
            stream.close()
            stream = None


async def sender(world: World, role: Order) -> None:
    """Sends a file again and again to whoever dials, as a node sends a log."""
    listener = await world.network.listen(Address("127.0.0.1", 0))
    file = world.files.open(role["path"])

    async def serve() -> None:
        while True:
            stream = await listener.accept()
            with suppress(ConnectionError):  # it has enough
                await _send_for_ever(stream, file)
            stream.close()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        async for _ in orders(address=str(listener.address)):
            pass
        nursery.cancel_scope.cancel()


async def _send_for_ever(stream: Stream, file: ReadFile) -> None:
    size_bytes = file.size_bytes()
    at = 0
    while True:
        sent = stream.send_range(file, at, min(SEND_BYTES, size_bytes - at))
        at = (at + sent) % size_bytes
        if not sent:
            await stream.wait_writable()


async def copier(world: World, role: Order) -> None:
    """Copies what a `sender` sends to a file, with nothing in between: from when to when, by the
    calendar."""
    del role
    async for order in orders():
        stream = await world.network.dial(_address(order["address"]))
        since_us = world.clock.utc_us()
        await copy_bare(world, stream, order["path"], order["bytes"])
        say({"since_us": since_us, "at_us": world.clock.utc_us()})
        stream.close()


async def echo(world: World, role: Order) -> None:
    """Sends back whatever comes on one connection."""
    del role
    listener = await world.network.listen(Address("127.0.0.1", 0))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_echo, listener.accept)
        async for _ in orders(address=str(listener.address)):
            pass
        nursery.cancel_scope.cancel()


async def _echo(accept: Callable[[], Awaitable[Stream]]) -> None:
    stream = await accept()
    view = memoryview(bytearray(PAYLOAD_BYTES))
    with suppress(ConnectionError):
        while True:
            await _receive_all(stream, view)
            stream.send(view)


async def relay(world: World, role: Order) -> None:
    """Passes on whatever comes between one who dials and the echo: a node that does nothing."""
    listener = await world.network.listen(Address("127.0.0.1", 0))

    async def serve() -> None:
        near = await listener.accept()
        far = await world.network.dial(_address(role["to"]))
        nursery.start_soon(_pass_on, far, near)
        await _pass_on(near, far)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        async for _ in orders(address=str(listener.address)):
            pass
        nursery.cancel_scope.cancel()


async def _pass_on(source: Stream, target: Stream) -> None:
    view = memoryview(bytearray(PAYLOAD_BYTES))
    with suppress(ConnectionError):
        while True:
            target.send(view[: await _receive(source, view)])


async def pinger(world: World, role: Order) -> None:
    """Measures round trips to an echo."""
    stream = await world.network.dial(_address(role["address"]))
    view = memoryview(bytearray(PAYLOAD_BYTES))
    payload = bytes(PAYLOAD_BYTES)

    async def once() -> None:
        stream.send(payload)
        await _receive_all(stream, view)

    async for order in orders():
        say(await _time_each(world, once, order["messages"]))


async def _receive(stream: Stream, view: memoryview) -> int:
    count = stream.receive_into(view)
    while count is None:
        await stream.wait_readable()
        count = stream.receive_into(view)
    if not count:
        raise ConnectionError("the other side has closed the connection")
    return count


async def _receive_all(stream: Stream, view: memoryview) -> None:
    at = 0
    while at < len(view):
        at += await _receive(stream, view[at:])


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    return Address(host, int(port))


# Requests -------------------------------------------------------------------------------------


async def provider(world: World, role: Order) -> None:
    """Answers each request with its own payload."""
    del world
    async with (
        connect(role["url"], tls_ca=role["tls_ca"], name="bench provider") as bus,
        bus.provide(role["topic"], _same),
    ):
        async for _ in orders():
            pass


def _same(request: Asked) -> bytes:
    return request.payload


async def requester(world: World, role: Order) -> None:
    """Measures round trips through the node to a provider."""
    payload = bytes(PAYLOAD_BYTES)
    async with connect(role["url"], tls_ca=role["tls_ca"], name="bench requester") as bus:

        async def once() -> None:
            await bus.request(role["topic"], payload)

        async for order in orders():
            say(await _time_each(world, once, order["messages"]))


async def watcher(world: World, role: Order) -> None:
    """Is ready when its node is linked with another one, both ways."""
    async with connect(role["url"], tls_ca=role["tls_ca"], name="bench watcher") as bus:
        while True:
            status = json.loads((await bus.request("/$sys/status")).payload)
            if any(
                peer["link"] == "up" and peer["dials_us"] for peer in status["cluster"]["peers"]
            ):
                break
            await world.clock.sleep(0.01)
        async for _ in orders():
            pass


async def mirror_watcher(world: World, role: Order) -> None:
    """Waits until the node has a mirror in force: since when it was to be one, and when it was, by
    the calendar, which processes share. It listens for that: to be asked for its status every 20 ms
    was a tenth of what the node did meanwhile."""
    async with (
        connect(role["url"], tls_ca=role["tls_ca"], name="bench mirror watcher") as bus,
        bus.subscribe(f"{EVENTS}/+") as messages,
    ):
        async for _ in orders():
            since_us = at_us = world.clock.utc_us()
            if not any(mirror["state"] == "in force" for mirror in await _mirrors(bus)):
                since_us, at_us = await _until_in_force(messages)
            sent_bytes = (await _mirrors(bus))[0]["sent_bytes"]
            say({"since_us": since_us, "at_us": at_us, "sent_bytes": sent_bytes})


async def _mirrors(bus: Bus) -> list[dict[str, Any]]:
    status = json.loads((await bus.request("/$sys/status")).payload)
    mirrors: list[dict[str, Any]] = status["cluster"]["mirrors"]
    return mirrors


async def _until_in_force(messages: Subscription) -> tuple[int, int]:
    since_us = 0
    async for message in messages:
        event = read_event(json.loads(message.payload))
        if event.kind == MIRROR_CHOSEN.name:
            since_us = event.utc_us
        elif event.kind == MIRROR_IN_FORCE.name:
            return since_us, event.utc_us
    raise ConnectionError("the node has gone before it had a mirror in force")


async def _time_each(world: World, once: Callable[[], Awaitable[None]], times: int) -> Answer:
    now = world.clock.monotonic
    took_us: list[float] = []
    for _ in range(times):
        start = now()
        await once()
        took_us.append((now() - start) * 1e6)
    return {"p50_us": median(took_us), "p99_us": quantiles(took_us, n=100)[98]}


ROLES: Final[dict[str, Callable[[World, Order], Awaitable[None]]]] = {
    "publisher": publisher,
    "consumer": consumer,
    "reader": reader,
    "raw": raw,
    "sender": sender,
    "copier": copier,
    "echo": echo,
    "relay": relay,
    "pinger": pinger,
    "provider": provider,
    "requester": requester,
    "watcher": watcher,
    "awaiting": awaiting,
    "windowed": windowed,
    "mirror watcher": mirror_watcher,
    "producer": bench_task_roles.producer,
    "workers": bench_task_roles.workers,
}
