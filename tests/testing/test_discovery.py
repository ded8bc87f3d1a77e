"""The simulated discovery: what a test adds, and an ether in which nodes hear of each other."""

from functools import partial

import trio
import trio.testing

from busnode.testing.sim import SimDiscovery, SimEther, simulate
from busnode.testing.sim.discovery import REPEAT_S
from busnode.wire.ids import BrokerId
from busnode.world.discovery import Announcement, Discovery, Hint
from busnode.world.network import Address

FIRST, SECOND = (Hint((Address(name, 1),), "test") for name in "xy")


def node(name: str) -> Announcement:
    return Announcement("test", 1, BrokerId(name.encode() * 16), name, (Address(name, 4251),))


class Nodes:
    """Some nodes that run, and the names of what each has heard, in order."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self.heard: dict[str, list[Hint]] = {}
        self.scopes: dict[str, trio.CancelScope] = {}

    async def start(self, name: str, discovery: Discovery) -> None:
        self.heard[name] = []
        self.scopes[name] = trio.CancelScope()
        self.nursery.start_soon(self._run, name, discovery)
        await trio.testing.wait_all_tasks_blocked()

    async def _run(self, name: str, discovery: Discovery) -> None:
        with self.scopes[name]:
            await discovery.run(node(name), self.heard[name].append)

    def names(self, name: str) -> list[str | None]:
        return [hint.name for hint in self.heard[name]]


async def test_added_hints_come_to_everyone_also_late() -> None:
    discovery = SimDiscovery([FIRST])
    async with trio.open_nursery() as nursery:
        nodes = Nodes(nursery)
        await nodes.start("a", discovery)
        discovery.add(SECOND)
        await trio.testing.wait_all_tasks_blocked()
        assert nodes.heard["a"] == [FIRST, SECOND]
        await nodes.start("b", discovery)
        assert nodes.heard["b"][:2] == [FIRST, SECOND]
        nursery.cancel_scope.cancel()


async def test_nodes_in_one_ether_hear_of_each_other_and_not_of_themselves() -> None:
    ether = SimEther()
    async with trio.open_nursery() as nursery:
        nodes = Nodes(nursery)
        for name in "abc":
            await nodes.start(name, SimDiscovery(ether=ether))
        assert [nodes.names(name) for name in "abc"] == [["b", "c"], ["a", "c"], ["a", "b"]]
        assert nodes.heard["a"][0] == Hint(
            (Address("b", 4251),), "sim", "test", 1, BrokerId(b"b" * 16), "b"
        )
        nursery.cancel_scope.cancel()


async def test_who_has_left_is_heard_of_no_more() -> None:
    ether = SimEther()
    async with trio.open_nursery() as nursery:
        nodes = Nodes(nursery)
        await nodes.start("a", SimDiscovery(ether=ether))
        nodes.scopes["a"].cancel()
        await trio.testing.wait_all_tasks_blocked()
        await nodes.start("b", SimDiscovery(ether=ether))
        assert nodes.names("b") == []
        assert [each.name for each in ether.announced] == ["b"]
        nursery.cancel_scope.cancel()


async def test_a_test_may_forge_what_is_heard() -> None:
    ether = SimEther()
    async with trio.open_nursery() as nursery:
        nodes = Nodes(nursery)
        await nodes.start("a", SimDiscovery(ether=ether))
        ether.forge(FIRST)
        await nodes.start("b", SimDiscovery(ether=ether))
        assert nodes.heard["a"][0] == FIRST
        assert FIRST not in nodes.heard["b"]
        nursery.cancel_scope.cancel()


async def test_what_was_lost_comes_when_it_is_told_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    ether = SimEther()
    ether.loses = lambda teller, hearer: (teller.name, hearer.name) == ("a", "b")
    async with trio.open_nursery() as nursery:
        nodes = Nodes(nursery)
        for name in "ab":
            await nodes.start(name, SimDiscovery(ether=ether))
        assert (nodes.names("a"), nodes.names("b")) == (["b"], [])
        await trio.sleep(REPEAT_S + 1)
        assert (nodes.names("a"), nodes.names("b")) == (["b", "b"], [])
        ether.loses = None
        ether.repeat()
        await trio.testing.wait_all_tasks_blocked()
        assert (nodes.names("a"), nodes.names("b")) == (["b"] * 3, ["a"])
        await trio.sleep(REPEAT_S)
        assert (nodes.names("a"), nodes.names("b")) == (["b"] * 4, ["a"] * 2)
        nursery.cancel_scope.cancel()


async def cluster() -> list[tuple[str, str | None]]:
    """Five nodes that start at the same moment; who heard of whom, in order."""
    history: list[tuple[str, str | None]] = []
    ether = SimEther()

    def note(name: str, hint: Hint) -> None:
        history.append((name, hint.name))

    async with trio.open_nursery() as nursery:
        for name in "abcde":
            discovery = SimDiscovery(ether=ether)
            nursery.start_soon(discovery.run, node(name), partial(note, name))
        await trio.sleep(3 * REPEAT_S + 1)
        nursery.cancel_scope.cancel()
    return history


def test_a_seed_gives_one_order() -> None:
    assert len(simulate(1, cluster)) == 5 * 4 * 4
    assert simulate(1, cluster) == simulate(1, cluster)
    assert simulate(1, cluster) != simulate(2, cluster)
