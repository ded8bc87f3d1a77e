"""Who gets what: topics to subscriptions, and topics to logs."""

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from itertools import chain
from typing import Final, Protocol

from busnode.segments.store import Log, Store
from busnode.wire.ids import BrokerId, LogId, Pattern, Topic
from busnode.wire.topics import decode_topic, is_pattern, matches
from busnode.wire.trie import Trie

ROUTES_MAX: Final = 65_536
"""Topics whose receivers are remembered; a producer may use a new topic for every message."""


ROUTED_MAX: Final = 1_000_000
"""Receivers remembered for all these topics: one client can place ten thousand that match each."""


class Listener(Hashable, Protocol):
    """Who takes messages of a pattern: a subscription, a queue group, or another node."""

    @property
    def is_peer(self) -> bool:
        """Whether it is another node: what came from one never goes there."""
        ...

    def may_have(self, topic: Topic) -> bool:
        """Whether it is allowed to know of a topic that its pattern matches."""
        ...

    def offer_at_once(self, batches: memoryview, count: int) -> bool:
        """Take batches that are valid only now; False when they must be offered to be kept."""
        ...

    def offer(self, batches: bytes, count: int) -> None: ...

    def dropped_before(self, count: int) -> None:
        """So many messages were dropped on their way here that it would have been offered."""
        ...

    def read(self, log: Log, after_no: int) -> None: ...

    def committed(self, log: Log) -> None:
        """A log that it reads has more."""
        ...

    def pump(self) -> None:
        """Send what was offered or committed."""
        ...


class Route:
    """Where messages of one topic go. It is rebuilt when subscriptions have changed."""

    __slots__ = ("clients", "groups", "log", "peers", "topic", "version")

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.clients: list[Listener] = []
        """Subscriptions of this node's clients that are in no group."""
        self.groups: list[Listener] = []
        self.peers: list[Listener] = []
        self.log: Log | None = None
        """This incarnation's log, once there is one."""
        self.version = -1

    def __len__(self) -> int:
        return len(self.clients) + len(self.groups) + len(self.peers)

    def __iter__(self) -> Iterator[Listener]:
        return chain(self.clients, self.groups, self.peers)


class Router:
    """The subscriptions of this node's clients, and the logs that it holds, by topic."""

    def __init__(self, store: Store, broker_id: BrokerId) -> None:
        self._store = store
        self._broker_id = broker_id
        self._trie: Trie[Listener] = Trie()
        self._groups: set[Listener] = set()
        self._routes: OrderedDict[bytes, Route] = OrderedDict()
        self._routed = 0
        """Listeners in all routes together."""
        self._version = 0
        self._logs: dict[Topic, list[Log]] = {}
        for log in store.logs():
            self._logs.setdefault(log.log_id.topic, []).append(log)

    def __len__(self) -> int:
        return len(self._trie)

    def add(self, pattern: Pattern, listener: Listener, *, is_group: bool = False) -> None:
        if is_group:
            self._groups.add(listener)
        self._trie.add(pattern, listener)
        self._version += 1

    def remove(self, pattern: Pattern, listener: Listener) -> None:
        self._groups.discard(listener)
        self._trie.remove(pattern, listener)
        self._version += 1

    def rights_changed(self) -> None:
        """Somebody may have more, or less, than before."""
        self._version += 1

    def route(self, raw_topic: bytes) -> Route:
        """Where a topic goes; BadTopic when it is none. Two look-ups for a topic that is known."""
        route = self._routes.get(raw_topic)
        if route is None:
            route = Route(decode_topic(raw_topic))
            if len(self._routes) >= ROUTES_MAX:
                self._forget_oldest()
            self._routes[raw_topic] = route
            route.log = self._store.get(LogId(self._broker_id, route.topic))
        if route.version != self._version:
            self._routed -= len(route)
            self._rebuild(route)
            self._routed += len(route)
            while self._routed > ROUTED_MAX and len(self._routes) > 1:
                self._forget_oldest()
        return route

    def _rebuild(self, route: Route) -> None:
        route.clients, route.groups, route.peers = [], [], []
        for listener in self._trie.match(route.topic):
            if not listener.may_have(route.topic):
                continue
            if listener.is_peer:
                route.peers.append(listener)
            elif listener in self._groups:
                route.groups.append(listener)
            else:
                route.clients.append(listener)
        route.version = self._version

    def _forget_oldest(self) -> None:
        _, route = self._routes.popitem(last=False)
        self._routed -= len(route)  # it keeps its listeners: it may be the one that is asked for

    def begin(self, broker_id: BrokerId) -> None:
        """From here on logs are those of a new incarnation; the old ones stay to be read."""
        self._broker_id = broker_id
        self._routes.clear()
        self._routed = 0

    def open_log(self, route: Route) -> Log:
        """This incarnation's log of a topic; those who listen read it from its beginning."""
        log = route.log
        if log is None:
            log = route.log = self._store.create(LogId(self._broker_id, route.topic))
            self._logs.setdefault(route.topic, []).append(log)
            for listener in route:
                listener.read(log, 0)
        return log

    def add_log(self, log: Log) -> None:
        """A copy of another node's log is here now."""
        self._logs.setdefault(log.log_id.topic, []).append(log)

    def forget_gone(self) -> None:
        """Forget logs that the store does not have any more: all of them has expired."""
        for topic, logs in list(self._logs.items()):
            there = [log for log in logs if self._store.get(log.log_id) is log]
            if len(there) == len(logs):
                continue
            if there:
                self._logs[topic] = there
            else:
                del self._logs[topic]

    def listeners(self, log: Log) -> Route:
        """Who reads a log."""
        return self.route(log.log_id.topic.encode())

    def logs(self, pattern: Pattern) -> Iterator[Log]:
        """The logs that a pattern matches, of all incarnations."""
        for logs in self.look_through(pattern):
            yield from logs

    def look_through(self, pattern: Pattern) -> Iterator[list[Log]]:
        """The same, topic by topic: an empty list for each that does not match, so that whoever
        looks through a hundred thousand topics can let others have their turn."""
        if not is_pattern(pattern):
            yield list(self._logs.get(Topic(str(pattern)), ()))
            return
        for topic, logs in list(self._logs.items()):
            yield list(logs) if matches(pattern, topic) else []

    def topics(self) -> list[Topic]:
        return list(self._logs)
