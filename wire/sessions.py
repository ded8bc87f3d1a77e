"""Who may send what, when: the conversations as tables.

Each conversation has one table for both of its sides, so a side checks what it sends with the same
words with which the other checks what it receives. A frame that the state does not list ends the
session with UNEXPECTED_FRAME. Frames cross on the way: after one side's GOODBYE the other's frames
are therefore still taken until its own GOODBYE or the end of the stream.
"""

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from busnode.wire.errors import UnexpectedFrame
from busnode.wire.frames import FrameType as F


class Side(enum.Enum):
    """Who sends: the one that dialled or the one that listens."""

    DIALLER = "dialler"
    LISTENER = "listener"

    @property
    def other(self) -> "Side":
        return Side.LISTENER if self is Side.DIALLER else Side.DIALLER


class State(enum.Enum):
    NEW = "new"
    """Connected; the dialler must say HELLO within its deadline."""
    GREETED = "greeted"
    """HELLO was said; the listener decides."""
    CHALLENGED = "challenged"
    """The listener has a key, and wants to see that the dialler has it, too."""
    PROVEN = "proven"
    """It was shown; the listener decides."""
    OPEN = "open"
    DIALLER_LEFT = "dialler left"
    LISTENER_LEFT = "listener left"
    BOTH_LEFT = "both left"
    """What was on its way is still answered, until the listener ends the stream."""
    CLOSED = "closed"


Table = Mapping[State, Mapping[tuple[Side, F], State]]

_D, _L = Side.DIALLER, Side.LISTENER
_EITHER: Final = (F.PING, F.PONG, F.ERROR)


def _conversation(
    hello: F,
    welcome: F,
    answers: tuple[F, ...],
    dialler: tuple[F, ...],
    listener: tuple[F, ...],
    challenge: tuple[F, F] | None = None,
) -> Table:
    """A table from what is particular: the greeting, with or without a challenge and its answer,
    and what each side may send when open."""
    from_dialler = {(_D, kind) for kind in (*dialler, *_EITHER)}
    from_listener = {(_L, kind) for kind in (*listener, *_EITHER)}
    answering = {(_L, kind) for kind in (*answers, F.ERROR, F.PONG)}
    table: dict[State, dict[tuple[Side, F], State]] = {
        State.NEW: {(_D, hello): State.GREETED, (_L, F.ERROR): State.CLOSED},
        State.GREETED: {(_L, welcome): State.OPEN, (_L, F.ERROR): State.CLOSED},
        State.CHALLENGED: {},
        State.PROVEN: {},
        State.OPEN: {
            **dict.fromkeys(from_dialler | from_listener, State.OPEN),
            (_D, F.GOODBYE): State.DIALLER_LEFT,
            (_L, F.GOODBYE): State.LISTENER_LEFT,
        },
        State.DIALLER_LEFT: {
            **dict.fromkeys(from_listener, State.DIALLER_LEFT),
            (_L, F.GOODBYE): State.BOTH_LEFT,
        },
        State.LISTENER_LEFT: {
            **dict.fromkeys(from_dialler, State.LISTENER_LEFT),
            **dict.fromkeys(answering, State.LISTENER_LEFT),
            (_D, F.GOODBYE): State.BOTH_LEFT,
        },
        State.BOTH_LEFT: dict.fromkeys(answering, State.BOTH_LEFT),
        State.CLOSED: {},
    }
    if challenge is not None:
        asked, shown = challenge
        table[State.GREETED][_L, asked] = State.CHALLENGED
        table[State.CHALLENGED] = {(_D, shown): State.PROVEN, (_L, F.ERROR): State.CLOSED}
        table[State.PROVEN] = {(_L, welcome): State.OPEN, (_L, F.ERROR): State.CLOSED}
    return MappingProxyType({state: MappingProxyType(row) for state, row in table.items()})


CLIENT_TABLE: Final = _conversation(
    hello=F.HELLO,
    welcome=F.WELCOME,
    dialler=(
        F.BATCH, F.SUBSCRIBE, F.UNSUBSCRIBE, F.CREDIT, F.POSITION,
        F.PROVIDE, F.UNPROVIDE, F.BID, F.REQUEST, F.REPLY, F.DAMAGED,
        F.TASK_POLL, F.TASK_DONE,
    ),
    answers=(F.ACK, F.TASK_SETTLED),
    listener=(
        F.BATCH, F.ACK, F.NODES, F.SUBSCRIBED, F.CHUNK, F.GAP, F.DROPPED,
        F.ASK, F.REQUEST, F.REPLY, F.TASKS, F.TASK_SETTLED,
    ),
)  # fmt: skip
"""A client dials a node."""

PEER_TABLE: Final = _conversation(
    hello=F.PEER_HELLO,
    welcome=F.PEER_WELCOME,
    challenge=(F.PEER_CHALLENGE, F.PEER_PROOF),
    # The dialler is the listener's client: it says what it wants, provides, lacks and mirrors …
    dialler=(
        F.INTEREST, F.CREDIT, F.REPLAY, F.PROVIDE, F.UNPROVIDE, F.BID, F.REPLY,
        F.MEMBERS, F.HOLDINGS, F.MIRROR, F.CHUNK, F.BATCH, F.FIND_REGISTRATION, F.FINISHED,
        F.COMPARE, F.DAMAGED, F.TASK_POLL, F.TASK_DONE, F.TASK_CLAIM, F.TASK_FINISHED,
    ),
    answers=(F.MIRRORED,),
    # … and the listener sends it what it asked for.
    listener=(
        F.BATCH, F.CHUNK, F.GAP, F.DROPPED, F.EXTENTS, F.ASK, F.REQUEST,
        F.MEMBERS, F.MIRRORED, F.REGISTRATION, F.COMPARED, F.DAMAGED,
        F.TASKS, F.TASK_SETTLED, F.TASK_READY,
    ),
)  # fmt: skip
"""A node dials a node; the peer dials back for the other direction."""


class Session:
    """The state of one conversation as one side sees it."""

    __slots__ = ("_row", "_side", "_table", "_usual_received", "_usual_sent", "state")

    def __init__(self, table: Table, side: Side) -> None:
        self._table = table
        self._side = side
        self._enter(State.NEW)

    def received(self, kind: F) -> State:
        """The other side sent a frame of this kind: the new state, or UnexpectedFrame."""
        return self.state if kind in self._usual_received else self._step(self._side.other, kind)

    def sent(self, kind: F) -> State:
        """This side sends a frame of this kind: the new state, or UnexpectedFrame, our own bug."""
        return self.state if kind in self._usual_sent else self._step(self._side, kind)

    def _enter(self, state: State) -> None:
        self.state = state
        self._row = self._table[state]
        # What changes nothing: asked for each frame, and to hash a pair of enums takes a while.
        self._usual_sent = self._usual(self._side)
        self._usual_received = self._usual(self._side.other)

    def _usual(self, sender: Side) -> frozenset[F]:
        return frozenset(
            kind
            for (side, kind), after in self._row.items()
            if side is sender and after is self.state
        )

    def _step(self, sender: Side, kind: F) -> State:
        state = self._row.get((sender, kind))
        if state is None:
            expected = sorted({k.name for side, k in self._row if side is sender})
            raise UnexpectedFrame(
                f"{kind.name} from the {sender.value} while the session is {self.state.value}; "
                f"expected {', '.join(expected) or 'nothing more'}"
            )
        if state is not self.state:
            self._enter(state)
        return state
