"""The bounded way from a thread into trio."""

from threading import Thread

import trio
import trio.testing

from busnode.world.real_inlet import Inlet


def in_thread(work: Thread) -> None:
    """Let it run to its end while the loop stands still."""
    work.start()
    work.join(60)
    assert not work.is_alive()


async def test_what_a_thread_offers_arrives_in_order_however_the_task_waits() -> None:
    inlet = Inlet[int](1000)

    def offer() -> None:
        for i in range(500):
            assert inlet.offer(i)

    got: list[int] = []

    async def receive() -> None:
        for _ in range(1000):
            got.append(await inlet.receive())

    with trio.fail_after(60):
        in_thread(Thread(target=offer))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive)
            await trio.testing.wait_all_tasks_blocked()
            assert len(got) == 500
            await trio.to_thread.run_sync(offer)
    assert got == [*range(500), *range(500)]


async def test_a_full_inlet_takes_nothing_and_holds_up_nobody() -> None:
    inlet = Inlet[int](3)
    taken: list[bool] = []
    in_thread(Thread(target=lambda: taken.extend(inlet.offer(i) for i in range(10))))
    assert taken == [True] * 3 + [False] * 7
    assert [await inlet.receive() for _ in range(3)] == [0, 1, 2]
    assert inlet.offer(3)
    assert await inlet.receive() == 3


async def test_many_offers_wake_the_loop_once() -> None:
    inlet = Inlet[int](1000)
    before = trio.lowlevel.current_statistics().run_sync_soon_queue_size
    in_thread(Thread(target=lambda: [inlet.offer(i) for i in range(1000)]))
    assert trio.lowlevel.current_statistics().run_sync_soon_queue_size <= before + 1


def test_who_offers_after_the_end_is_not_told() -> None:
    async def make() -> Inlet[int]:
        return Inlet[int](1)

    assert trio.run(make).offer(1)
