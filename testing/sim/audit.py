"""The last look: what somebody gets who comes now and wants all, and what is on the disks."""

from typing import Final

import trio

from busnode.testing.sim.checkers.checker import Story
from busnode.testing.sim.history import Acked, Delivered
from busnode.testing.sim.stage import Stage
from busnode.wire.errors import BusnodeError
from busnode.wire.ids import LogId

AUDIT_S: Final = 20.0


async def audit(stage: Stage, story: Story) -> None:
    """A fresh consumer at each node reads everything, until it has all that was acked."""
    acked = {event.payload for event in stage.history.of(Acked)}
    async with trio.open_nursery() as nursery:
        for name in stage.names:
            got = story.audits[name] = dict[bytes, int]()
            nursery.start_soon(_read_all, stage, name, got, acked)


async def _read_all(stage: Stage, home: str, got: dict[bytes, int], acked: set[bytes]) -> None:
    with trio.move_on_after(AUDIT_S):
        while not acked <= got.keys():
            try:
                async with (
                    stage.cluster.client(home, name=f"audit at {home}") as bus,
                    bus.subscribe("/*", start="earliest") as messages,
                ):
                    while not acked <= got.keys():
                        payload = (await anext(messages)).payload
                        got[payload] = got.get(payload, 0) + 1
            except BusnodeError:
                await trio.sleep(0.5)


def bodies_on_disks(stage: Stage, story: Story) -> None:
    """Which message each number has, on all disks and for all who have seen it."""
    hashes: dict[tuple[LogId, int], tuple[int, str]] = {}
    for name in stage.names:
        for log_id, numbers in stage.platters[name].contents().items():
            for number, record in numbers.items():
                known, where = hashes.setdefault((log_id, number), (record.body_hash, name))
                if known != record.body_hash:
                    story.conflicts.append((log_id, number, f"{where} and {name}"))
        for log_id, number, payload in stage.platters[name].payloads():
            story.bodies.setdefault((log_id, number), payload)
    for event in stage.history.events:
        if isinstance(event, Acked | Delivered) and event.log_id is not None:
            story.bodies.setdefault((event.log_id, event.msg_no), event.payload)
