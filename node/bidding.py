"""Carries out what the machine of requests decides, and answers the system's own requests."""

import json
import math
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import trio

from busnode.node.requests import Action, Provider, Requests, SendAsk, SendReply, SendRequest
from busnode.node.session import ClientSession
from busnode.wire.control import Ask, Bid, Provide, Reply, Request, encode_control
from busnode.wire.errors import FrameTooLarge, LimitReached, NoProvider, Refused
from busnode.wire.fields import U64_MAX
from busnode.wire.limits import HEADERS_BYTES_MAX, REQUEST_BYTES_MAX
from busnode.wire.topics import check_pattern, check_topic, is_system
from busnode.world.clock import Clock

PROVIDERS_MAX: Final = 1000
"""Topics that one client may provide."""

SystemAnswer = Callable[[bytes], Any]
"""From a request's payload to something that JSON can carry."""


class Bidding:
    def __init__(self, clock: Clock) -> None:
        self.requests = Requests()
        self._clock = clock
        self._sessions: dict[int, ClientSession] = {}
        self._provided: dict[ClientSession, set[int]] = {}
        self._system: dict[str, SystemAnswer] = {}
        self._changed = trio.Event()
        self._armed: float | None = None
        """When `run` wakes up by itself."""

    def answer(self, topic: str, answer: SystemAnswer) -> None:
        """Answer requests on a topic of the system."""
        self._system[topic] = answer

    def join(self, session: ClientSession) -> None:
        self._sessions[session.client_no] = session
        self._provided[session] = set()

    def leave(self, session: ClientSession) -> None:
        if self._sessions.pop(session.client_no, None) is not None:
            del self._provided[session]
            self._do(self.requests.leave(session.client_no, self._clock.monotonic()))

    def provide(self, session: ClientSession, message: Provide) -> None:
        provided = self._provided[session]
        if message.provider in provided:
            raise Refused(f"provider {message.provider} is there already")
        if len(provided) >= PROVIDERS_MAX:
            raise LimitReached(f"{len(provided)} provided topics; the limit for one client")
        pattern = check_pattern(message.topic)
        provided.add(message.provider)
        self.requests.provide(Provider(session.client_no, message.provider), pattern)

    def unprovide(self, session: ClientSession, number: int) -> None:
        self._provided.get(session, set()).discard(number)
        provider = Provider(session.client_no, number)
        self._do(self.requests.unprovide(provider, self._clock.monotonic()))

    def request(self, session: ClientSession, message: Request) -> None:
        topic = check_topic(message.topic)
        if is_system(topic):
            self._answer_system(session, message)
            return
        _check_size(message)
        actions = self.requests.request(
            session.client_no, message.request, topic,
            headers=message.headers, payload=message.payload, many=message.many,
            timeout_s=message.timeout_s, now=self._clock.monotonic(),
        )  # fmt: skip
        self._do(actions)

    def bid(self, session: ClientSession, message: Bid) -> None:
        now = self._clock.monotonic()
        self._do(self.requests.bid(session.client_no, message.request, message.yes, now))

    def reply(self, session: ClientSession, message: Reply) -> None:
        actions = self.requests.reply(
            session.client_no, message.request, message.code, message.headers, message.payload
        )
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

    def _answer_system(self, session: ClientSession, message: Request) -> None:
        answer = self._system.get(message.topic)
        if answer is None:
            text = f"the system answers on {', '.join(sorted(self._system))}"
            reply = Reply(message.request, NoProvider.code, {}, text.encode(), last=True)
        else:
            payload = json.dumps(answer(message.payload)).encode()
            reply = Reply(message.request, None, {}, payload, last=True)
        session.send(_encode_reply(reply))

    def _do(self, actions: list[Action]) -> None:
        left = deque(actions)
        while left:
            match left.popleft():
                case SendAsk(provider, number, topic, headers):
                    ask = Ask(number, provider.number, topic, headers)
                    left += self._send(provider, number, encode_control(ask))
                case SendRequest(provider, number, topic, headers, payload, many, timeout_s):
                    message = Request(
                        number, provider.number, topic, headers, payload, many, timeout_s
                    )
                    left += self._send(provider, number, encode_control(message))
                case SendReply(client, request, code, headers, payload, last):
                    session = self._sessions.get(client)  # type: ignore[call-overload]
                    if session is not None:
                        session.send(_encode_reply(Reply(request, code, headers, payload, last)))
        deadline = self.requests.next_deadline()
        if deadline is not None and (self._armed is None or deadline < self._armed):
            self._changed.set()

    def _send(self, provider: Provider, ask: int, frame: bytes) -> list[Action]:
        """Send it, or go on without this provider: one that does not read as fast as others ask
        must not be let go for it."""
        session: ClientSession = self._sessions[provider.client]  # type: ignore[index]
        if not session.outgoing.has_room(len(frame)):
            return self.requests.pass_over(ask, self._clock.monotonic())
        session.send(frame)
        return []


def _check_size(message: Request) -> None:
    """Whether it fits into the frames in which it goes on, whose numbers may be longer."""
    headers_bytes = sum(len(k.encode()) + len(v.encode()) for k, v in message.headers.items())
    if headers_bytes > HEADERS_BYTES_MAX:
        raise LimitReached(f"headers of {headers_bytes} bytes; the limit is {HEADERS_BYTES_MAX}")
    if len(message.payload) > REQUEST_BYTES_MAX - 2 * HEADERS_BYTES_MAX:
        longest = replace(message, request=U64_MAX, provider=U64_MAX)
        try:
            encode_control(longest)
        except FrameTooLarge as error:
            raise LimitReached(f"{error.text} with the numbers that it gets on its way") from error


def _encode_reply(reply: Reply) -> bytes:
    try:
        return encode_control(reply)
    except FrameTooLarge as error:
        return encode_control(
            Reply(reply.request, error.code, {}, error.text.encode(), last=reply.last)
        )
