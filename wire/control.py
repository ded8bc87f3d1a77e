"""Control messages: small msgpack arrays, each a frozen value with named fields.

A message is declared once, as a dataclass whose field annotations are kinds from `fields`; from
these come its encoding, its decoding and its table in docs/protocol.md. An array may be longer
than the fields that we know: what a newer version added is ignored. It may be shorter where the
last fields have a default.
"""

from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from operator import attrgetter
from typing import Any, ClassVar, Final, get_type_hints

import msgpack
from xxhash import xxh3_64_intdigest

from busnode.wire import limits
from busnode.wire.errors import BadControl, BadHash, FrameTooLarge
from busnode.wire.fields import (
    Addresses,
    Amount,
    Broker,
    Check,
    Extents,
    Headers,
    HeadersOfEach,
    Holdings,
    Maybe,
    Members,
    Name,
    Names,
    NumberRanges,
    Numbers,
    Payload,
    Payloads,
    PositionMap,
    QueueExtents,
    Receipts,
    Refusals,
    Safe,
    Seconds,
    Secret,
    Start,
    Text,
    TopicText,
    Yes,
    checker,
)
from busnode.wire.frames import (
    CONTROL_PREFIX,
    CONTROL_PREFIX_BYTES,
    FRAME_LIMITS,
    FrameType,
)
from busnode.wire.plain import (
    is_plain_reply,
    is_plain_request,
    is_plain_task_done,
    is_plain_task_settled,
    is_plain_tasks,
)
from busnode.wire.shapes import is_list


@dataclass(frozen=True, slots=True)
class Control:
    """Base of all control messages."""

    TYPE: ClassVar[FrameType]


# Sessions of clients ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello(Control):
    """client → node: who I am. The first frame, and the only one before WELCOME. `user` and
    `secret` are a name and a password; without a name the secret is a token, if there is one."""

    TYPE = FrameType.HELLO
    protocol: Amount
    name: Name
    producer_id: Amount
    user: Name = ""
    secret: Secret = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Welcome(Control):
    """node → client: you are in, and these are the nodes to try when I am gone."""

    TYPE = FrameType.WELCOME
    client_no: Amount
    broker_id: Broker
    node: Name
    cluster_id: Name
    nodes: Addresses
    heartbeat_s: Seconds


@dataclass(frozen=True, slots=True)
class Nodes(Control):
    """node → client: the nodes there are now, for when I am gone."""

    TYPE = FrameType.NODES
    nodes: Addresses


@dataclass(frozen=True, slots=True)
class Error(Control):
    """either → either: something was refused: a frame of type `refused`, and `about` is its number
    (subscription, provider, request or producerSeq). Both are nil when it is about the session."""

    TYPE = FrameType.ERROR
    code: Name
    text: Text
    refused: Maybe[Amount]
    about: Maybe[Amount]
    retry_after_s: Maybe[Seconds]


@dataclass(frozen=True, slots=True)
class Goodbye(Control):
    """either → either: I am leaving on purpose; a node names where else to go."""

    TYPE = FrameType.GOODBYE
    reason: Text
    nodes: Addresses


@dataclass(frozen=True, slots=True)
class Ping(Control):
    """either → either: are you there?"""

    TYPE = FrameType.PING
    token: Amount


@dataclass(frozen=True, slots=True)
class Pong(Control):
    """either → either: yes, with the token of the PING."""

    TYPE = FrameType.PONG
    token: Amount


@dataclass(frozen=True, slots=True)
class Ack(Control):
    """node → client: these batches are safe at this level ("mirrored" or "local").

    A receipt is [first producerSeq, batches, first msgNo]: a run of the producer's batches, one
    behind the other, whose messages got consecutive numbers in the log of `broker_id`.
    """

    TYPE = FrameType.ACK
    broker_id: Broker
    level: Name
    receipts: Receipts


# Subscriptions ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Subscribe(Control):
    """client → node: send me what matches. `start` is "latest", "earliest", a utc in µs, or nil
    when `position` says it all."""

    TYPE = FrameType.SUBSCRIBE
    subscription: Amount
    pattern: TopicText
    start: Maybe[Start]
    position: PositionMap
    durable: Maybe[Name]
    queue: Maybe[Name]
    credit_bytes: Amount


@dataclass(frozen=True, slots=True)
class Subscribed(Control):
    """node → client: the subscription stands, with its complete position as of now."""

    TYPE = FrameType.SUBSCRIBED
    subscription: Amount
    position: PositionMap


@dataclass(frozen=True, slots=True)
class Unsubscribe(Control):
    """client → node: no more of this subscription."""

    TYPE = FrameType.UNSUBSCRIBE
    subscription: Amount


@dataclass(frozen=True, slots=True)
class Credit(Control):
    """client or peer → node: I can take this many bytes more for this subscription, or for this
    interest of a queue group."""

    TYPE = FrameType.CREDIT
    subscription: Amount
    credit_bytes: Amount


@dataclass(frozen=True, slots=True)
class SavePosition(Control):
    """client → node: these cursors of a durable subscription have moved; keep them."""

    TYPE = FrameType.POSITION
    subscription: Amount
    position: PositionMap


@dataclass(frozen=True, slots=True)
class Chunk(Control):
    """node → client or peer: the next `length` bytes are batches for a subscription of a client.

    With a `first_no` they are records of one log as they lie on disk, `last` says that this is all
    there is for now, and `remote` that the log belongs to another node: it decides which scopes
    reach this client. With a `first_no` and no bytes it says that the subscription has its place
    in the log behind `last_no`. With `first_no` 0 they are messages that are not persistent.

    Between nodes client and subscription are those of a REPLAY that it answers; else the client is
    0, and the subscription is the number of the queue's INTEREST or 0 for all who just listen. To a
    mirror it says how long ago they were stored, so that copies expire with what they are copies
    of.
    """

    TYPE = FrameType.CHUNK
    client_no: Amount
    subscription: Amount
    broker_id: Broker
    topic: TopicText
    first_no: Amount
    last_no: Amount
    length: Amount
    last: Yes
    remote: Yes = False
    age_us: Amount = 0


@dataclass(frozen=True, slots=True)
class Gap(Control):
    """node → client or peer: nobody can serve this range any more, and why.

    `last_no` is 0 when nobody knows how far it goes: no node that is up has the log. `client_no`
    counts between nodes, where it answers a REPLAY.
    """

    TYPE = FrameType.GAP
    subscription: Amount
    broker_id: Broker
    topic: TopicText
    first_no: Amount
    last_no: Amount
    reason: Text
    client_no: Amount = 0


@dataclass(frozen=True, slots=True)
class Dropped(Control):
    """node → client or peer: you were too slow; this many messages that were not persistent are
    gone. A peer is told of which topic, for it tells those of its clients that they were for."""

    TYPE = FrameType.DROPPED
    subscription: Amount
    count: Amount
    topic: Text = ""


@dataclass(frozen=True, slots=True)
class Damaged(Control):
    """client or peer → node: what you sent of this log, in a CHUNK with these numbers, is not what
    was written. Look at it; I come again. It is the last thing that is said."""

    TYPE = FrameType.DAMAGED
    broker_id: Broker
    topic: TopicText
    first_no: Amount
    last_no: Amount


# Request and reply --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Provide(Control):
    """client or peer → node: I answer requests on this topic. One who is `eager` answers them all
    and need not be asked: it gets the REQUEST at once, and may still decline it with a BID."""

    TYPE = FrameType.PROVIDE
    provider: Amount
    topic: TopicText
    eager: Yes = False


@dataclass(frozen=True, slots=True)
class Unprovide(Control):
    """client or peer → node: I answer no more."""

    TYPE = FrameType.UNPROVIDE
    provider: Amount


@dataclass(frozen=True, slots=True)
class Ask(Control):
    """node → provider or peer: would you answer this? `request` is a number of the asking node,
    which waits for so many seconds. A peer asks its own providers in turn."""

    TYPE = FrameType.ASK
    request: Amount
    provider: Amount
    topic: TopicText
    headers: Headers
    timeout_s: Seconds = 0.0


@dataclass(frozen=True, slots=True)
class Bid(Control):
    """provider → node: yes or no. A no to a REQUEST declines it: somebody else gets it."""

    TYPE = FrameType.BID
    request: Amount
    yes: Yes


@dataclass(frozen=True, slots=True)
class Request(Control):
    """requester → node → provider: the request itself. `many` asks every provider that says yes.

    `request` is a number of whoever sends it; `provider` is 0 on the way to the node."""

    TYPE = FrameType.REQUEST
    request: Amount
    provider: Amount
    topic: TopicText
    headers: Headers
    payload: Payload
    many: Yes
    timeout_s: Seconds


@dataclass(frozen=True, slots=True)
class Reply(Control):
    """provider → node → requester: an answer, or with a `code` an error. `last` marks the end; the
    end of many replies that has no reply of its own has the code END."""

    TYPE = FrameType.REPLY
    request: Amount
    code: Maybe[Name]
    headers: Headers
    payload: Payload
    last: Yes


# Links between nodes ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PeerHello(Control):
    """node → node: who I am, and where my clients and peers reach me. Where there is a cluster key
    it says which and brings a nonce, and keeps the rest for the PEER_PROOF."""

    TYPE = FrameType.PEER_HELLO
    protocol: Amount
    cluster_id: Name
    broker_id: Broker
    node: Name
    clients_at: Addresses
    peers_at: Addresses
    key_id: Payload = b""
    nonce: Payload = b""


@dataclass(frozen=True, slots=True)
class PeerChallenge(Control):
    """node → node: I have the key that you named, and this shows it; show that you have it, too."""

    TYPE = FrameType.PEER_CHALLENGE
    broker_id: Broker
    nonce: Payload
    proof: Payload


@dataclass(frozen=True, slots=True)
class PeerProof(Control):
    """node → node: I have it, and this is who I am."""

    TYPE = FrameType.PEER_PROOF
    proof: Payload
    node: Name
    clients_at: Addresses
    peers_at: Addresses


@dataclass(frozen=True, slots=True)
class PeerWelcome(Control):
    """node → node: the answer, with the same things of the other side."""

    TYPE = FrameType.PEER_WELCOME
    broker_id: Broker
    node: Name
    clients_at: Addresses
    peers_at: Addresses
    heartbeat_s: Seconds


@dataclass(frozen=True, slots=True)
class Interest(Control):
    """node → node: my clients want what matches; for a queue group there are so many members, who
    have room for so many bytes. 0 members when the last is gone. The answer is EXTENTS."""

    TYPE = FrameType.INTEREST
    interest: Amount
    pattern: TopicText
    queue: Maybe[Name]
    members: Amount
    credit_bytes: Amount


@dataclass(frozen=True, slots=True)
class ExtentsHeld(Control):
    """node → node: logs that match an INTEREST, and how far my copy of each reaches. What is
    committed from then on follows by itself. `last` marks the end of the answer."""

    TYPE = FrameType.EXTENTS
    interest: Amount
    extents: Extents
    last: Yes


@dataclass(frozen=True, slots=True)
class Replay(Control):
    """home → holder: send, for this client, what comes after a number in this log. With a length
    of 0 it asks where something is: behind which number the messages from a moment on lie.

    One answer comes: a CHUNK of about this length at most, without bytes when there is nothing
    more yet, or a GAP."""

    TYPE = FrameType.REPLAY
    client_no: Amount
    subscription: Amount
    broker_id: Broker
    topic: TopicText
    after_no: Amount
    since_us: Maybe[Amount]
    length: Amount


@dataclass(frozen=True, slots=True)
class MembersSeen(Control):
    """node → node: the nodes that I have a link to, as [brokerId, name, [host:port]]."""

    TYPE = FrameType.MEMBERS
    members: Members


@dataclass(frozen=True, slots=True)
class HoldingsTold(Control):
    """node → node: which incarnation I write now, and whose logs I hold, as [brokerId, logs, sum of
    their last numbers, digest of them, whether I wrote them]."""

    TYPE = FrameType.HOLDINGS
    written: Broker
    holdings: Holdings


@dataclass(frozen=True, slots=True)
class Mirror(Control):
    """origin or holder → node: hold a copy of these logs: mine, from now on, or a dead node's. They
    are kept for as long as their origin would keep them; 0 when nobody knows how long that is."""

    TYPE = FrameType.MIRROR
    broker_id: Broker
    retain_s: Seconds = 0.0


@dataclass(frozen=True, slots=True)
class Mirrored(Control):
    """mirror → origin: what is fsynced here, as [topic, msgNo] for each log that moved."""

    TYPE = FrameType.MIRRORED
    broker_id: Broker
    safe: Safe


@dataclass(frozen=True, slots=True)
class Finished(Control):
    """node → node: a member of the queue group that I told you of is done with records that you
    sent. What is not finished when the last member leaves, or I do, you give to others."""

    TYPE = FrameType.FINISHED
    interest: Amount
    broker_id: Broker
    topic: TopicText
    first_no: Amount


@dataclass(frozen=True, slots=True)
class FindRegistration(Control):
    """home → node: what do you know of the durable subscription with this name?"""

    TYPE = FrameType.FIND_REGISTRATION
    name: Name


@dataclass(frozen=True, slots=True)
class RegistrationKept(Control):
    """node → home: the newest that I have kept under a name, or a copy of mine has: what it wants,
    whose it is, how far it has got, and when that was. With a time of 0 I know nothing of it."""

    TYPE = FrameType.REGISTRATION
    name: Name
    saved_us: Amount
    pattern: TopicText
    client: Name
    position: PositionMap


@dataclass(frozen=True, slots=True)
class Compare(Control):
    """node → node: tell me what your copy of these messages is like. `compare` is a number of the
    one who asks."""

    TYPE = FrameType.COMPARE
    compare: Amount
    broker_id: Broker
    topic: TopicText
    first_no: Amount
    last_no: Amount


@dataclass(frozen=True, slots=True)
class Compared(Control):
    """node → node: xxh3_128 of the records as they lie, all of them with good hashes; empty when I
    do not have all of them."""

    TYPE = FrameType.COMPARED
    compare: Amount
    digest: Payload


# Task queues --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TaskPoll(Control):
    """worker → home: I can take so many tasks more; 0 ends the poll. home → owner: give me so many
    for one of my workers; one TASKS answers it.

    The lease is the worker's: nobody else can settle what it is given. `name` is for people.
    """

    TYPE = FrameType.TASK_POLL
    poll: Amount
    queue: Name
    want: Amount
    lease_s: Seconds
    worker: Amount
    name: Name


@dataclass(frozen=True, slots=True)
class Tasks(Control):
    """owner → home → worker: tasks with a lease, column by column. A task has its number in the
    owner's log, an id for good, and a fence that grows with each lease of the queue. `headers` is
    nil when none has any."""

    TYPE = FrameType.TASKS
    poll: Amount
    owner: Broker
    queue: Name
    numbers: Numbers
    ids: Names
    fences: Numbers
    attempts: Numbers
    enqueued_us: Numbers
    headers: Maybe[HeadersOfEach]
    payloads: Payloads


@dataclass(frozen=True, slots=True)
class TaskDone(Control):
    """worker → home → owner: "complete", "fail", "reject" (for good), "release" or "extend" these.
    Numbers and fences are those of the TASKS; `lease_s` is for "extend". With the answer
    the worker can take `want` more `for_poll`, as after a TASK_POLL that came then."""

    TYPE = FrameType.TASK_DONE
    done: Amount
    owner: Broker
    queue: Name
    verb: Name
    numbers: Numbers
    fences: Numbers
    error: Text
    lease_s: Seconds
    worker: Amount
    for_poll: Amount = 0
    want: Amount = 0


@dataclass(frozen=True, slots=True)
class TaskSettled(Control):
    """owner → home → worker: it is so, and safe at this level, but for those that are refused, each
    with its place in the TASK_DONE and a code."""

    TYPE = FrameType.TASK_SETTLED
    done: Amount
    level: Name
    refused: Refusals


@dataclass(frozen=True, slots=True)
class TaskReady(Control):
    """owner → home: there is something for you again, where you asked for more than there was."""

    TYPE = FrameType.TASK_READY
    queue: Name


@dataclass(frozen=True, slots=True)
class TaskClaim(Control):
    """node → node: the tasks of an incarnation that is no more are the claimer's since that moment,
    as far as these numbers in the logs of its queues. One that is its own claimer is alive, and
    denies all claims up to that moment."""

    TYPE = FrameType.TASK_CLAIM
    origin: Broker
    claimer: Broker
    claimed_us: Amount
    extents: QueueExtents


@dataclass(frozen=True, slots=True)
class TaskFinished(Control):
    """holder → owner: these tasks, by their numbers in the origin's log, are finished as far as I
    know, and those I have; you go on with the origin's tasks, and need not do them again. owner →
    holder, in answer: these are finished, those I have, and you need not keep them; and others are
    elsewhere, so that you need not take them over. What does not fit into one frame comes in so
    many parts, numbered from 0 on."""

    TYPE = FrameType.TASK_FINISHED
    origin: Broker
    queue: Name
    finished: NumberRanges
    held: NumberRanges
    elsewhere: NumberRanges
    part: Amount
    parts: Amount


CONTROLS: Final[dict[int, type[Control]]] = {
    message.TYPE: message
    for message in (
        Hello, Welcome, Nodes, Error, Goodbye, Ping, Pong, Ack,
        Subscribe, Subscribed, Unsubscribe, Credit, Chunk, Gap, Dropped, SavePosition,
        Damaged,
        Provide, Unprovide, Ask, Bid, Request, Reply,
        PeerHello, PeerChallenge, PeerProof, PeerWelcome,
        Interest, ExtentsHeld, Replay, MembersSeen, HoldingsTold,
        Mirror, Mirrored, Finished, FindRegistration, RegistrationKept, Compare, Compared,
        TaskPoll, Tasks, TaskDone, TaskSettled, TaskReady, TaskClaim, TaskFinished,
    )
}  # fmt: skip


def _checkers(message: type[Control]) -> list[tuple[str, Check]]:
    hints = get_type_hints(message, include_extras=True)  # once for all its fields: it is slow
    return [(each.name, checker(hints[each.name])) for each in fields(message)]


_CHECKERS: Final = {kind: _checkers(message) for kind, message in CONTROLS.items()}
_REQUIRED: Final = {
    kind: sum(each.default is MISSING for each in fields(message))
    for kind, message in CONTROLS.items()
}

_PLAIN: Final[dict[int, tuple[Callable[[Any], Any], Callable[[Any], bool]]]] = {
    message.TYPE: (attrgetter(*(each.name for each in fields(message))), is_plain)
    for message, is_plain in (
        (Request, is_plain_request),
        (Reply, is_plain_reply),
        (Tasks, is_plain_tasks),
        (TaskDone, is_plain_task_done),
        (TaskSettled, is_plain_task_settled),
    )
}
"""Messages that may be known at a glance: how to get their fields, and whether these are plain."""

_PREFIXES: Final = {
    kind: CONTROL_PREFIX_BYTES | kind << 32 | limits.PROTOCOL_VERSION << 40 for kind in CONTROLS
}
"""The first eight bytes of an empty frame as a number: the length of its array is added."""

_pack: Final = msgpack.Packer().pack
"""One packer for all: making one takes longer than packing. It packs without a pause in between."""


def encode_control(message: Control) -> bytes:
    """A control frame. Raises FrameTooLarge or BadControl for a message nobody would accept."""
    kind = message.TYPE
    plain = _PLAIN.get(kind)
    values: Any = None
    if plain is not None:
        values = plain[0](message)
    if plain is None or not plain[1](values):
        values = [check(getattr(message, name), name) for name, check in _CHECKERS[kind]]
    frame = encode_trusted(message, *values)
    if len(frame) > FRAME_LIMITS[kind]:
        raise FrameTooLarge(
            f"{kind.name} frame of {len(frame)} bytes; the limit is {FRAME_LIMITS[kind]}"
        )
    return frame


def encode_trusted(message: type[Control] | Control, *values: object) -> bytes:
    """Like `encode_control` for values that come from messages which were already checked: for the
    frames of the hot path, at a quarter of the cost."""
    array = _pack(values)
    prefix = _PREFIXES[message.TYPE] + len(array)
    return CONTROL_PREFIX.pack(prefix, xxh3_64_intdigest(array, prefix)) + array


class ArrayCount:
    """Counts the arrays of a message: an empty one takes one byte on the wire and 64 in memory."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = limits.CONTROL_ELEMENTS_MAX + 2

    def __call__(self, array: list[Any]) -> list[Any]:
        self.left -= 1
        if self.left < 0:
            raise ValueError("more arrays than any message has")
        return array


def decode_control(view: memoryview) -> Control:
    """The message in one whole control frame whose prefix was checked. BadHash or BadControl."""
    prefix, digest = CONTROL_PREFIX.unpack_from(view)
    array = view[CONTROL_PREFIX_BYTES:]
    kind = prefix >> 32 & 0xFF
    if xxh3_64_intdigest(array, prefix) != digest:
        raise BadHash(f"{FrameType(kind).name} frame whose hash does not fit its bytes")
    message = CONTROLS[kind]
    try:
        values: object = msgpack.unpackb(
            array,
            max_array_len=limits.CONTROL_ELEMENTS_MAX,
            max_map_len=limits.SUBSCRIBE_BYTES_MAX,
            max_ext_len=0,
            list_hook=ArrayCount(),
        )
    except Exception as error:
        # Its str, not its repr: that of ExtraData repeats all that was read, however deep it is.
        raise BadControl(
            f"{message.TYPE.name} cannot be read: {type(error).__name__} {error!s:.200}"
        ) from error
    plain = _PLAIN.get(kind)
    if plain is not None and is_list(values) and plain[1](values):
        return message(*values)
    if not is_list(values) or len(values) < _REQUIRED[kind]:
        raise BadControl(f"{message.TYPE.name} is not an array of {_REQUIRED[kind]} fields")
    both = zip(values, _CHECKERS[kind], strict=False)  # as many as both know
    return message(*[check(value, name) for value, (name, check) in both])
