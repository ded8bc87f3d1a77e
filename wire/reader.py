"""Bytes in, events out: how one side reads a connection.

The owner of the socket asks for `space()`, receives into it, says `received(n)` and walks through
`events()`. A run points into the reader's buffer and is valid until `space()` is called again:
what is to live longer must be copied or written before. Any split of the same bytes gives the same
batches and messages; only the grouping into runs differs.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from busnode.wire import limits
from busnode.wire.control import Chunk, Control, decode_control
from busnode.wire.copied import CopiedLog, copied_log, verify_copied
from busnode.wire.errors import BadFrame, UnexpectedFrame
from busnode.wire.frames import PREFIX, PREFIX_BYTES, TYPE_AT, FrameType, check_prefix
from busnode.wire.runs import PLAIN_KINDS, Run, verify_runs

SPACE_BYTES_FIRST: Final = 4 * limits.KIB
"""What an idle connection costs."""

SPACE_BYTES_MAX: Final = 512 * limits.KIB
"""The buffer of a busy connection: one system call brings hundreds of batches. Larger gains
nothing: the data falls out of the processor's cache between receiving and hashing."""

_BATCH: Final = int(FrameType.BATCH)


@dataclass(frozen=True, slots=True)
class Runs:
    """Runs that came one behind the other. `chunk` announced them, or None for live ones."""

    runs: list[Run]
    chunk: Chunk | None


class FrameReader:
    """The receiving half of one connection. After an error it is of no more use."""

    __slots__ = (
        "_buffer",
        "_chunk",
        "_chunk_kinds",
        "_chunk_left",
        "_copied",
        "_copies",
        "_end",
        "_handed",
        "_kinds",
        "_start",
        "_view",
        "awaited",
    )

    def __init__(self, kinds: frozenset[int] = PLAIN_KINDS, *, copies: bool = False) -> None:
        """With `copies` each chunk is records of the log that it names, and its runs are
        `CopiedRun`s: what a mirror takes."""
        self._buffer = bytearray(SPACE_BYTES_FIRST)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0
        self._kinds = kinds
        # What a chunk announces may come from a disk, and there no batch has transport flags.
        self._chunk_kinds = kinds | PLAIN_KINDS
        self._chunk: Chunk | None = None
        self._chunk_left = 0
        self._copies = copies
        self._copied: CopiedLog | None = None
        """The log of the chunk that is being read, when it is copied."""
        self._handed: Chunk | None = None
        self.awaited: FrameType | None = None
        """The only type that is taken, or None for all: so that a stranger whose first frame is
        not its greeting is turned away at its first eight bytes, whatever length it announces."""

    @property
    def view(self) -> memoryview:
        """The buffer that runs point into."""
        return self._view

    @property
    def suspected(self) -> Chunk | None:
        """After an error: the records that were being read, or that the caller was looking at."""
        chunk = self._handed or self._chunk
        return chunk if chunk is not None and chunk.first_no else None

    @property
    def buffered_bytes(self) -> int:
        """What came and was not handed on yet: the beginning of an unfinished frame."""
        return self._end - self._start

    @property
    def space_bytes(self) -> int:
        """What its buffer takes."""
        return len(self._buffer)

    def space(self) -> memoryview:
        """Where to receive to; never empty. It ends the life of all runs handed out before."""
        size = len(self._buffer)
        left = self._end - self._start
        if size > SPACE_BYTES_MAX and self._fits_ordinary_space():
            # A large frame has gone through: give its memory back.
            self._replace(SPACE_BYTES_MAX)
        elif self._end == size and (left * 2 > size or size < SPACE_BYTES_MAX):
            # Full: double it. So a frame takes memory as its bytes come, not as its length says.
            self._replace(size * 2)
        elif self._start:
            self._view[:left] = self._view[self._start : self._end]
            self._start, self._end = 0, left
        return self._view[self._end :]

    def _fits_ordinary_space(self) -> bool:
        """Whether what is left, and the frame that it begins, needs no large buffer.

        Not only when nothing is left: on a busy connection the next frame has nearly always begun.
        """
        left = self._end - self._start
        if not PREFIX_BYTES <= left <= SPACE_BYTES_MAX // 2:
            return not left
        length: int = PREFIX.unpack_from(self._view, self._start)[0]
        return length <= SPACE_BYTES_MAX

    def _replace(self, size: int) -> None:
        left = self._end - self._start
        buffer = bytearray(size)
        buffer[:left] = self._view[self._start : self._end]
        # Not released: a caller may still hold a slice of it, and then it lives as long as that.
        self._buffer = buffer
        self._view = memoryview(buffer)
        self._start, self._end = 0, left

    def received(self, count: int) -> None:
        """The first `count` bytes of the space are filled."""
        assert 0 <= count <= len(self._buffer) - self._end
        self._end += count

    def events(self) -> Iterator[Runs | Control]:
        """All that is complete. Raises a ProtocolError where the bytes break the protocol."""
        while self._end - self._start >= PREFIX_BYTES:
            if self.awaited is not None:
                _, kind = check_prefix(self._view, self._start)
                if kind != self.awaited:
                    raise UnexpectedFrame(
                        f"{FrameType(kind).name} frame where {self.awaited.name} must come first"
                    )
            if self._chunk is not None:
                end = min(self._end, self._start + self._chunk_left)
            else:
                end = self._end
            chunk = self._chunk
            if chunk is not None or self._buffer[self._start + TYPE_AT] == _BATCH:
                runs, reached = self._verify(end)
                if reached > self._start:
                    self._advance(reached)
                    self._handed = chunk
                    yield Runs(runs, chunk)
                    self._handed = None
                    continue
            if end - self._start < PREFIX_BYTES:
                raise self._cut_in_chunk()
            length, kind = check_prefix(self._view, self._start)
            if chunk is not None and (kind != FrameType.BATCH or length > self._chunk_left):
                raise self._cut_in_chunk()
            if self._end - self._start < length:
                return
            if kind == FrameType.BATCH:
                raise BadFrame("batch whose transport flags this side does not take")
            message = decode_control(self._view[self._start : self._start + length])
            self._start += length
            if isinstance(message, Chunk) and message.length:
                self._chunk, self._chunk_left = message, message.length
                if self._copies:
                    self._copied = copied_log(message.broker_id, message.topic.encode())
            yield message

    def _verify(self, end: int) -> tuple[list[Run], int]:
        """The runs that are all there, and where they end."""
        if self._copied is None:
            kinds = self._kinds if self._chunk is None else self._chunk_kinds
            return verify_runs(self._buffer, self._view, self._start, end, kinds)
        copied = verify_copied(self._view, self._start, end, self._copied)
        return ([], self._start) if copied is None else ([copied], copied.end)

    def _advance(self, reached: int) -> None:
        if self._chunk is not None:
            self._chunk_left -= reached - self._start
            if not self._chunk_left:
                self._chunk = self._copied = None
        self._start = reached

    def _cut_in_chunk(self) -> BadFrame:
        return BadFrame(f"chunk with {self._chunk_left} bytes to come that are not whole batches")
