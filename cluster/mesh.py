"""The mesh: who has a link to whom, as the nodes tell each other, and which links are missing.

One hop needs a full mesh, so a missing link is worth a name in `busnode status`.
"""

from collections.abc import Iterable
from typing import NamedTuple

from busnode.wire.ids import BrokerId


class Member(NamedTuple):
    broker_id: BrokerId
    name: str


class MissingLink(NamedTuple):
    """A node that has no link to another one, and should."""

    dialler: str
    listener: str


class Mesh:
    """What each node reports about its own links."""

    def __init__(self, me: Member) -> None:
        self._me = me
        self._reports: dict[Member, list[Member]] = {}

    def report(self, who: Member, links: Iterable[Member]) -> None:
        """A node tells which nodes it has a link to."""
        self._reports[who] = list(links)

    def forget(self, broker_id: BrokerId) -> None:
        """A node is gone, and what it reported with it."""
        self._reports = {who: links for who, links in self._reports.items() if who[0] != broker_id}

    def missing(self, links: Iterable[Member]) -> list[MissingLink]:
        """The links that should be there, among all nodes that a report names; `links` are ours."""
        reports = {self._me: list(links), **self._reports}
        nodes = dict.fromkeys(
            [*reports, *(member for linked in reports.values() for member in linked)]
        )
        names = [node.name for node in nodes]

        def shown(node: Member) -> str:
            # Two nodes of one name are told apart by what they were born with.
            twice = names.count(node.name) > 1
            return f"{node.name} ({node.broker_id.hex()[:8]})" if twice else node.name

        missing: list[MissingLink] = []
        for dialler, linked in reports.items():
            there = {member.broker_id for member in linked}
            missing += (
                MissingLink(shown(dialler), shown(listener))
                for listener in nodes
                if listener.broker_id not in (dialler.broker_id, *there)
            )
        return missing
