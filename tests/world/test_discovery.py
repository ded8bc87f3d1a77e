"""Discovery by a list, by seeds, and by several as one."""

import subprocess
import sys
from collections.abc import Callable

import pytest
import trio
import trio.testing

from busnode.wire.ids import BrokerId
from busnode.world.discovery import Announcement, Discovery, DiscoveryStatistics, Hint
from busnode.world.joined_discovery import JoinedDiscovery
from busnode.world.network import Address
from busnode.world.real_discovery import real_discovery
from busnode.world.real_seeds import RESOLVE_AGAIN_S, SeedDiscovery
from busnode.world.real_world import real_world
from busnode.world.static_discovery import StaticDiscovery

SEEDS = (Address("127.0.0.1", 1), Address("::1", 2))
NAMED = Address("peers.example", 4251)
US = Announcement("test", 1, BrokerId(bytes(16)), "us", ())


class Resolver:
    """Answers with what a test has put in, one answer for each time, and the last for ever."""

    def __init__(self, *answers: list[Address] | OSError) -> None:
        self.answers = list(answers)
        self.asked_at: list[float] = []

    async def __call__(self, seed: Address) -> list[Address]:
        await trio.lowlevel.checkpoint()
        self.asked_at.append(trio.current_time())
        answer = self.answers[0] if len(self.answers) == 1 else self.answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer


class Told:
    """A discovery that tells a hint, then waits until it is cancelled and withdraws."""

    def __init__(self, hint: Hint, statistics: DiscoveryStatistics) -> None:
        self.hint = hint
        self.told = statistics
        self.announced: list[str] = []

    async def run(self, announcement: Announcement, found: Callable[[Hint], None]) -> None:
        self.announced.append(announcement.name)
        found(self.hint)
        try:
            await trio.sleep_forever()
        finally:
            self.announced.remove(announcement.name)

    def statistics(self) -> DiscoveryStatistics:
        return self.told


async def found_by(discovery: Discovery) -> list[Hint]:
    """All that a discovery finds which ends by itself."""
    found: list[Hint] = []
    with trio.fail_after(60):
        await discovery.run(US, found.append)
    return found


@pytest.mark.parametrize("kind", [StaticDiscovery, SeedDiscovery])
async def test_each_address_is_one_hint_and_then_it_ends(
    kind: Callable[[tuple[Address, ...]], Discovery],
) -> None:
    discovery = kind(SEEDS)
    for _ in range(2):
        assert await found_by(discovery) == [Hint((seed,), "seed") for seed in SEEDS]
    assert discovery.statistics() == DiscoveryStatistics(events=4)


async def test_the_real_world_finds_nobody_unless_it_is_told_how() -> None:
    assert await found_by(real_world().discovery) == []
    seeds = real_discovery(SEEDS, None, mdns=False)
    assert len(await found_by(real_world(seeds).discovery)) == 2


async def test_a_name_is_resolved_at_once_and_again_and_each_address_is_a_hint(
    autojump_clock: trio.testing.MockClock,
) -> None:
    one, other = Address("192.0.2.1", 4251), Address("192.0.2.2", 4251)
    resolve = Resolver([one, one], [one, other])
    found: list[Hint] = []
    with trio.move_on_after(RESOLVE_AGAIN_S * 1.5):
        await SeedDiscovery([NAMED], resolve).run(US, found.append)
    assert resolve.asked_at == [0, RESOLVE_AGAIN_S]
    assert found == [Hint((address,), "dns") for address in (one, one, other)]


async def test_a_name_that_does_not_resolve_is_counted_and_tried_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    one = Address("192.0.2.1", 4251)
    resolve = Resolver(OSError("nobody knows it"), OSError("nobody knows it"), [one])
    discovery = SeedDiscovery([NAMED, *SEEDS], resolve)
    found: list[Hint] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(discovery.run, US, found.append)
        await trio.sleep(RESOLVE_AGAIN_S * 1.5)
        assert discovery.statistics().events == 4
        failure = discovery.statistics().failure
        assert failure == "the seed peers.example:4251 does not resolve: nobody knows it"
        await trio.sleep(RESOLVE_AGAIN_S)
        assert discovery.statistics() == DiscoveryStatistics(events=5)
        nursery.cancel_scope.cancel()
    assert found[2:] == [Hint((one,), "dns")]


async def test_a_name_that_hangs_holds_up_no_other() -> None:
    async def resolve(seed: Address) -> list[Address]:
        if seed == NAMED:
            await trio.sleep_forever()
        return [seed]

    found: list[Hint] = []
    async with trio.open_nursery() as nursery:
        other = Address("other.example", 1)
        nursery.start_soon(SeedDiscovery([NAMED, other], resolve).run, US, found.append)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert found == [Hint((other,), "dns")]


async def test_the_resolver_of_the_system_is_asked() -> None:
    found: list[Hint] = []
    async with trio.open_nursery() as nursery:
        seeds = [Address("localhost", 7), Address("no-such-host.invalid", 7), Address("x" * 300, 7)]
        discovery = SeedDiscovery(seeds)
        nursery.start_soon(discovery.run, US, found.append)
        with trio.fail_after(60):
            while not found or (discovery.statistics().failure or "").count("resolve") < 2:
                await trio.sleep(0.001)
        nursery.cancel_scope.cancel()
    assert {hint.addresses[0] for hint in found} <= {Address("127.0.0.1", 7), Address("::1", 7)}


async def test_several_are_one_and_all_of_them_withdraw() -> None:
    hints = [Hint((seed,), "test") for seed in SEEDS]
    parts = [
        Told(hints[0], DiscoveryStatistics(1, 2, 3, "no cable")),
        Told(hints[1], DiscoveryStatistics(10, 20, 30)),
    ]
    joined = JoinedDiscovery(parts)
    found: list[Hint] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(joined.run, US, found.append)
        await trio.testing.wait_all_tasks_blocked()
        assert [part.announced for part in parts] == [["us"], ["us"]]
        nursery.cancel_scope.cancel()
    assert sorted(found) == sorted(hints)
    assert [part.announced for part in parts] == [[], []]
    assert joined.statistics() == DiscoveryStatistics(11, 22, 33, "no cable")


async def test_several_end_when_all_have_ended() -> None:
    assert len(await found_by(JoinedDiscovery([StaticDiscovery(SEEDS)] * 2))) == 4
    assert JoinedDiscovery([]).statistics() == DiscoveryStatistics()


def test_a_node_that_is_not_asked_to_discover_imports_no_library_for_it() -> None:
    program = (
        "import sys, busnode.world.real_world, busnode.world.real_discovery as d;"
        "d.real_discovery([], None, mdns=True);"
        "print({'zeroconf', 'ifaddr', 'asyncio'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert done.stdout == "set()\n"
