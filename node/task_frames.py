"""Tasks on their way out over one connection, in turn with what subscriptions send."""

from collections import deque

from busnode.node.outgoing import Outgoing, Piece


class TaskFrames:
    """A `Source` of a connection's `Outgoing`. Bounded by what was polled for."""

    def __init__(self, outgoing: Outgoing) -> None:
        self._outgoing = outgoing
        self._frames: deque[bytes] = deque()

    def send(self, frame: bytes) -> None:
        self._frames.append(frame)
        self._outgoing.queue(len(frame))
        self._outgoing.wake(self)
        self._outgoing.pump()

    def next_piece(self) -> Piece | None:
        if not self._frames:
            return None
        frame = self._frames.popleft()
        self._outgoing.queue(-len(frame))
        return Piece(frame)
