"""What only the simulated clock can do."""

import trio
import trio.testing

from busnode.testing.sim import SimClock


async def test_the_calendar_follows_virtual_time_and_jumps_when_told(
    autojump_clock: trio.testing.MockClock,
) -> None:
    clock = SimClock(0)
    await clock.sleep(10)
    assert clock.utc_us() == 10_000_000
    clock.jump(-3600)
    assert clock.monotonic() == 10
    assert clock.utc_us() == -3_590_000_000
    clock.jump(3600.5)
    await clock.sleep(1)
    assert clock.utc_us() == 11_500_000


def test_time_stands_still_outside_of_a_run() -> None:
    clock = SimClock(0)
    assert clock.utc_us() == 0
    trio.run(clock.sleep, 5, clock=trio.testing.MockClock(autojump_threshold=0))

    async def read() -> float:
        await trio.sleep(7)
        return clock.monotonic()

    assert trio.run(read, clock=trio.testing.MockClock(autojump_threshold=0)) == 7
    assert clock.utc_us() == clock.utc_us() == 7_000_000
