"""Request and reply with bidding: who is asked, who gets the request, when it ends.

A machine without IO: each method takes what happened and returns what is to be done. Nothing is
persisted; a request ends with a reply, an error or its deadline, whatever happens to the parties.

Each provider is asked under a number of its own, so that one client's two providers of the same
topic are not taken for each other. Nothing here walks through all requests: there may be a hundred
thousand of them under way.

Another node is a provider like a client: it is asked once, however many of its clients answer on
the topic. There the same machine asks them in turn, and never a third node.
"""

from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from busnode.wire.errors import LimitReached, NoProvider, TimedOut
from busnode.wire.ids import Pattern, Topic
from busnode.wire.limits import MIB
from busnode.wire.trie import Trie

END: Final = "END"
"""Code of the end of many replies that carries no reply of its own."""

TIMEOUT_S_MAX: Final = 3600.0
REQUESTS_MAX: Final = 100_000
REQUESTS_BYTES_MAX: Final = 256 * MIB
"""Requests under way at one node: each holds its payload in memory."""

REQUESTS_OF_ONE_MAX: Final = 10_000
REQUESTS_BYTES_OF_ONE_MAX: Final = 32 * MIB
"""Of one client: so that no one can take all the room there is. Another node asks for many."""

REQUESTS_OF_IDENTITY_MAX: Final = 25_000
REQUESTS_BYTES_OF_IDENTITY_MAX: Final = 64 * MIB
"""The same for all connections of an identity, of which there may be a thousand."""

ALARMS_SPARE: Final = 1024
"""So few alarms of ended requests are not worth clearing away."""


@dataclass(frozen=True, slots=True)
class Provider:
    """One PROVIDE of one client, or of another node."""

    client: Hashable
    number: int
    eager: bool = field(default=False, compare=False)
    """Answers everything: it gets the request at once, without being asked."""
    is_peer: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class SendAsk:
    provider: Provider
    ask: int
    topic: str
    headers: dict[str, str]
    timeout_s: float


@dataclass(frozen=True, slots=True)
class SendBid:
    """To a node that has asked us."""

    client: Hashable
    request: int
    yes: bool


class SendRequest(NamedTuple):
    """Like `SendReply` a named tuple: each request makes one, at a third of what a dataclass that
    is frozen takes."""

    provider: Provider
    ask: int
    topic: str
    headers: dict[str, str]
    payload: bytes
    many: bool
    timeout_s: float


class SendReply(NamedTuple):
    client: Hashable
    request: int
    code: str | None
    headers: dict[str, str]
    payload: bytes
    last: bool


Action = SendAsk | SendBid | SendRequest | SendReply

Asks = dict[int, Provider]
"""Providers by the number of their ASK; in the order of asking, the same in every run."""


class _Request:
    """One is made for each request: a dataclass with so many containers takes twice as long."""

    __slots__ = (
        "bidding", "client", "deadline", "eager", "ended", "for_peer", "headers", "identity",
        "many", "next_try", "number", "payload", "reserve", "said_yes", "size_bytes", "topic",
        "willing", "working",
    )  # fmt: skip

    def __init__(
        self,
        client: Hashable,
        number: int,
        topic: str,
        headers: dict[str, str],
        payload: bytes | None,
        many: bool,
        deadline: float,
        for_peer: bool = False,
        identity: str = "",
    ) -> None:
        self.client = client
        self.identity = identity
        """Whose it is; "" where that is not counted."""
        self.number = number
        """The requester's own number for it."""
        self.topic = topic
        self.headers = headers
        self.payload = payload
        """None while another node only asks whether we would answer."""
        self.many = many
        self.deadline = deadline
        self.for_peer = for_peer
        """Asked by another node: it has made the one hop that there is."""
        self.said_yes = False
        """To the node that asks."""
        self.eager: deque[Provider] = deque()
        """Need not be asked, and have not got the request."""
        self.reserve: list[Provider] = []
        """Those who want to be asked, while there are others who need not be."""
        self.bidding: Asks = {}
        """Asked, and no bid yet."""
        self.willing: Asks = {}
        """Said yes and have not got the request."""
        self.working: Asks = {}
        """Have got the request and not replied."""
        self.next_try = 0.0
        """When a single request goes to the next who is willing, although nobody has failed."""
        self.ended = False
        self.size_bytes = 0
        """What is counted of it: payload and headers."""

    @property
    def has_next(self) -> bool:
        """Whether somebody is there who could get it now."""
        return bool(self.willing or self.eager)

    @property
    def has_nobody(self) -> bool:
        """Whether nobody is left who might answer."""
        return not (self.working or self.bidding or self.willing or self.eager or self.reserve)


class _UnderWay:
    """What one requester has under way, or all of one identity."""

    __slots__ = ("requests", "size_bytes")

    def __init__(self) -> None:
        self.requests: dict[_Request, None] = {}
        self.size_bytes = 0


class Requests:
    """All requests under way at one node."""

    def __init__(self) -> None:
        self._providers: Trie[Provider] = Trie()
        self._patterns: dict[Hashable, dict[Provider, Pattern]] = {}
        self._asks: dict[int, _Request] = {}
        self._asks_of: dict[Provider, dict[int, None]] = {}
        self._clients: dict[Hashable, _UnderWay] = {}
        self._identities: dict[str, _UnderWay] = {}
        self._asked: dict[tuple[Hashable, int], _Request] = {}
        """What other nodes have asked about and not requested yet, by their own numbers."""
        self._alarms: list[tuple[float, int, _Request]] = []
        """A heap: when to look at a request, some of which have ended meanwhile."""
        self._alarms_max = ALARMS_SPARE
        self._next_alarm = 0
        self._next_ask = 1
        self._turn = 0
        self._count = 0
        self._size_bytes = 0

    def __len__(self) -> int:
        return self._count

    @property
    def providers(self) -> int:
        return len(self._providers)

    def provide(self, provider: Provider, pattern: Pattern) -> None:
        """One more provider, or the same one that is eager now or no more."""
        provided = self._patterns.setdefault(provider.client, {})
        known = provided.pop(provider, None)
        if known is not None:
            self._providers.remove(known, provider)
        provided[provider] = pattern
        self._providers.add(pattern, provider)

    def unprovide(self, provider: Provider, now: float) -> list[Action]:
        provided = self._patterns.get(provider.client, {})
        pattern = provided.pop(provider, None)
        if pattern is None:
            return []
        if not provided:
            del self._patterns[provider.client]
        self._providers.remove(pattern, provider)
        return self._lost(self._asks_of.get(provider, ()), now)

    def leave(self, client: Hashable, now: float) -> list[Action]:
        """A client is gone: its requests end, and what it was to answer goes to others."""
        mine = self._clients.get(client)
        if mine is not None:
            for each in list(mine.requests):
                self._forget(each)
        lost: list[int] = []
        for provider, pattern in self._patterns.pop(client, {}).items():
            self._providers.remove(pattern, provider)
            lost += self._asks_of.get(provider, ())
        return self._lost(lost, now)

    def request(
        self,
        client: Hashable,
        number: int,
        topic: Topic,
        *,
        headers: dict[str, str],
        payload: bytes,
        many: bool,
        timeout_s: float,
        now: float,
        identity: str = "",
    ) -> list[Action]:
        """A client asks. Those who answer everything are tried first; where there are none,
        everybody who provides the topic is asked to bid."""
        deadline = now + min(timeout_s, TIMEOUT_S_MAX)
        each = _Request(
            client, number, topic, headers, payload, many, deadline, identity=identity
        )  # fmt: skip
        return self._begin(each, now)

    def ask(
        self,
        peer: Hashable,
        number: int,
        topic: Topic,
        *,
        headers: dict[str, str],
        timeout_s: float,
        now: float,
    ) -> list[Action]:
        """Another node asks whether one of our clients would answer."""
        deadline = now + min(timeout_s, TIMEOUT_S_MAX)
        each = _Request(peer, number, topic, headers, None, False, deadline, for_peer=True)
        actions = self._begin(each, now)
        if not each.ended:
            self._asked[peer, number] = each
        return actions

    def request_of_peer(
        self,
        peer: Hashable,
        number: int,
        topic: Topic,
        *,
        headers: dict[str, str],
        payload: bytes,
        many: bool,
        timeout_s: float,
        now: float,
    ) -> list[Action]:
        """Another node's request for one of our clients: it has asked before, or need not."""
        deadline = now + min(timeout_s, TIMEOUT_S_MAX)
        each = self._asked.pop((peer, number), None)
        if each is None:
            each = _Request(peer, number, topic, headers, payload, many, deadline, for_peer=True)
            return self._begin(each, now)
        self._resize(each, payload)
        each.many = many
        each.deadline = deadline
        self._wake_at(deadline, each)
        return self._go_on(each, now)

    def _begin(self, each: _Request, now: float) -> list[Action]:
        providers = self._providers_of(each)
        if not providers:
            each.ended = True
            return self._end(each, NoProvider.code, f"nobody provides {each.topic}")
        self._admit(each)
        self._wake_at(each.deadline, each)
        if len(providers) == 1 and providers[0].eager and each.payload is not None:
            # Nearly always: there is nobody else to choose, to ask or to keep in mind.
            return [self._hand(each, self._number_ask(each, providers[0]), providers[0], now)]
        for provider in providers:
            (each.eager if provider.eager else each.reserve).append(provider)
        actions = self._ask_reserve(each, now) if each.many else []
        return actions + self._advance(each, now)

    def _providers_of(self, each: _Request) -> list[Provider]:
        """Our own clients first, then other nodes, each once although several of its patterns may
        match. Those who are not asked take turns at being the first."""
        found = self._providers.match(Topic(each.topic))
        if len(found) == 1 and not (each.for_peer and found[0].is_peer):
            return found
        own: list[Provider] = []
        eager: list[Provider] = []
        peers: dict[Hashable, Provider] = {}
        for provider in found:
            if not provider.is_peer:
                (eager if provider.eager else own).append(provider)
            elif not each.for_peer and (provider.eager or provider.client not in peers):
                peers[provider.client] = provider
        self._turn += 1
        return [*self._in_turn(eager), *own, *self._in_turn(list(peers.values()))]

    def _in_turn(self, providers: list[Provider]) -> list[Provider]:
        turn = self._turn % len(providers) if providers else 0
        return [*providers[turn:], *providers[:turn]]

    def _number_ask(self, each: _Request, provider: Provider) -> int:
        ask = self._next_ask
        self._next_ask += 1
        self._asks[ask] = each
        self._asks_of.setdefault(provider, {})[ask] = None
        return ask

    def _ask_reserve(self, each: _Request, now: float) -> list[Action]:
        """Ask those who want to be asked."""
        reserve, each.reserve = each.reserve, []
        actions: list[Action] = []
        for provider in reserve:
            ask = self._number_ask(each, provider)
            each.bidding[ask] = provider
            left_s = max(0.0, each.deadline - now)
            actions.append(SendAsk(provider, ask, each.topic, each.headers, left_s))
        return actions

    def bid(self, client: Hashable, ask: int, yes: bool, now: float) -> list[Action]:
        """A provider says yes or no; a no may also take back a yes, or decline a request."""
        each = self._asks.get(ask)
        if each is None:
            return []  # it has ended: late answers are ignored
        if yes:
            provider = each.bidding.get(ask)
            if provider is None or provider.client != client:
                return []
            each.willing[ask] = each.bidding.pop(ask)
            return self._go_on(each, now)
        for state in (each.bidding, each.willing, each.working):
            provider = state.get(ask)
            if provider is not None and provider.client == client:
                return self._lost([ask], now)
        return []

    def reply(
        self,
        client: Hashable,
        ask: int,
        code: str | None,
        headers: dict[str, str],
        payload: bytes,
        *,
        last: bool = True,
    ) -> list[Action]:
        """An answer. Only another node, which asks several, has more than one."""
        each = self._asks.get(ask)
        provider = None if each is None else each.working.get(ask)
        if each is None or provider is None or provider.client != client:
            return []
        if last or not each.many:
            del each.working[ask]
            self._drop_ask(ask, provider)
        last = not each.many or each.has_nobody
        if last:
            self._forget(each)
        elif code == END:
            return []
        return [SendReply(each.client, each.number, code, headers, payload, last)]

    def pass_over(self, ask: int, now: float) -> list[Action]:
        """Somebody cannot be reached now: it goes on without this one."""
        return self._lost([ask], now)

    def expire(self, now: float) -> list[Action]:
        """Time has passed: end what is overdue, and let the next try where one is slow."""
        actions: list[Action] = []
        while self._alarms and self._alarms[0][0] <= now:
            each = heappop(self._alarms)[2]
            if each.ended:
                continue
            if each.deadline <= now:
                self._forget(each)
                actions += self._end(each, TimedOut.code, f"no reply on {each.topic} in time")
            elif each.working and each.next_try <= now:
                self._forget_departed(each)
                if each.has_next:
                    actions += self._try_next(each, now)
                else:
                    actions += self._ask_reserve(each, now)
        return actions

    def next_deadline(self) -> float | None:
        """When `expire` has something to do."""
        while self._alarms and self._alarms[0][2].ended:
            heappop(self._alarms)
        return self._alarms[0][0] if self._alarms else None

    # Inside ---------------------------------------------------------------------------------------

    def _admit(self, each: _Request) -> None:
        """Count it, or LimitReached."""
        size_bytes = len(each.payload or b"")
        if each.headers:
            size_bytes += sum(len(k) + len(v) for k, v in each.headers.items())
        mine = self._clients.get(each.client) or _UnderWay()
        if not each.for_peer and (
            len(mine.requests) >= REQUESTS_OF_ONE_MAX
            or mine.size_bytes + size_bytes > REQUESTS_BYTES_OF_ONE_MAX
        ):
            raise LimitReached(
                f"{len(mine.requests)} requests with {mine.size_bytes} bytes are under way; one "
                f"client may have {REQUESTS_OF_ONE_MAX} with {REQUESTS_BYTES_OF_ONE_MAX} bytes"
            )
        of_all: _UnderWay | None = None
        if each.identity:
            of_all = self._identities.get(each.identity) or _UnderWay()
            if (
                len(of_all.requests) >= REQUESTS_OF_IDENTITY_MAX
                or of_all.size_bytes + size_bytes > REQUESTS_BYTES_OF_IDENTITY_MAX
            ):
                raise LimitReached(
                    f"{len(of_all.requests)} requests of {each.identity} with {of_all.size_bytes} "
                    f"bytes are under way; one identity may have {REQUESTS_OF_IDENTITY_MAX} with "
                    f"{REQUESTS_BYTES_OF_IDENTITY_MAX} bytes"
                )
        if self._count >= REQUESTS_MAX or self._size_bytes + size_bytes > REQUESTS_BYTES_MAX:
            raise LimitReached(
                f"{self._count} requests with {self._size_bytes} bytes are under way at this node; "
                f"it takes {REQUESTS_MAX} with {REQUESTS_BYTES_MAX} bytes"
            )
        each.size_bytes = size_bytes
        self._clients[each.client] = mine
        mine.requests[each] = None
        mine.size_bytes += size_bytes
        if of_all is not None:
            self._identities[each.identity] = of_all
            of_all.requests[each] = None
            of_all.size_bytes += size_bytes
        self._count += 1
        self._size_bytes += size_bytes

    def _resize(self, each: _Request, payload: bytes) -> None:
        """What was only asked about has come."""
        each.payload = payload
        each.size_bytes += len(payload)
        self._clients[each.client].size_bytes += len(payload)
        self._size_bytes += len(payload)

    def _forget(self, each: _Request) -> None:
        each.ended = True
        if each.payload is None:
            self._asked.pop((each.client, each.number), None)
        each.payload = b""  # an alarm may be an hour away, and holds the request until then
        for state in (each.bidding, each.willing, each.working):
            for ask, provider in state.items():
                self._drop_ask(ask, provider)
        size_bytes = each.size_bytes
        mine = self._clients[each.client]
        del mine.requests[each]
        mine.size_bytes -= size_bytes
        if not mine.requests:
            del self._clients[each.client]
        if each.identity:
            of_all = self._identities[each.identity]
            del of_all.requests[each]
            of_all.size_bytes -= size_bytes
            if not of_all.requests:
                del self._identities[each.identity]
        self._count -= 1
        self._size_bytes -= size_bytes
        if len(self._alarms) > self._alarms_max:
            self._alarms = [alarm for alarm in self._alarms if not alarm[2].ended]
            heapify(self._alarms)
            self._alarms_max = 2 * len(self._alarms) + ALARMS_SPARE

    def _drop_ask(self, ask: int, provider: Provider) -> None:
        del self._asks[ask]
        asks = self._asks_of[provider]
        del asks[ask]
        if not asks:
            del self._asks_of[provider]

    def _wake_at(self, moment: float, each: _Request) -> None:
        self._next_alarm += 1
        heappush(self._alarms, (moment, self._next_alarm, each))

    def _lost(self, asks: Iterable[int], now: float) -> list[Action]:
        """These will not be answered. All go before any request goes on, so that none goes to
        another provider of a client that is gone."""
        touched: dict[_Request, None] = {}
        for ask in list(asks):
            each = self._asks[ask]
            touched[each] = None
            for state in (each.bidding, each.willing, each.working):
                provider = state.pop(ask, None)
                if provider is not None:
                    self._drop_ask(ask, provider)
        return [action for each in touched for action in self._go_on(each, now)]

    def _forget_departed(self, each: _Request) -> None:
        """Those who have no number yet are not found by it when they leave."""
        if each.eager or each.reserve:
            each.eager = deque(filter(self._is_there, each.eager))
            each.reserve = list(filter(self._is_there, each.reserve))

    def _is_there(self, provider: Provider) -> bool:
        return provider in self._patterns.get(provider.client, ())

    def _go_on(self, each: _Request, now: float) -> list[Action]:
        self._forget_departed(each)
        return self._advance(each, now)

    def _advance(self, each: _Request, now: float) -> list[Action]:
        """Like `_go_on` while all are still there."""
        if each.reserve and not (each.working or each.bidding or each.has_next):
            return self._ask_reserve(each, now)
        actions: list[Action] = []
        if each.payload is None:
            if each.has_next and not each.said_yes:
                each.said_yes = True
                actions.append(SendBid(each.client, each.number, yes=True))
        elif each.many:
            while each.has_next:
                actions += self._try_next(each, now)
        elif each.has_next and (not each.working or each.next_try <= now):
            actions += self._try_next(each, now)
        if each.has_nobody:
            self._forget(each)
            actions += self._end(each, NoProvider.code, f"nobody wants to answer {each.topic}")
        return actions

    def _try_next(self, each: _Request, now: float) -> list[Action]:
        if each.willing:
            ask = next(iter(each.willing))
            provider = each.willing.pop(ask)
        else:
            provider = each.eager.popleft()
            ask = self._number_ask(each, provider)
        if not each.many and (each.has_next or each.bidding or each.reserve):
            # Half of what is left, so that the next one has as much time if this one is silent.
            each.next_try = now + max(0.0, each.deadline - now) / 2
            self._wake_at(each.next_try, each)
        return [self._hand(each, ask, provider, now)]

    def _hand(self, each: _Request, ask: int, provider: Provider, now: float) -> SendRequest:
        assert each.payload is not None
        each.working[ask] = provider
        left_s = max(0.0, each.deadline - now)
        return SendRequest(provider, ask, each.topic, each.headers, each.payload, each.many, left_s)

    def _end(self, each: _Request, code: str, text: str) -> list[Action]:
        """The end without a reply: an error for a single request, a plain end for many. A node that
        asked for one of its clients hears a no, and goes on with others."""
        if each.many:
            return [SendReply(each.client, each.number, END, {}, b"", last=True)]
        if each.for_peer:
            return [SendBid(each.client, each.number, yes=False)]
        return [SendReply(each.client, each.number, code, {}, text.encode(), last=True)]
