"""Pausing a host: a canary for the private parts of trio that it rests on."""

import trio

from busnode.testing.sim import simulate
from busnode.testing.sim.freezer import HOST, Freezer


def test_a_paused_host_gets_no_time_and_learns_of_all_at_once_when_it_goes_on() -> None:
    freezer = Freezer()
    steps: list[tuple[str, float]] = []

    async def tick(host: str) -> None:
        HOST.set(host)
        async with trio.open_nursery() as nursery:  # a task below belongs to the same host

            async def below() -> None:
                while True:
                    with trio.move_on_after(1.0):
                        await trio.sleep_forever()
                    steps.append((host, trio.current_time()))

            nursery.start_soon(below)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tick, "a")
            nursery.start_soon(tick, "b")
            await trio.sleep(2.5)
            freezer.freeze("a")
            await trio.sleep(3.0)
            freezer.thaw("a")
            await trio.sleep(1.6)
            nursery.cancel_scope.cancel()

    with freezer.installed():
        simulate(0, main)
    assert [at for host, at in steps if host == "b"] == [1, 2, 3, 4, 5, 6, 7]
    assert [at for host, at in steps if host == "a"] == [1, 2, 5.5, 6.5]


def test_a_task_that_was_woken_and_timed_out_while_paused_is_woken_once() -> None:
    freezer = Freezer()
    woken: list[float] = []

    async def main() -> None:
        event = trio.Event()

        async def wait() -> None:
            HOST.set("a")
            with trio.move_on_after(2.0):
                await event.wait()
            woken.append(trio.current_time())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.sleep(1.0)
            freezer.freeze("a")
            event.set()
            await trio.sleep(4.0)
            freezer.thaw("a")

    with freezer.installed():
        simulate(0, main)
    assert woken == [5.0]
