"""Three hosts with a network between them: found by multicast, cut apart, and healed."""

import os
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import count
from pathlib import Path
from time import monotonic

import pytest

from .hosted_node import HostedNode, Subscriber
from .namespaces import Hosts, cannot_be, wait_for

pytestmark = pytest.mark.scenario

CONVERGED_S = 10.0
"""So long after a heal everything is as if there had been no cut: a requirement."""

NAMES = ("one", "two", "three")

_cannot_be = cache(cannot_be)


@pytest.fixture
def hosts(namespaces_required: bool, request: pytest.FixtureRequest) -> Iterator[Hosts]:
    reason = _cannot_be()
    if reason is not None:
        (pytest.fail if namespaces_required else pytest.skip)(reason)
    failed_before = request.session.testsfailed
    with Hosts(*NAMES) as made:
        yield made
        if request.session.testsfailed > failed_before:
            made.show_logs()


@pytest.fixture
def nodes(hosts: Hosts, tmp_path: Path) -> list[HostedNode]:
    """A node on each host, meshed."""
    nodes = [HostedNode(host, f"cluster-{os.getpid()}", tmp_path) for host in hosts.all]
    took("three nodes are a mesh after the last was ready", lambda: is_mesh(nodes))
    return nodes


def took(what: str, condition: Callable[[], bool], since: float | None = None) -> float:
    """Wait for it, and print how long that took."""
    since = monotonic() if since is None else since
    wait_for(condition, what)
    took_s = monotonic() - since
    print(f"{took_s:6.2f} s  {what}")
    return took_s


def is_mesh(nodes: Sequence[HostedNode]) -> bool:
    """Whether each has a link to each other, in both directions, and thinks so."""
    names = {node.name for node in nodes}
    return all(
        node.linked() == names - {node.name} and not node.cluster()["missing_links"]
        for node in nodes
    )


def is_told(nodes: Sequence[HostedNode]) -> bool:
    """Whether each knows of the one pattern that clients of each other want."""
    return all(
        row["interests"] == 1 for node in nodes for row in node.peers().values() if row["dials_us"]
    )


def numbered(*words: str, count: int) -> list[str]:
    return ["-".join([*words, str(number)]) for number in range(count)]


def have_come(payloads: set[str], subscriber: Subscriber, topic: str) -> bool:
    return payloads <= {*subscriber.payloads(topic)}


def has_all_of(logs: dict[tuple[str, str], list[int]], subscriber: Subscriber) -> bool:
    found = subscriber.logs()
    return all(len(found.get(log, ())) >= len(numbers) for log, numbers in logs.items())


# Discovery ----------------------------------------------------------------------------------------


def test_hosts_find_each_other_by_multicast_and_each_gets_every_message_once(
    nodes: list[HostedNode],
) -> None:
    for node in nodes:
        discovery = node.cluster()["discovery"]
        assert discovery["events"] > 0
        assert discovery["failure"] is None
    subscribers = [node.subscribe("/mesh/*") for node in nodes]
    wait_for(lambda: is_told(nodes), "interest is told")

    kept, passing = "/mesh/kept", "/mesh/passing"
    for topic, options in ((kept, ["--persistent"]), (passing, [])):
        for node in nodes:
            node.publish(topic, numbered(node.name, "first", count=20), *options)
            # Whatever came twice would have come before this, for it goes the same way.
            node.publish(topic, [f"{node.name}-last"], *options)

    expected = {f"{node.name}-last" for node in nodes}
    for subscriber in subscribers:
        for topic in (kept, passing):
            wait_for(partial(have_come, expected, subscriber, topic), "the last have come")
            for node in nodes:
                came = [p for p in subscriber.payloads(topic) if p.startswith(f"{node.name}-")]
                assert came == [*numbered(node.name, "first", count=20), f"{node.name}-last"]
        assert subscriber.logs() == {(n.broker_id, kept): [*range(1, 22)] for n in nodes}


def test_two_clusters_on_one_network_never_meet(hosts: Hosts, tmp_path: Path) -> None:
    one, two, three = hosts.all
    # On the second host both are at home.
    left = [HostedNode(host, f"left-{os.getpid()}", tmp_path) for host in (one, two)]
    right = [HostedNode(host, f"right-{os.getpid()}", tmp_path, 4350) for host in (two, three)]
    took("both clusters are a mesh", lambda: is_mesh(left) and is_mesh(right))

    def heard_of_the_other(node: HostedNode) -> bool:
        return bool(node.cluster()["discovery"]["hints_other_cluster"])

    took("each has heard of the other", lambda: all(map(heard_of_the_other, left + right)))
    subscribers = {node: node.subscribe("/*") for node in left + right}
    wait_for(lambda: is_told(left + right), "interest is told")
    left[0].publish("/a", ["left"], "--persistent")
    right[0].publish("/a", ["right"], "--persistent")
    wait_for(lambda: all(each.messages for each in subscribers.values()), "all have got one")
    for cluster, expected in ((left, ["left"]), (right, ["right"])):
        ids = {node.broker_id for node in cluster}
        for node in cluster:
            assert subscribers[node].payloads() == expected
            rows = node.cluster()["peers"]
            assert {row["broker_id"] for row in rows} == ids - {node.broker_id}


# Partition ----------------------------------------------------------------------------------------


def test_after_a_partition_all_is_known_and_what_was_published_meanwhile_is_fetched(
    hosts: Hosts, nodes: list[HostedNode]
) -> None:
    one, two, three = nodes
    topic = "/plant/kept"
    kept = numbered("kept", count=50)
    early = [node.subscribe("/plant/*") for node in nodes]
    wait_for(lambda: is_told(nodes), "interest is told")
    for node in nodes:
        node.publish(topic, kept, "--persistent")
    before = {(node.broker_id, topic): [*range(1, 51)] for node in nodes}
    wait_for(lambda: all(has_all_of(before, each) for each in early), "what came before the cut")

    cut_at = monotonic()
    hosts.partition(three.host, one.host, two.host)
    took("the cut is seen by all", lambda: is_apart(three, [one, two]), cut_at)
    wait_for(lambda: names_the_missing(three, [one, two]), "status tells who cannot be reached")

    # Each side goes on.
    for node in nodes:
        node.publish(topic, kept, "--persistent")
    meanwhile = {(node.broker_id, topic): [*range(1, 101)] for node in nodes}
    for subscriber, side in zip(early, ((one, two), (one, two), (three,)), strict=True):
        own = {(node.broker_id, topic): meanwhile[node.broker_id, topic] for node in side}
        wait_for(partial(has_all_of, own, subscriber), "what came on the own side")
        assert subscriber.logs() == {**before, **own}
    late = [node.subscribe("/+/kept", "--from", "earliest") for node in (one, three)]
    live = [node.subscribe("/live/*") for node in (one, three)]

    with one.publisher("/live/a") as from_one, three.publisher("/live/a") as from_three:
        healed_at = monotonic()
        hosts.heal()

        published = count()

        def is_live() -> bool:
            number = next(published)
            from_one(f"one-{number}")
            from_three(f"three-{number}")
            return all(
                {"one", "three"} == {payload.partition("-")[0] for payload in each.payloads()}
                for each in live
            )

        times = [
            took("live messages of new subscribers come from both sides", is_live, healed_at),
            took("membership is complete", lambda: is_mesh(nodes), healed_at),
            took(
                "what was published meanwhile has come to all",
                lambda: all(has_all_of(meanwhile, each) for each in early + late),
                healed_at,
            ),
        ]
    assert max(times) <= CONVERGED_S
    for subscriber in live:
        assert len({*subscriber.payloads()}) == len(subscriber.payloads())

    for node in nodes:  # whatever came twice would have come before these
        node.publish(topic, ["last"], "--persistent")
    everything = {log: [*numbers, 101] for log, numbers in meanwhile.items()}
    wait_for(lambda: all(has_all_of(everything, each) for each in early + late), "the last")
    for subscriber in early + late:
        assert subscriber.logs() == everything


def is_apart(alone: HostedNode, others: list[HostedNode]) -> bool:
    together = {node.name for node in others}
    return not any(
        row["link"] == "up" or row["dials_us"] for row in alone.peers().values()
    ) and all(
        node.linked() == together - {node.name} and not node.peers()[alone.name]["dials_us"]
        for node in others
    )


def names_the_missing(alone: HostedNode, others: list[HostedNode]) -> bool:
    rows = [
        *(node.peers()[alone.name] for node in others),
        *(alone.peers()[node.name] for node in others),
    ]
    return all(row["error"] and "no answer" in row["error"] for row in rows)


def test_a_link_that_is_missing_between_two_of_three_is_named(
    hosts: Hosts, nodes: list[HostedNode]
) -> None:
    one, two, three = nodes

    def missing(node: HostedNode) -> set[tuple[str, str]]:
        return {(row["dialler"], row["listener"]) for row in node.cluster()["missing_links"]}

    from_one, from_three = ("one", "three"), ("three", "one")
    cut_at = monotonic()
    hosts.partition(one.host, three.host)
    took(
        "all name the missing links of which they hear",
        lambda: [*map(missing, nodes)] == [{from_one}, {from_one, from_three}, {from_three}],
        cut_at,
    )
    assert two.linked() == {"one", "three"}
    healed_at = monotonic()
    hosts.heal()
    assert took("no link is missing", lambda: is_mesh(nodes), healed_at) <= CONVERGED_S


def test_a_node_that_was_started_again_while_it_was_cut_off_is_linked_after_the_heal(
    hosts: Hosts, nodes: list[HostedNode], tmp_path: Path
) -> None:
    """It comes back as another one, with another brokerId, and knows nobody."""
    one, two, three = nodes
    hosts.partition(three.host, one.host, two.host)
    three.kill()
    again = HostedNode(three.host, f"cluster-{os.getpid()}", tmp_path)
    assert again.broker_id != three.broker_id
    wait_for(lambda: one.linked() == {"two"} and two.linked() == {"one"}, "three is lost")
    healed_at = monotonic()
    hosts.heal()
    took_s = took("membership is complete", lambda: is_mesh([one, two, again]), healed_at)
    assert took_s <= CONVERGED_S
    assert one.peers()["three"]["broker_id"] == again.broker_id
