"""Who holds which log: as the links tell it, and as they go."""

from collections.abc import Iterable
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from busnode.node.peer_link import LinkHost, PeerLink
from busnode.node.remote_logs import RemoteLogs
from busnode.testing.sim.network import SimNetwork
from busnode.testing.sim.simulation import simulate
from busnode.wire.control import PeerWelcome
from busnode.wire.ids import BrokerId, LogId, Pattern, Topic
from busnode.wire.topics import matches
from busnode.world.network import Address

from ..segments.samples import StoppedClock

BROKERS = [BrokerId(bytes([number]) * 16) for number in (1, 2, 3)]
TOPICS = [Topic(text) for text in ("/a", "/a/b", "/c/b")]
LOGS = [LogId(broker_id, topic) for broker_id in BROKERS[:2] for topic in TOPICS]
PATTERNS = [Pattern(text) for text in ("/a", "/a/*", "/+/b", "/*", "/nothing")]


def link_to(broker_id: BrokerId) -> PeerLink:
    """A link that was made and is not run: nothing comes over it by itself."""
    near, _ = SimNetwork(1).connect(Address("here", 1), Address("there", 2))
    link = PeerLink(near, StoppedClock(), cast("LinkHost", None), 1.0, 1.0)
    link.welcome = PeerWelcome(broker_id, f"node-{broker_id[0]}", [], [], 1.0)
    return link


@pytest.fixture
def logs() -> RemoteLogs:
    return RemoteLogs()


@pytest.fixture
def links() -> list[PeerLink]:
    return [link_to(broker_id) for broker_id in BROKERS]


def matching(logs: RemoteLogs, pattern: str) -> dict[LogId, tuple[int, int]]:
    return {log_id: (first, end) for log_id, first, end in logs.matching(Pattern(pattern))}


def test_the_longest_copy_is_asked_and_among_equals_the_one_who_wrote_it(
    logs: RemoteLogs, links: list[PeerLink]
) -> None:
    log_id = LOGS[0]
    origin, mirror, other = links
    assert logs.holder(log_id) is None
    logs.reaches(mirror, log_id, 1, 10)
    assert logs.holder(log_id) is mirror
    logs.reaches(origin, log_id, 1, 10)
    assert logs.holder(log_id) is origin
    logs.reaches(other, log_id, 1, 11)
    assert logs.holder(log_id) is other
    logs.advance(origin, log_id, 12)
    assert logs.holder(log_id) is origin


def test_what_a_node_tells_of_a_log_does_not_take_back_what_has_come_from_it(
    logs: RemoteLogs, links: list[PeerLink]
) -> None:
    """A row of EXTENTS may have been made before a record and be sent behind it."""
    logs.advance(links[0], LOGS[0], 12)
    logs.reaches(links[0], LOGS[0], 5, 11)
    assert matching(logs, "/a") == {LOGS[0]: (5, 12)}
    logs.advance(links[0], LOGS[0], 10)
    assert matching(logs, "/a") == {LOGS[0]: (5, 12)}


def test_all_that_anybody_has_of_a_log_is_there(logs: RemoteLogs, links: list[PeerLink]) -> None:
    logs.reaches(links[0], LOGS[0], 7, 20)
    logs.reaches(links[1], LOGS[0], 3, 18)
    assert matching(logs, "/a") == {LOGS[0]: (3, 20)}


def test_when_a_node_is_gone_the_others_hold_its_logs(
    logs: RemoteLogs, links: list[PeerLink]
) -> None:
    logs.reaches(links[0], LOGS[0], 1, 20)
    logs.reaches(links[1], LOGS[0], 1, 18)
    logs.reaches(links[0], LOGS[1], 1, 1)
    logs.lost(links[0])
    assert logs.holder(LOGS[0]) is links[1]
    assert logs.holder(LOGS[1]) is None
    assert list(logs) == [LOGS[0]]
    assert links[0].logs == {}


def test_a_node_that_lacks_a_log_is_not_asked_again(
    logs: RemoteLogs, links: list[PeerLink]
) -> None:
    logs.reaches(links[0], LOGS[0], 1, 20)
    logs.lacks(links[0], LOGS[0])
    logs.lacks(links[0], LOGS[0])
    assert logs.holder(LOGS[0]) is None
    assert len(logs) == 0


def test_a_log_that_nobody_wants_is_forgotten_with_all_its_holders(
    logs: RemoteLogs, links: list[PeerLink]
) -> None:
    for link in links:
        logs.reaches(link, LOGS[0], 1, 20)
    logs.forget(LOGS[0])
    logs.forget(LOGS[1])
    assert len(logs) == 0
    assert matching(logs, "/*") == {}
    assert all(link.logs == {} for link in links)


Step = tuple[str, int, int, int, int]
steps = st.lists(
    st.tuples(
        st.sampled_from(["reaches", "reaches", "advance", "lacks", "lost", "forget"]),
        st.integers(0, 2),
        st.integers(0, len(LOGS) - 1),
        st.integers(1, 5),
        st.integers(5, 20),
    ),
    max_size=40,
)


@given(steps)
@settings(max_examples=80, deadline=None)
def test_it_knows_just_what_links_have_told_and_not_lost(steps: Iterable[Step]) -> None:
    async def main() -> None:
        logs, links = RemoteLogs(), [link_to(broker_id) for broker_id in BROKERS]
        known: dict[tuple[int, LogId], tuple[int, int]] = {}
        for what, number, log, first_no, end_no in steps:
            link, log_id = links[number], LOGS[log]
            before = known.get((number, log_id))
            match what:
                case "reaches":
                    logs.reaches(link, log_id, first_no, end_no)
                    known[number, log_id] = first_no, max(end_no, before[1] if before else 0)
                case "advance":
                    logs.advance(link, log_id, end_no)
                    first, end = before or (1, 0)
                    known[number, log_id] = first, max(end, end_no)
                case "lacks":
                    logs.lacks(link, log_id)
                    known.pop((number, log_id), None)
                case "lost":
                    logs.lost(link)
                    known = {key: extent for key, extent in known.items() if key[0] != number}
                case _:
                    logs.forget(log_id)
                    known = {key: extent for key, extent in known.items() if key[1] != log_id}
            check(logs, links, known)

    simulate(1, main)


def check(
    logs: RemoteLogs, links: list[PeerLink], known: dict[tuple[int, LogId], tuple[int, int]]
) -> None:
    held = {log_id for _, log_id in known}
    assert set(logs) == held
    assert len(logs) == len(held)
    for pattern in PATTERNS:
        expected: dict[LogId, tuple[int, int]] = {}
        for log_id in held:
            if matches(pattern, log_id.topic):
                extents = [extent for (_, each), extent in known.items() if each == log_id]
                expected[log_id] = min(e[0] for e in extents), max(e[1] for e in extents)
        assert matching(logs, pattern) == expected
    for log_id in LOGS:
        holder = logs.holder(log_id)
        ends = {number: end for (number, each), (_, end) in known.items() if each == log_id}
        if holder is None:
            assert not ends
        else:
            assert ends[links.index(holder)] == max(ends.values())
