"""Frames of somebody who means harm, from a seed: each of the right form, or broken by structure.

What is of the right form is hostile by its meaning: numbers at their limits, logs that nobody has,
others' brokerIds, positions in the future, answers that nobody has asked for. What is broken is
made by the mutators that the tests of the wire use.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

from busnode.wire import limits
from busnode.wire.control import (
    CONTROLS,
    Chunk,
    Control,
    Goodbye,
    Hello,
    Interest,
    Mirror,
    PeerHello,
    PeerProof,
    Provide,
    Request,
    Subscribe,
    encode_control,
)
from busnode.wire.errors import FrameTooLarge
from busnode.wire.fields import U64_MAX
from busnode.wire.frames import Flags, FrameType, broker_seed
from busnode.wire.ids import BrokerId
from busnode.wire.producer_tag import tagged
from busnode.wire.runs import stamp_run, verify_runs
from busnode.wire.sessions import CLIENT_TABLE, PEER_TABLE, Side, State, Table

from ..wire.samples import FLAGS, OR_NIL, batch, kinds_of
from ..wire.test_fuzz import Mutator

TOPICS: Final = [f"/hostile/{n % 5}/{n}" for n in range(20)]
PATTERNS: Final = [*TOPICS[:5], "/*", "/hostile/*", "/hostile/+/7", "/+/+/+", "/none", "/$sys/*"]
BAD_TOPICS: Final = [
    "",
    "/",
    "xy",
    "/a//b",
    "/a/*/b",
    "/..",
    "/a\0",
    "/" + "x" * 250,
    "/é☃/+",
    "/$sys",
]
NAMES: Final = ["", "q", "north", "é☃", "x" * 100, "../..", "\0", "n1"]
ADDRESSES: Final = ["", "x", ":", "127.0.0.1:1", "[::1]:9", "127.0.0.1:99999", "0.0.0.0:0", "a:b:c"]

LIMITS: Final = (
    0, 1, 255, 65_536, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**62, 2**63 - 1, 2**63,
    U64_MAX - 1, U64_MAX,
)  # fmt: skip

CLIENTS: Final = "clients"
PEERS: Final = "peers"
TABLES: Final[dict[str, Table]] = {CLIENTS: CLIENT_TABLE, PEERS: PEER_TABLE}
DOORS: Final = tuple(TABLES)

STATES: Final = {
    CLIENTS: ("new", "greeted", "subscribed", "queueing", "providing", "leaving"),
    PEERS: ("new", "open", "interested", "providing", "mirroring", "leaving"),
}
"""How far a session has come before the hostile frames."""

GUARDED_STATES: Final = {CLIENTS: STATES[CLIENTS], PEERS: ("new", "challenged", "proven")}
"""The same at a node that wants to know who comes: peers have no key, and so come no further."""

IDENTITY: Final = "hostile"
"""Whom a guarded node lets in."""

SOME_BROKERS: Final = [BrokerId(bytes([n]) * 16) for n in range(1, 25)]
"""Those of hostile peers: few, for what they are mirrored for takes room on the disk, as it may."""


FIELDS: Final = {message: kinds_of(message) for message in CONTROLS.values()}


def _kinds(table: Table) -> list[FrameType]:
    """What somebody who has dialled may send in an open session and go on."""
    ends = (FrameType.GOODBYE, FrameType.BATCH, FrameType.CHUNK)
    row = table[State.OPEN]
    return sorted(k for side, k in row if side is Side.DIALLER and k not in ends)


KINDS: Final = {door: _kinds(table) for door, table in TABLES.items()}
DATA: Final = 0.15
"""The share of records among frames, where a session may send some."""


class Hostile:
    """One hostile session's frames."""

    def __init__(
        self,
        chance: Random,
        door: str,
        brokers: Sequence[BrokerId],
        *,
        token: str = "",
        key_id: bytes = b"",
    ) -> None:
        """`brokers`: those of the node, which are not ours to write. At a guarded node clients have
        a token, and peers have heard which key it has."""
        self.door = door
        self.broker_id = chance.choice(SOME_BROKERS)
        self.producer_id = chance.choice([0, 1, 2, chance.randrange(50), U64_MAX])
        if token:
            self.producer_id = tagged(self.producer_id, IDENTITY)
        self._token = token
        self._key_id = key_id
        self.mirroring = False
        """Whether it has said whose logs it sends."""
        self._chance = chance
        self._brokers = [self.broker_id, *SOME_BROKERS[:3], *brokers, BrokerId(bytes(16))]
        self._mutator = Mutator(chance)
        self._next_seq = 1
        self._next_no = 1

    # How far it comes in peace --------------------------------------------------------------------

    def greeting(self, cluster_id: str) -> Control:
        if self.door == CLIENTS:
            said = "", self._token
            return Hello(limits.PROTOCOL_VERSION, "hostile", self.producer_id, *said)
        if self._key_id:
            nonce = self._chance.randbytes(32)
            shown = "", list[str](), list[str](), self._key_id, nonce
            return PeerHello(limits.PROTOCOL_VERSION, cluster_id, self.broker_id, *shown)
        addresses = self._chance.sample(ADDRESSES, 2)
        return PeerHello(
            limits.PROTOCOL_VERSION, cluster_id, self.broker_id, "hostile", addresses, addresses
        )

    def opening(self, state: str) -> list[bytes]:
        """What brings a session that was greeted into a state."""
        chance = self._chance
        topic, pattern = chance.choice(TOPICS), chance.choice(PATTERNS)
        credit = chance.choice([0, 1, 1000, 1 << 40])
        match self.door, state:
            case ("clients", "subscribed"):
                start = chance.choice(["earliest", "latest", 0, None])
                durable = chance.choice([None, "d1", "d2"])
                return [
                    encode_control(Subscribe(n, pattern, start, {}, durable, None, credit))
                    for n in range(3)
                ]
            case ("clients", "queueing"):
                return [
                    encode_control(Subscribe(n, pattern, "latest", {}, None, f"q{n}", credit))
                    for n in range(3)
                ]
            case ("clients", "providing"):
                # It asks itself, so that there are requests that wait for it.
                return [
                    encode_control(Provide(1, topic, chance.random() < 0.5)),
                    encode_control(Request(1, 0, topic, {}, b"?", False, 60.0)),
                    encode_control(Request(2, 0, topic, {}, b"?", True, 60.0)),
                ]
            case ("peers", "interested"):
                return [
                    encode_control(Interest(1, pattern, None, 1, 0)),
                    encode_control(Interest(2, pattern, "q1", 2, credit)),
                ]
            case ("peers", "providing"):
                return [encode_control(Provide(1, topic, chance.random() < 0.5))]
            case ("peers", "mirroring"):
                self.mirroring = True
                return [encode_control(Mirror(self.broker_id)), self.copied()]
            case ("peers", "proven"):
                proof = chance.randbytes(chance.choice([0, 31, 32, 32, 32, 33, 500]))
                return [encode_control(PeerProof(proof, "hostile", [], []))]
            case (_, "leaving"):
                return [encode_control(Goodbye("bye", []))]
            case _:
                return []

    # Of the right form ----------------------------------------------------------------------------

    def well_formed(self) -> bytes:
        """A frame that the table allows in an open session, and after which it goes on."""
        if self._chance.random() < DATA:
            if self.door == CLIENTS:
                return self.published()
            if self.mirroring:
                return self.copied()
        return self.control(CONTROLS[self._chance.choice(KINDS[self.door])])

    def control(self, message: type[Control]) -> bytes:
        while True:
            values = {name: self.value(words) for name, words in FIELDS[message].items()}
            try:
                return encode_control(message(**values))
            except FrameTooLarge:
                continue

    def value(self, words: str) -> Any:
        if words.endswith(OR_NIL):
            words = words.removesuffix(OR_NIL)
            if self._chance.random() < 0.5:
                return None
        if words.startswith("[["):  # rows of what is named, as in [[topic, msgNo]]
            row = words[2:-2].split(", ")
            return self._some(lambda: tuple(self.value(each) for each in row))
        return self._values[words](self)

    def published(self) -> bytes:
        """A batch of a client; its columns may be of any kind, since no node looks into them."""
        chance = self._chance
        self._next_seq += 1
        payloads = [chance.randbytes(chance.choice([0, 1, 100, 2000]))] * chance.randint(1, 5)
        return batch(
            chance.choice(TOPICS) if chance.random() < 0.9 else chance.choice(BAD_TOPICS[2:]),
            payloads,
            body=chance.choice([None, None, b"\x00", b"\xc1", chance.randbytes(20)]),
            count=chance.choice([None, None, None, 1, limits.BATCH_MESSAGES_MAX]),
            flags=int(chance.choice(FLAGS)),
            utc_us=self._amount(),
            producer_id=chance.choice([self.producer_id, self.producer_id, self._amount()]),
            producer_seq=chance.choice([self._next_seq, self._next_seq, self._amount()]),
        )

    def copied(self) -> bytes:
        """A record of a log that this peer may write, with the CHUNK that announces it."""
        chance = self._chance
        first_no = self._next_no if chance.random() < 0.8 else max(1, self._amount() >> 1)
        self._next_no = min(first_no, 2**40) + 1
        return self._copied(self.broker_id, chance.choice(TOPICS), first_no)

    def wrongly_copied(self) -> bytes:
        """The same of a log that is another's, or not what was announced."""
        chance = self._chance
        topic, first_no = chance.choice(TOPICS), self._next_no
        match chance.randrange(4):
            case 0:
                return self._copied(self._broker(), topic, first_no)
            case 1:
                return self._copied(self.broker_id, topic, first_no, named=chance.choice(TOPICS))
            case 2:
                return self._copied(self.broker_id, topic, first_no, length=chance.choice(LIMITS))
            case _:
                return self._copied(self.broker_id, topic, first_no, said_no=self._amount())

    def _copied(
        self,
        broker_id: BrokerId,
        topic: str,
        first_no: int,
        *,
        named: str | None = None,
        length: int | None = None,
        said_no: int | None = None,
    ) -> bytes:
        buffer = bytearray(batch(topic, [b"copy"], flags=int(Flags.GLOBAL | Flags.PERSISTENT)))
        with memoryview(buffer) as view:
            (run,), _ = verify_runs(buffer, view, 0, len(buffer))
            stamp_run(view, run, broker_id, broker_seed(broker_id), first_no)
        said_no = first_no if said_no is None else said_no
        length = len(buffer) if length is None else length
        chunk = Chunk(0, 0, broker_id, named or topic, said_no, first_no, length, last=True)
        return encode_control(chunk) + buffer

    def bodiless(self) -> bytes:
        """A batch with right hashes and no body at all: it says that it has messages."""
        record = batch(self._chance.choice(TOPICS), body=b"", count=1)
        if self.door == CLIENTS:
            return record
        numbers = self._next_no, self._next_no
        chunk = Chunk(0, 0, self.broker_id, TOPICS[0], *numbers, len(record), last=True)
        return encode_control(chunk) + record

    def _amount(self) -> int:
        chance = self._chance
        return chance.randrange(6) if chance.random() < 0.6 else chance.choice(LIMITS)

    def _seconds(self) -> float:
        return self._chance.choice([0.0, 1e-9, 0.01, 1.0, 60.0, 1e9, 1e300])

    def _broker(self) -> BrokerId:
        known = self._chance.random() < 0.9
        return self._chance.choice(self._brokers) if known else BrokerId(self._chance.randbytes(16))

    def _topic(self) -> str:
        return self._chance.choice(self._chance.choice([TOPICS, TOPICS, PATTERNS, BAD_TOPICS]))

    def _text(self) -> str:
        return self._chance.choice(NAMES)

    def _some(self, of: Callable[[], Any]) -> list[Any]:
        many = self._chance.choice([0, 1, 1, 3, 30]) if self._chance.random() < 0.98 else 500
        return [of() for _ in range(many)]

    def _position(self) -> dict[BrokerId, dict[str, int]]:
        return {
            self._broker(): {
                self._topic(): self._amount() for _ in range(self._chance.randrange(4))
            }
            for _ in range(self._chance.choice([0, 1, 2, 20]))
        }

    _values: Final[dict[str, Callable[["Hostile"], Any]]] = {
        "u64": _amount,
        "seconds": _seconds,
        "bool": lambda self: self._chance.random() < 0.5,
        "name": _text,
        "text": _text,
        "secret": _text,
        "topic or pattern": _topic,
        "brokerId": _broker,
        "bytes": lambda self: self._chance.randbytes(self._chance.choice([0, 1, 300, 20_000])),
        '"latest", "earliest", utc µs': lambda self: self._chance.choice(
            ["latest", "earliest", self._amount()]
        ),
        "[host:port]": lambda self: self._some(lambda: self._chance.choice(ADDRESSES)),
        "{text: text}": lambda self: {self._text(): self._text() for _ in range(3)},
        "{brokerId: {topic: msgNo}}": _position,
        "[u64]": lambda self: self._some(self._amount),
        "[name]": lambda self: self._some(self._text),
        "[bytes]": lambda self: self._some(lambda: self._chance.randbytes(20)),
        "[{text: text}]": lambda self: self._some(lambda: {self._text(): self._text()}),
        "topic": _topic,
        "msgNo": _amount,
        "first msgNo": _amount,
        "last msgNo": _amount,
    }

    # Broken ---------------------------------------------------------------------------------------

    def broken(self) -> bytes:
        """A frame that should end its session, or as good as."""
        chance = self._chance
        match chance.randrange(11):
            case 0:  # of a kind that has no place here
                return self.control(chance.choice(list(CONTROLS.values())))
            case 1:
                return self._mutator.damaged(self.well_formed())
            case 2:  # only the beginning of it
                frame = self.well_formed()
                return frame[: chance.randrange(len(frame))]
            case 3:
                return self.well_formed() + chance.randbytes(chance.randint(1, 30))
            case 4:
                return self.wrongly_copied()
            case 5:
                return self.bodiless()
            case _:
                return self._mutator.frame()
