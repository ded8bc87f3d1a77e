"""Carries out what the machine of requests decides, and answers the system's own requests."""

import json
import math
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import partial
from typing import Any, Final, Protocol, cast

import trio

from busnode.node.access import check_right, forbidden
from busnode.node.outgoing import Outgoing
from busnode.node.requests import (
    Action,
    Provider,
    Requests,
    SendAsk,
    SendBid,
    SendReply,
    SendRequest,
)
from busnode.security.rules import Rights
from busnode.wire.control import (
    Ask,
    Bid,
    Provide,
    Reply,
    Request,
    encode_control,
    encode_trusted,
)
from busnode.wire.errors import (
    BusnodeError,
    Forbidden,
    FrameTooLarge,
    LimitReached,
    NoProvider,
    Refused,
)
from busnode.wire.fields import U64_MAX
from busnode.wire.ids import Pattern
from busnode.wire.limits import HEADERS_BYTES_MAX, REQUEST_BYTES_MAX
from busnode.wire.topics import check_pattern, check_topic, is_system
from busnode.world.clock import Clock

PROVIDERS_MAX: Final = 1000
"""Topics that one client may provide."""

PROVIDERS_OF_PEER_MAX: Final = 100_000
"""Topics that the clients of another node may provide together."""

IDENTITY: Final = "$identity"
"""The header that tells a provider who asks, from the node that has let the requester in: it comes
with the request over every hop, and nobody else can set it."""

SystemAnswer = Callable[[bytes, Rights | None], Any]
"""From a request's payload, and the rights of who asks, to something that JSON can carry."""


LaterAnswer = Callable[[bytes, Rights | None, Callable[[Any, BusnodeError | None], None]], None]
"""The same with whom to tell the answer, or why there is none."""


class Party(Hashable, Protocol):
    """Who asks and answers: a client's session, or another node's."""

    @property
    def outgoing(self) -> Outgoing: ...

    @property
    def is_peer(self) -> bool: ...

    @property
    def identity(self) -> str: ...

    @property
    def rights(self) -> Rights | None: ...

    def send(self, frame: bytes) -> None: ...


class Bidding:
    def __init__(self, clock: Clock) -> None:
        self.requests = Requests()
        self._clock = clock
        self._provided: dict[Party, dict[int, tuple[Pattern, bool]]] = {}
        """Of everybody who is here: the patterns that they provide, by number, eagerly or not."""
        self._system: dict[str, SystemAnswer] = {}
        self._later: dict[str, LaterAnswer] = {}
        self._changed = trio.Event()
        self._armed: float | None = None
        """When `run` wakes up by itself."""
        self.on_provided: Callable[[Pattern, bool, int], None] = _nobody
        """Told when one of our own clients provides a pattern, eagerly or not: 1 more or 1 less."""
        self.on_forbidden: Callable[[Party, Forbidden], None] = _unheard
        """Told when somebody was refused an answer that takes a while."""

    def answer(self, topic: str, answer: SystemAnswer) -> None:
        """Answer requests on a topic of the system."""
        self._system[topic] = answer

    def answer_later(self, topic: str, answer: LaterAnswer) -> None:
        """The same where an answer takes a while."""
        self._later[topic] = answer

    def join(self, party: Party) -> None:
        self._provided[party] = {}

    def leave(self, party: Party) -> None:
        provided = self._provided.pop(party, None)
        if provided is None:
            return
        self._do(self.requests.leave(party, self._clock.monotonic()))
        if not party.is_peer:
            for pattern, eager in provided.values():
                self.on_provided(pattern, eager, -1)

    def provide(self, party: Party, message: Provide) -> None:
        provided = self._provided[party]
        if message.provider in provided and not party.is_peer:
            raise Refused(f"provider {message.provider} is there already")
        most = PROVIDERS_OF_PEER_MAX if party.is_peer else PROVIDERS_MAX
        if len(provided) >= most:
            raise LimitReached(f"{len(provided)} provided topics; the limit is {most}")
        pattern = check_pattern(message.topic)
        if party.rights is not None and not party.rights.covers("provide", pattern):
            raise forbidden(party.rights, "provide", pattern)
        provided[message.provider] = pattern, message.eager
        # A peer tells again when its providers have become eager, or have ceased to be.
        provider = Provider(party, message.provider, message.eager, party.is_peer)
        self.requests.provide(provider, pattern)
        if not party.is_peer:
            self.on_provided(pattern, message.eager, 1)

    def unprovide(self, party: Party, number: int) -> None:
        found = self._provided.get(party, {}).pop(number, None)
        if found is None:
            return
        self._do(self.requests.unprovide(Provider(party, number), self._clock.monotonic()))
        if not party.is_peer:
            self.on_provided(*found, -1)

    def unprovide_all(self, party: Party) -> None:
        for number in list(self._provided.get(party, {})):
            self.unprovide(party, number)

    def request(self, party: Party, message: Request) -> None:
        topic = check_topic(message.topic)
        if is_system(topic):
            self._answer_system(party, message)
            return
        check_right(party.rights, "request", topic)
        if party.identity or IDENTITY in message.headers:
            message = replace(message, headers=_signed(message.headers, party.identity))
        _check_size(message)
        actions = self.requests.request(
            party, message.request, topic,
            headers=message.headers, payload=message.payload, many=message.many,
            timeout_s=message.timeout_s, now=self._clock.monotonic(), identity=party.identity,
        )  # fmt: skip
        self._do(actions)

    def ask_of_peer(self, party: Party, message: Ask) -> None:
        """Another node asks on behalf of one of its clients."""
        actions: list[Action]
        try:
            actions = self.requests.ask(
                party, message.request, check_topic(message.topic),
                headers=message.headers, timeout_s=message.timeout_s,
                now=self._clock.monotonic(),
            )  # fmt: skip
        except Refused:
            actions = [SendBid(party, message.request, yes=False)]
        self._do(actions)

    def request_of_peer(self, party: Party, message: Request) -> None:
        actions: list[Action]
        try:
            actions = self.requests.request_of_peer(
                party, message.request, check_topic(message.topic),
                headers=message.headers, payload=message.payload, many=message.many,
                timeout_s=message.timeout_s, now=self._clock.monotonic(),
            )  # fmt: skip
        except Refused:
            actions = [SendBid(party, message.request, yes=False)]
        self._do(actions)

    def bid(self, party: Party, message: Bid) -> None:
        now = self._clock.monotonic()
        self._do(self.requests.bid(party, message.request, message.yes, now))

    def reply(self, party: Party, message: Reply) -> None:
        actions = self.requests.reply(
            party, message.request, message.code, message.headers, message.payload,
            last=message.last or not party.is_peer,
        )  # fmt: skip
        self._do(actions)

    async def run(self) -> None:
        """End what is overdue."""
        while True:
            self._armed = self.requests.next_deadline()
            # The clock has the scale of deadlines; anything added to it could round to just before
            # the moment, and we would wake up too early again and again.
            with trio.CancelScope(deadline=math.inf if self._armed is None else self._armed):
                await self._changed.wait()
            self._changed = trio.Event()
            self._do(self.requests.expire(self._clock.monotonic()))

    def _answer_system(self, party: Party, message: Request) -> None:
        answer = self._system.get(message.topic)
        later = self._later.get(message.topic)
        code, payload = None, b""
        if later is not None:
            told = partial(self._answered_later, party, message.request)
            later(message.payload, party.rights, told)
            return
        if answer is None:
            code = NoProvider.code
            topics = sorted((*self._system, *self._later))
            payload = f"the system answers on {', '.join(topics)}".encode()
        else:
            payload = json.dumps(answer(message.payload, party.rights)).encode()
        party.send(_encode_reply(message.request, code, {}, payload, last=True))

    def _answered_later(
        self, party: Party, request: int, answer: Any, error: BusnodeError | None
    ) -> None:
        code = None if error is None else error.code
        if isinstance(error, Forbidden):
            self.on_forbidden(party, error)
        payload = json.dumps(answer) if error is None else error.text
        self._answer(party, _encode_reply(request, code, {}, payload.encode(), last=True))

    def _do(self, actions: list[Action]) -> None:
        left = deque(actions)
        while left:
            match left.popleft():
                case SendAsk(provider, number, topic, headers, timeout_s):
                    ask = Ask(number, provider.number, topic, headers, timeout_s)
                    left += self._send(provider, number, encode_control(ask))
                case SendBid(client, request, yes):
                    self._answer(client, encode_trusted(Bid, request, yes))
                case SendRequest(provider, number, topic, headers, payload, many, timeout_s):
                    frame = encode_trusted(
                        Request, number, provider.number, topic, headers, payload, many, timeout_s
                    )
                    left += self._send(provider, number, frame)
                case SendReply(client, request, code, headers, payload, last):
                    self._answer(client, _encode_reply(request, code, headers, payload, last))
        deadline = self.requests.next_deadline()
        if deadline is not None and (self._armed is None or deadline < self._armed):
            self._changed.set()

    def _answer(self, client: Hashable, frame: bytes) -> None:
        party = cast("Party", client)
        if party in self._provided:  # it may have left
            party.send(frame)

    def _send(self, provider: Provider, ask: int, frame: bytes) -> list[Action]:
        """Send it, or go on without this provider: one that does not read as fast as others ask
        must not be let go for it."""
        party = cast("Party", provider.client)
        if not party.outgoing.has_room(len(frame)):
            return self.requests.pass_over(ask, self._clock.monotonic())
        party.send(frame)
        return []


def _nobody(pattern: Pattern, eager: bool, change: int) -> None:
    del pattern, eager, change


def _unheard(party: Party, error: Forbidden) -> None:
    del party, error


def _signed(headers: dict[str, str], identity: str) -> dict[str, str]:
    others = {name: value for name, value in headers.items() if name != IDENTITY}
    return {**others, IDENTITY: identity} if identity else others


def _check_size(message: Request) -> None:
    """Whether it fits into the frames in which it goes on, whose numbers may be longer."""
    if message.headers:
        headers_bytes = sum(len(k.encode()) + len(v.encode()) for k, v in message.headers.items())
        if headers_bytes > HEADERS_BYTES_MAX:
            raise LimitReached(
                f"headers of {headers_bytes} bytes; the limit is {HEADERS_BYTES_MAX}"
            )
    if len(message.payload) > REQUEST_BYTES_MAX - 2 * HEADERS_BYTES_MAX:
        longest = replace(message, request=U64_MAX, provider=U64_MAX)
        try:
            encode_control(longest)
        except FrameTooLarge as error:
            raise LimitReached(f"{error.text} with the numbers that it gets on its way") from error


def _encode_reply(
    request: int, code: str | None, headers: dict[str, str], payload: bytes, last: bool
) -> bytes:
    frame = encode_trusted(Reply, request, code, headers, payload, last)
    if len(frame) <= REQUEST_BYTES_MAX:
        return frame
    text = f"REPLY frame of {len(frame)} bytes; the limit is {REQUEST_BYTES_MAX}"
    return encode_trusted(Reply, request, FrameTooLarge.code, {}, text.encode(), last)
