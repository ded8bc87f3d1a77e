"""When all is settled everything works as in fair weather, and exactly so."""

from typing import Any, Final

import trio

from busnode.client import Subscription
from busnode.node.incarnation import PAUSE_S_MAX
from busnode.testing.sim.history import (
    Acked,
    Delivered,
    HandedOver,
    NotAcked,
    Position,
    Sent,
    Unsettled,
)
from busnode.testing.sim.stage import Stage
from busnode.testing.sim.workload.clients import Clients
from busnode.wire.ids import LogId

CALM_S: Final = 10.0
QUEUED: Final = 12
LIVE: Final = 4
MIRRORED: Final = 3
ASKED: Final = 3
TAKEN: Final = 20
TAKING_S: Final = 2.0


async def try_everything(stage: Stage, clients: Clients) -> None:
    """Publish to all, to queues, live, with a mirror; ask. What does not come is noted."""
    began = len(stage.history.events)
    counts = {"m0": MIRRORED, "q0": QUEUED, "l0": LIVE}
    answered = 0
    with trio.move_on_after(CALM_S):
        for publisher in clients.publishers:
            bus = clients.buses.get(publisher.name)
            for _ in range(counts.get(publisher.name, 0)) if bus is not None else ():
                assert bus is not None
                await publisher.publish(bus)
        bus = clients.buses.get(clients.requester.name)
        for _ in range(ASKED) if bus is not None else ():
            assert bus is not None
            answered += await clients.requester.ask(bus)
        while any(_lacking(stage, clients, began)):
            await trio.sleep(0.1)
    missing = [*_lacking(stage, clients, began)]
    if answered < ASKED:
        missing.append(f"{ASKED - answered} of {ASKED} requests had no answer")
    for what in missing:
        stage.history.add(Unsettled(stage.now, f"in fair weather: {what}"))


async def hand_over(stage: Stage) -> None:
    """The home of a durable subscription dies, and another one goes on from its position."""
    if len(stage.cluster.nodes) > len(stage.names):
        return  # a clone that mirrors its original takes that log for its own, and does not look
    first, second = stage.names[:2]
    options: dict[str, Any] = {"start": "earliest", "durable": "handed over"}
    async with (
        stage.cluster.client(first, name="before") as bus,
        bus.subscribe("/*", **options) as messages,
    ):
        with trio.move_on_after(TAKING_S):
            for _ in range(TAKEN):
                await anext(messages)
        messages.done()
        saved = _position(messages)
    # It is not told when it is kept: that may take until the home can write again.
    with trio.move_on_after(PAUSE_S_MAX):
        while stage.cluster[first].node.incarnations.failure is not None:
            await trio.sleep(TAKING_S)
    await trio.sleep(TAKING_S)
    stage.down(stage.cluster[first], "killed")
    await stage.cluster[first].kill()
    async with (
        stage.cluster.client(second, name="after") as bus,
        bus.subscribe("/*", **options) as messages,
    ):
        stage.history.add(HandedOver(stage.now, saved, _position(messages)))


def _position(messages: Subscription) -> Position:
    cursors = sorted(messages.position.items())
    return tuple((LogId(*log), int(msg_no)) for log, msg_no in cursors)


def _lacking(stage: Stage, clients: Clients, began: int) -> list[str]:
    events = stage.history.events[began:]
    sent = {event.payload: event for event in events if isinstance(event, Sent)}
    refused = [event for event in events if isinstance(event, NotAcked)]
    acked = {event.payload for event in events if isinstance(event, Acked)}
    got: dict[bytes, set[str]] = {}
    for event in events:
        if isinstance(event, Delivered):
            got.setdefault(event.payload, set()).add(event.consumer)
    missing = [f"{event.client} was refused: {event.code}" for event in refused]
    for payload, event in sent.items():
        name = payload.decode().strip(". ")
        if event.kind != "live" and payload not in acked:
            missing.append(f"{name} has no answer")
        wanted = {
            "queue": set[str](),
            "live": {reader.name for reader in clients.readers if reader.how == "live"},
            "mirrored": {reader.name for reader in clients.readers if reader.how == "earliest"},
        }[event.kind]
        if not got.get(payload) or not wanted <= got[payload]:
            lacking = wanted - got.get(payload, set())
            missing.append(f"{name} has not come to {' '.join(sorted(lacking)) or 'any member'}")
    return missing
