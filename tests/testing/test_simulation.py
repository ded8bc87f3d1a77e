"""One seed, one history: in this process, in another, and under another hash seed."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import trio

from busnode.testing.sim import (
    DiskFaults,
    SimClock,
    SimDisk,
    SimEntropy,
    SimNetwork,
    simulate,
)
from busnode.world.files import read_whole
from busnode.world.network import Address, Stream

ODDS = DiskFaults(
    append_enospc=0.02,
    append_eio=0.02,
    sync_eio=0.05,
    sync_slow=0.2,
    entry_enospc=0.02,
    entry_eio=0.02,
    read_eio=0.02,
)


async def story(seed: int) -> list[str]:
    """Three machines that chatter, write, fail, lose power and come back."""
    history: list[str] = []
    entropy = SimEntropy(seed)
    network = SimNetwork(seed)
    clock = SimClock()
    names = ("a", "b", "c")
    disks = {name: SimDisk(f"{seed}/{name}", ODDS, clock=clock) for name in names}

    def note(*words: object) -> None:
        history.append(" ".join([f"{trio.current_time():.9f}", *map(str, words)]))

    async def serve(name: str) -> None:
        listener = await network.host(name).listen(Address(name, 1))
        async with trio.open_nursery() as nursery:
            while True:
                stream = await listener.accept()
                note(name, "accepted", stream.peer)
                nursery.start_soon(write, name, stream)

    async def write(name: str, stream: Stream) -> None:
        view = memoryview(bytearray(100))
        try:
            await stream.wait_readable()
            while count := stream.receive_into(view):
                file = disks[name].append_to(f"/{entropy.below(3)}")
                file.append(view[:count])
                outcomes = await disks[name].sync_all([file], ["/"])
                note(name, count, file.path, file.size_bytes, *map(str, outcomes))
                await stream.wait_readable()
        except OSError as error:
            note(name, error)

    async def chat(name: str) -> None:
        for _ in range(20):
            await clock.sleep(entropy.random())
            try:
                stream = await network.host(name).dial(Address(names[entropy.below(3)], 1))
                for _ in range(5):
                    stream.send(entropy.garbage(1 + entropy.below(50)))
                    await clock.sleep(entropy.random() / 10)
                stream.close()
            except OSError as error:
                note(name, error)

    async with trio.open_nursery() as servers:
        for name in names:
            servers.start_soon(serve, name)
        async with trio.open_nursery() as talkers:
            for name in names:
                talkers.start_soon(chat, name)
            for _ in range(20):
                await clock.sleep(0.5)
                one, other = entropy.choose(names), entropy.choose(names)
                if one != other:
                    network.partition(one, other)
                else:
                    network.heal_all()
                    disks[one].power_loss()
            network.heal_all()
        servers.cancel_scope.cancel()
    for name, disk in disks.items():
        disk.power_loss()
        note(name, sorted(disk.faults.items()))
        disk.odds = DiskFaults()
        for entry in disk.names("/"):
            note(name, entry, disk.modified_us(f"/{entry}"))
            note(read_whole(disk, f"/{entry}", 1 << 20).hex())
    return history


def run(seed: int) -> list[str]:
    return simulate(seed, partial(story, seed))


def test_the_same_seed_gives_the_same_history() -> None:
    for seed in range(3):
        first = run(seed)
        assert len(first) > 50
        assert run(seed) == first
    assert run(1) != run(2)


def test_the_same_seed_gives_the_same_history_in_another_process() -> None:
    program = "from tests.testing.test_simulation import run; print(*run(3), sep='\\n')"
    root = Path(__file__).resolve().parents[2]
    expected = "\n".join(run(3)) + "\n"
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        arguments = [sys.executable, "-c", program]
        done = subprocess.run(
            arguments, cwd=root, env=environment, check=True, capture_output=True, text=True
        )
        assert done.stdout == expected


def test_a_simulated_day_takes_no_time() -> None:
    async def day() -> float:
        await trio.sleep(86_400)
        return trio.current_time()

    assert simulate(0, day) == 86_400


def test_the_scheduler_of_other_runs_is_left_as_it_was() -> None:
    from trio._core import _run as scheduler

    before = scheduler._ALLOW_DETERMINISTIC_SCHEDULING, scheduler._r.getstate()
    run(1)
    assert before == (scheduler._ALLOW_DETERMINISTIC_SCHEDULING, scheduler._r.getstate())


def test_another_seed_lets_other_tasks_go_first() -> None:
    async def race() -> str:
        order: list[str] = []

        async def task(name: str) -> None:
            order.append(name)

        async with trio.open_nursery() as nursery:
            for name in "abcdefgh":
                nursery.start_soon(task, name)
        return "".join(order)

    assert simulate(1, race) == simulate(1, race)
    assert len({simulate(seed, race) for seed in range(10)}) > 5
