"""What keeps nodes from being a full mesh, by name."""

from busnode.testing.full_mesh import not_meshed
from busnode.wire.ids import Pattern
from tests.node.simulated_cluster import SimulatedCluster, on_cluster


def never(one: str, other: str) -> bool:
    return False


def test_linked_nodes_are_a_mesh_until_one_wants_what_others_were_not_told() -> None:
    @on_cluster(0, "a", "b")
    async def _(cluster: SimulatedCluster) -> None:
        a, b = (cluster[name].node.peers for name in "ab")
        await cluster.until(lambda: not not_meshed([a, b], never))
        a.interests.want(Pattern("/orders/*"))
        assert not_meshed([a, b], never) == ["b was told 0 of 1 interests of a"]


def test_links_that_are_missing_and_links_that_should_not_be_are_named() -> None:
    @on_cluster(0, "a", "b")
    async def _(cluster: SimulatedCluster) -> None:
        a, b = (cluster[name].node.peers for name in "ab")
        apart = ["still has a link to", "still has a link from"]
        assert not_meshed([a, b], lambda one, other: {one, other} == {"a", "b"}) == [
            *(f"a {what} b" for what in apart),
            *(f"b {what} a" for what in apart),
        ]
        assert not_meshed([a], never) == [f"a {what} b" for what in apart]
        await cluster["b"].kill()
        await cluster.until(lambda: not not_meshed([a], never))
        assert not_meshed([a, b], never)[:2] == ["a has no link to b", "a has no link from b"]
