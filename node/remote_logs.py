"""Which logs other nodes hold that our clients want, and how far each copy reaches."""

from collections.abc import Iterator

from busnode.node.peer_link import PeerLink
from busnode.wire.ids import LogId, Pattern, Topic
from busnode.wire.topics import is_pattern, matches


class RemoteLogs:
    """By log, the links to those who hold it."""

    def __init__(self) -> None:
        self._holders: dict[LogId, dict[PeerLink, None]] = {}
        self._by_topic: dict[Topic, dict[LogId, None]] = {}

    def __len__(self) -> int:
        return len(self._holders)

    def __contains__(self, log_id: LogId) -> bool:
        return log_id in self._holders

    def __iter__(self) -> Iterator[LogId]:
        return iter(list(self._holders))

    def reaches(self, link: PeerLink, log_id: LogId, first_no: int, end_no: int) -> None:
        """A node holds a log as far as this, and no less than it has shown before."""
        link.logs[log_id] = first_no, max(end_no, link.logs.get(log_id, (0, 0))[1])
        self._holders.setdefault(log_id, {})[link] = None
        self._by_topic.setdefault(log_id.topic, {})[log_id] = None

    def advance(self, link: PeerLink, log_id: LogId, end_no: int) -> None:
        """The same, when it is known to have begun before."""
        known = link.logs.get(log_id)
        if known is None:
            self.reaches(link, log_id, 1, end_no)
        elif end_no > known[1]:
            link.logs[log_id] = known[0], end_no

    def lacks(self, link: PeerLink, log_id: LogId) -> None:
        """A node does not hold it any more."""
        if link.logs.pop(log_id, None) is None:
            return
        holders = self._holders[log_id]
        del holders[link]
        if not holders:
            self._forget(log_id)

    def lost(self, link: PeerLink) -> None:
        """A node is gone with all that it holds."""
        for log_id in list(link.logs):
            self.lacks(link, log_id)

    def forget(self, log_id: LogId) -> None:
        """Nobody here wants it any more."""
        for link in list(self._holders.get(log_id, ())):
            self.lacks(link, log_id)

    def _forget(self, log_id: LogId) -> None:
        del self._holders[log_id]
        logs = self._by_topic[log_id.topic]
        del logs[log_id]
        if not logs:
            del self._by_topic[log_id.topic]

    def holder(self, log_id: LogId) -> PeerLink | None:
        """Who has most of it; among equals the node that wrote it."""

        def reach(link: PeerLink) -> tuple[int, bool]:
            return link.logs[log_id][1], link.broker_id == log_id.broker_id

        return max(self._holders.get(log_id, ()), key=reach, default=None)

    def holders(self, log_id: LogId) -> list[PeerLink]:
        return list(self._holders.get(log_id, ()))

    def matching(self, pattern: Pattern) -> Iterator[tuple[LogId, int, int]]:
        """Logs that match, with the first and the last number that anybody has."""
        topics = list(self._by_topic) if is_pattern(pattern) else [Topic(str(pattern))]
        for topic in topics:
            if matches(pattern, topic):
                for log_id in list(self._by_topic.get(topic, ())):
                    extents = [link.logs[log_id] for link in self._holders.get(log_id, ())]
                    if extents:
                        yield log_id, min(e[0] for e in extents), max(e[1] for e in extents)
