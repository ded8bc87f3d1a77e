"""Members of queue groups that go and come back, in the simulator."""

import trio

from .simulated_cluster import SimulatedCluster, on_cluster
from .test_mirroring import numbers, publish, take


def test_what_a_member_was_not_done_with_is_known_also_after_it_has_come_back() -> None:
    @on_cluster(0, "a")
    async def _(cluster: SimulatedCluster) -> None:
        node = cluster["a"].node
        async with (
            cluster.client("a", name="publisher") as publisher,
            cluster.client("a", name="second") as second,
            cluster.client("a", name="first") as first,
            first.subscribe("/t", queue="q") as messages,
        ):
            for number in range(6):  # a batch each
                await publish(publisher, "/t", range(number, number + 1))
            assert numbers(await take(messages, 1)) == [0]
            cluster.network.partition("first", "a")
            await cluster.until(lambda: len(node.sessions) == 2, "it is gone")
            cluster.network.heal("first", "a")
            await cluster.until(lambda: bool(node.subscriptions.groups), "it is back")
            for number in range(6, 12):
                await publish(publisher, "/t", range(number, number + 1))
            await trio.sleep(1)
            assert numbers(await take(messages, 6)) == [1, 2, 3, 4, 5, 6]
            await trio.sleep(1)
            async with second.subscribe("/t", queue="q") as others:
                cluster.network.partition("first", "a")
                await cluster.until(lambda: len(node.sessions) == 2, "it is gone again")
                with trio.fail_after(10):
                    assert sorted(numbers(await take(others, 6))) == [6, 7, 8, 9, 10, 11]
