"""Discovery by a list, and by a test."""

import trio
import trio.testing

from busnode.testing.sim import SimDiscovery
from busnode.world.discovery import Discovery, Hint
from busnode.world.network import Address
from busnode.world.real_world import real_world
from busnode.world.static_discovery import StaticDiscovery

SEEDS = (Address("a", 1), Address("b", 2))


async def test_each_seed_is_one_hint_and_then_it_ends() -> None:
    discovery: Discovery = StaticDiscovery(SEEDS)
    for _ in range(2):
        found = [hint async for hint in discovery.hints()]
        assert [hint.addresses for hint in found] == [(seed,) for seed in SEEDS]


async def test_the_real_world_knows_its_seeds_and_without_them_nobody() -> None:
    assert len([hint async for hint in real_world(SEEDS).discovery.hints()]) == 2
    assert [hint async for hint in real_world().discovery.hints()] == []


async def test_simulated_hints_come_to_everyone_also_late() -> None:
    first, second = Hint((SEEDS[0],), "test"), Hint((SEEDS[1],), "test")
    discovery = SimDiscovery([first])
    heard: list[list[Hint]] = [[], []]

    async def listen(to: list[Hint], source: Discovery) -> None:
        async for hint in source.hints():
            to.append(hint)

    async with trio.open_nursery() as nursery:
        for each in heard:
            nursery.start_soon(listen, each, discovery)
        await trio.testing.wait_all_tasks_blocked()
        assert heard == [[first], [first]]
        discovery.add(second)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert heard == [[first, second], [first, second]]
