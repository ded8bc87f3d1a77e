"""The contract of `Clock`, for the real one and for the simulated one."""

import threading
import time

import pytest
import trio
import trio.testing

from busnode.testing.sim import SimClock
from busnode.world.clock import Clock
from busnode.world.real_clock import RealClock


@pytest.fixture(params=["real", "simulated"])
def clock(request: pytest.FixtureRequest) -> Clock:
    return RealClock() if request.param == "real" else SimClock()


async def test_it_has_the_scale_of_deadlines(
    clock: Clock, autojump_clock: trio.testing.MockClock
) -> None:
    begun = clock.monotonic()
    assert begun == trio.current_time()
    with trio.CancelScope(deadline=clock.monotonic() + 3600) as scope:
        await clock.sleep(7200)
    assert scope.cancelled_caught
    assert clock.monotonic() == begun + 3600


def test_it_can_be_read_outside_of_a_run_and_never_goes_back(clock: Clock) -> None:
    async def read() -> float:
        return clock.monotonic()

    before = clock.monotonic()
    inside = trio.run(read)
    assert before <= inside <= clock.monotonic()


async def test_a_thread_reads_the_same_scale() -> None:
    clock = RealClock()
    readings: list[float] = []
    before = clock.monotonic()
    thread = threading.Thread(target=lambda: readings.append(clock.monotonic()))
    thread.start()
    thread.join()
    # trio's offset is 10000 s or more; a minute is room for any pause between two readings.
    assert before - 60 <= readings[0] <= clock.monotonic() + 60


def test_the_real_calendar_is_in_microseconds() -> None:
    before = time.time()
    now = RealClock().utc_us() / 1e6
    assert before - 1 <= now <= time.time() + 1
