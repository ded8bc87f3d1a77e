"""The last look: what somebody gets who comes now and wants all, and what is on the disks."""

from collections.abc import Callable
from typing import Final

import trio

from busnode.client import Gap, Position
from busnode.testing.sim.checkers.checker import Story
from busnode.testing.sim.history import Acked, Delivered, GapTold, Untold
from busnode.testing.sim.stage import Stage
from busnode.wire.errors import BusnodeError
from busnode.wire.ids import LogId, MsgNo
from busnode.wire.topics import is_system

AUDIT_S: Final = 20.0
LOOK_S: Final = 0.25


async def audit(stage: Stage, story: Story) -> None:
    """A fresh consumer at each node reads all logs from 1 on, until it has all that was acked, or
    was told that it cannot be had."""
    acked = list(stage.history.of(Acked))
    async with trio.open_nursery() as nursery:
        for name in stage.names:
            nursery.start_soon(_Auditor(stage, story, name).run, acked)
        nursery.start_soon(_bring_unknown_cursors, stage)


async def _bring_unknown_cursors(stage: Stage) -> None:
    """Somebody comes with cursors in logs of which nothing is left."""
    left = {broker_id for each in stage.platters.values() for broker_id in each.brokers()}
    lost = dict.fromkeys(
        log_id
        for log_id, _ in stage.lost
        if log_id.broker_id not in left and not is_system(log_id.topic)  # which /* is not about
    )
    position = Position({(log_id.broker_id, log_id.topic): MsgNo(1) for log_id in lost})
    home = stage.names[-1]

    def told(gap: Gap) -> None:
        lost.pop(LogId(gap.broker_id, gap.topic), None)

    with trio.move_on_after(AUDIT_S if lost else 0.0):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_hear_gaps, stage, home, position, told)
            while lost:
                await trio.sleep(LOOK_S)
            nursery.cancel_scope.cancel()
    for log_id in lost:
        stage.history.add(Untold(stage.now, home, log_id))


async def _hear_gaps(
    stage: Stage, home: str, position: Position, told: Callable[[Gap], None]
) -> None:
    while True:
        try:
            async with (
                stage.cluster.client(home, name="who was away for long") as bus,
                bus.subscribe("/*", start=position, on_gap=told) as messages,
            ):
                async for _ in messages:
                    pass
        except BusnodeError:
            await trio.sleep(0.5)


class _Auditor:
    def __init__(self, stage: Stage, story: Story, home: str) -> None:
        self._stage = stage
        self._story = story
        self._home = home
        self._got: set[bytes] = set()
        self._told: set[tuple[LogId, int]] = set()
        self._name = f"audit at {home}"
        self._sessions = 0

    async def run(self, acked: list[Acked]) -> None:
        with trio.move_on_after(AUDIT_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._read)
                while any(self._lacks(event) for event in acked):
                    await trio.sleep(LOOK_S)
                nursery.cancel_scope.cancel()
        for event in acked:
            if self._lacks(event):
                self._story.lacking.append((self._home, event))

    async def _read(self) -> None:
        while True:
            try:
                async with (
                    self._stage.cluster.client(self._home, name=self._name) as bus,
                    bus.subscribe("/*", start=Position(), on_gap=self._gap) as messages,
                ):
                    self._sessions += 1
                    async for message in messages:
                        self._got.add(message.payload)
            except BusnodeError:
                await trio.sleep(0.5)

    def _gap(self, gap: Gap) -> None:
        """All nodes are up and linked: what it says must be so."""
        log_id = LogId(gap.broker_id, gap.topic)
        numbers = range(gap.first, gap.last + 1)
        self._told.update((log_id, number) for number in numbers)
        stage = self._stage
        held = tuple(
            number
            for number in numbers
            if (log_id, number) not in stage.expired and stage.holders(log_id, number)
        )
        told = gap.first, gap.last, gap.reason
        stage.history.add(GapTold(stage.now, self._name, self._sessions, log_id, *told, held))

    def _lacks(self, event: Acked) -> bool:
        if event.payload in self._got or (event.log_id, event.msg_no) in self._told:
            return False
        place = event.log_id, event.msg_no
        return not self._stage.is_gone(*place) or self._stage.is_missed(*place)


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
    for place, payload in stage.bodies.items():
        story.bodies.setdefault(place, payload)
    for event in stage.history.events:
        if isinstance(event, Acked | Delivered) and event.log_id is not None:
            story.bodies.setdefault((event.log_id, event.msg_no), event.payload)
