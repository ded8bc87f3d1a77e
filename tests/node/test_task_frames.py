"""Tasks on their way out: what is held goes out together, and no piece is too large."""

from busnode.node.outgoing import Outgoing
from busnode.node.task_frames import JOINED_BYTES, TaskFrames


class Taker:
    """A stream that takes all, and knows in how many pieces."""

    peer = "somebody"

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def send(self, data: bytes | memoryview) -> int:
        self.pieces.append(bytes(data))
        return len(data)


def frames() -> tuple[Taker, Outgoing, TaskFrames]:
    taker = Taker()
    outgoing = Outgoing(taker)  # type: ignore[arg-type]
    return taker, outgoing, TaskFrames(outgoing)


def test_what_is_sent_goes_at_once() -> None:
    taker, _, sending = frames()
    sending.send(b"one")
    sending.send(b"two")
    assert taker.pieces == [b"one", b"two"]


def test_what_is_held_goes_as_one_piece_with_what_follows() -> None:
    taker, outgoing, sending = frames()
    sending.hold(b"answer ")
    sending.send(b"task")
    assert taker.pieces == []
    sending.let_go()
    assert taker.pieces == [b"answer task"]
    assert outgoing.queued_bytes == 0
    sending.send(b"next")
    assert taker.pieces == [b"answer task", b"next"]


def test_an_answer_after_which_nothing_follows_goes_alone() -> None:
    taker, _, sending = frames()
    sending.hold(b"answer")
    sending.let_go()
    assert taker.pieces == [b"answer"]


def test_large_frames_are_not_joined() -> None:
    taker, outgoing, sending = frames()
    large = bytes(JOINED_BYTES)
    sending.hold(b"answer")
    sending.send(large)
    sending.let_go()
    assert taker.pieces == [b"answer", large]
    assert outgoing.queued_bytes == 0
