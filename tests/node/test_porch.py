"""Strangers are served a little at a time, and nobody who is in waits for all of them."""

from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from busnode.node import porch as porches
from busnode.node.porch import COME_A_TURN, LEAVE_A_TURN, Porch
from busnode.wire.control import Error
from busnode.world.real_crowd import READY_A_TURN

from .raw_client import SimulatedMachine, dialled, real_bus

GARBAGE: Final = b"GET / HTTP/1.1\r\n\r\n"
STRANGERS: Final = 40


class Turns(trio.abc.Instrument):
    """Counts what is done for strangers in each turn of the loop."""

    def __init__(self) -> None:
        self.number = 0
        self.done: Counter[tuple[int, str]] = Counter()

    def before_io_wait(self, timeout: float) -> None:
        del timeout
        self.number += 1

    def counting(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            self.done[self.number, name] += 1
            return function(*arguments)

        return counted


async def test_all_doors_together_do_one_thing_for_strangers_in_a_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = Turns()
    most = {"wait_for": COME_A_TURN, "_ready": READY_A_TURN, "_time_is_up": LEAVE_A_TURN}
    for name in most:
        monkeypatch.setattr(Porch, name, turns.counting(name, getattr(Porch, name)))
    monkeypatch.setattr(porches, "LINGER_S", 0.1)
    trio.lowlevel.add_instrument(turns)
    async with real_bus(tmp_path, peer_port=0, mdns=False, hello_timeout_s=0.3) as bus:
        doors = bus.node.doors
        assert bus.node.listeners.peer is not None
        async with AsyncExitStack() as stack:
            far = [
                await stack.enter_async_context(dialled(bus.network, address))
                for _ in range(STRANGERS)
                for address in (bus.node.address, bus.node.listeners.peer.address)
            ]
            for stranger in far[STRANGERS:]:
                stranger.stream.send(GARBAGE)
            await bus.settled(lambda: turns.done.total() > 2 * STRANGERS)
            await bus.settled(lambda: not doors.clients.half_open + doors.peers.half_open)
    trio.lowlevel.remove_instrument(turns)
    assert {name for _, name in turns.done} == set(most)
    busy = Counter(turn for turn, _ in turns.done)
    assert set(busy.values()) == {1}, "two things were done in one turn"
    assert all(count <= most[name] for (_, name), count in turns.done.items())


def test_who_is_refused_when_its_time_is_nearly_up_leaves_once() -> None:
    machine = SimulatedMachine(1)

    async def main() -> None:
        async with machine.bus(hello_timeout_s=0.5) as bus, bus.stranger() as stranger:
            await trio.sleep(0.4)
            stranger.stream.send(GARBAGE)
            (error,) = await stranger.ended()
            assert isinstance(error, Error)
            assert bus.node.doors.clients.half_open == 0
            async with bus.client():
                pass

    machine.run(main)
