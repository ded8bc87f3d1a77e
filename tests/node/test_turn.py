"""Of the loop's time strangers get a third, whenever they take much of it."""

from typing import cast

import pytest
import trio

from busnode.node.turn import REST_MIN_S, RESTS, Turn
from busnode.testing.sim.simulation import simulate
from busnode.world.network import Stream
from busnode.world.task_crowd import TaskCrowd


class Stopwatch:
    """A clock that is moved by hand, and knows how long was slept."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.slept_s: list[float] = []

    def monotonic(self) -> float:
        return self.now_s

    def utc_us(self) -> int:
        raise AssertionError("a duration is not measured with the calendar")

    async def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        await trio.sleep(seconds)
        self.now_s += seconds


def test_what_takes_long_is_followed_by_a_longer_rest() -> None:
    clock = Stopwatch()

    async def main() -> None:
        turn = Turn(clock)
        began_s = trio.current_time()
        async with turn:
            clock.now_s += 0.004
        async with turn:
            assert trio.current_time() - began_s == pytest.approx(RESTS * 0.004)
        async with turn:
            pass
        assert clock.slept_s == [pytest.approx(RESTS * 0.004)], (
            "what was rested for is not owed any more"
        )

    simulate(1, main)


def test_many_short_ones_add_up_to_a_rest() -> None:
    clock = Stopwatch()

    async def main() -> None:
        turn = Turn(clock)
        for _ in range(10):
            async with turn:
                clock.now_s += REST_MIN_S / RESTS / 4
        async with turn:
            pass
        assert clock.slept_s == [pytest.approx(REST_MIN_S)] * 2

    simulate(1, main)


def test_nobody_has_a_turn_while_there_is_a_rest() -> None:
    clock = Stopwatch()
    ends_s: list[float] = []

    async def main() -> None:
        turn = Turn(clock)

        async def stranger() -> None:
            async with turn:
                ends_s.append(trio.current_time())
                clock.now_s += 1.0

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(stranger)

    simulate(1, main)
    first_s = ends_s[0]
    assert [end_s - first_s for end_s in ends_s] == pytest.approx([0.0, RESTS, 2 * RESTS])


def test_who_is_cancelled_while_it_rests_lets_others_go_on() -> None:
    clock = Stopwatch()

    async def main() -> None:
        turn = Turn(clock)
        async with turn:
            clock.now_s += 1.0
        with trio.move_on_after(RESTS / 2) as scope:
            async with turn:
                raise AssertionError("the rest was cut short")
        assert scope.cancelled_caught
        clock.now_s += RESTS
        with trio.fail_after(0.1):
            async with turn:
                pass

    simulate(1, main)


class Impatient:
    """A stranger's stream, of which something can always be read."""

    async def wait_readable(self) -> None:
        await trio.lowlevel.checkpoint()


def test_a_stranger_who_is_gone_after_its_turn_was_there_all_the_same() -> None:
    clock = Stopwatch()
    begins_s: list[float] = []

    async def main() -> None:
        crowd = TaskCrowd()

        def ready(stream: Stream) -> None:
            begins_s.append(trio.current_time())
            clock.now_s += 1.0
            crowd.discard(stream)  # and with it the task that holds the turn

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                crowd.add(cast(Stream, Impatient()))
            nursery.start_soon(crowd.run, ready, Turn(clock))
            with trio.fail_after(10 * RESTS):
                while len(begins_s) < 3:
                    await trio.sleep(0.1)
            nursery.cancel_scope.cancel()

    simulate(1, main)
    first_s = begins_s[0]
    assert [begin_s - first_s for begin_s in begins_s] == pytest.approx([0.0, RESTS, 2 * RESTS])
