"""What goes out on one connection: whole pieces, in turn, and never more kept than must be."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest
import trio

from busnode.node.outgoing import (
    BYTES_BEFORE_YIELD,
    CONTROL_BYTES_MAX,
    PIECES_BEFORE_YIELD,
    Outgoing,
    Piece,
)
from busnode.segments.store import Cold, Range
from busnode.testing.sim.disk import SimDisk
from busnode.testing.sim.network import SimNetwork
from busnode.testing.sim.simulation import simulate
from busnode.testing.sim.stream import SimStream
from busnode.wire.errors import LimitReached
from busnode.wire.ids import MsgNo
from busnode.world.network import Address


@dataclass(eq=False)
class Pieces:
    """A source with a row of pieces; it notes when it was asked."""

    pieces: list[Piece]
    outgoing: Outgoing | None = None
    control: bytes = b""
    asked: int = 0
    fault: Exception | None = None

    def next_piece(self) -> Piece | None:
        self.asked += 1
        if self.fault is not None:
            raise self.fault
        if self.control and self.outgoing is not None:
            self.outgoing.send(self.control)
        return self.pieces.pop(0) if self.pieces else None


@dataclass
class Line:
    """Both ends of a connection whose buffers hold `buffer_bytes` in each direction."""

    buffer_bytes: int = 64 * 1024
    got: bytearray = field(default_factory=bytearray)

    def __post_init__(self) -> None:
        network = SimNetwork(1, buffer_bytes=self.buffer_bytes)
        near, self.far = network.connect(Address("node", 1), Address("client", 2))
        self.near: SimStream = near
        self.outgoing = Outgoing(near)

    def read(self, count: int = 1 << 20) -> int:
        """What has arrived; 0 when there is nothing."""
        view = memoryview(bytearray(count))
        found = self.far.receive_into(view) or 0
        self.got += view[:found]
        return found

    async def read_until(self, count: int) -> bytes:
        with trio.fail_after(10):
            while len(self.got) < count:
                if not self.read(count - len(self.got)):
                    await self.far.wait_readable()
        return bytes(self.got)


def run(main: Callable[[], Awaitable[None]]) -> None:
    simulate(1, main)


def a_range(data: bytes) -> Range:
    disk = SimDisk()
    file = disk.append_to("/f")
    file.append(b"before" + data + b"behind")
    return Range(disk.open("/f"), 6, len(data), MsgNo(1), MsgNo(1))


def test_all_goes_out_at_once_while_there_is_room() -> None:
    async def main() -> None:
        line = Line()
        line.outgoing.send(b"one")
        line.outgoing.send(b"two")
        assert line.outgoing.idle
        assert await line.read_until(6) == b"onetwo"

    run(main)


def test_a_control_frame_that_does_not_fit_goes_out_whole_and_before_the_next() -> None:
    async def main() -> None:
        line = Line(buffer_bytes=1000)
        out = line.outgoing
        first, second = bytes(range(256)) * 6, b"<second>"
        out.send(first)
        assert out.blocked
        out.send(second)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(out.run)
            assert await line.read_until(len(first + second)) == first + second
            nursery.cancel_scope.cancel()
        assert out.idle
        assert out.sent_bytes == len(first + second)

    run(main)


def test_a_control_frame_goes_between_pieces_and_never_into_one() -> None:
    async def main() -> None:
        line = Line(buffer_bytes=1000)
        out = line.outgoing
        source = Pieces([Piece(b"<head>", a_range(b"x" * 3000)), Piece(b"<second>")])
        out.wake(source)
        out.pump()
        assert out.blocked
        assert source.asked == 1, "it is not asked for more than the socket takes"
        out.send(b"<control>")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(out.run)
            whole = b"<head>" + b"x" * 3000 + b"<control>" + b"<second>"
            assert await line.read_until(len(whole)) == whole
            nursery.cancel_scope.cancel()

    run(main)


def test_sources_take_turns() -> None:
    async def main() -> None:
        line = Line()
        for letter in (b"a", b"b", b"c"):
            line.outgoing.wake(Pieces([Piece(letter)] * 3))
        line.outgoing.pump()
        assert await line.read_until(9) == b"abcabcabc"
        assert line.outgoing.idle

    run(main)


def test_a_source_that_had_nothing_is_asked_again_when_it_wakes() -> None:
    async def main() -> None:
        line = Line()
        source = Pieces([])
        line.outgoing.wake(source)
        line.outgoing.wake(source)
        line.outgoing.pump()
        line.outgoing.pump()
        assert source.asked == 1
        source.pieces.append(Piece(b"now"))
        line.outgoing.wake(source)
        line.outgoing.pump()
        assert await line.read_until(3) == b"now"

    run(main)


def test_a_source_may_send_a_control_frame_while_it_is_asked() -> None:
    async def main() -> None:
        line = Line()
        source = Pieces([Piece(b"piece")], line.outgoing, b"<gap>")
        line.outgoing.wake(source)
        line.outgoing.pump()
        assert await line.read_until(15) == b"piece<gap><gap>"

    run(main)


def test_a_piece_of_a_forgotten_source_goes_out_whole() -> None:
    async def main() -> None:
        line = Line(buffer_bytes=100)
        out = line.outgoing
        gone, other = Pieces([Piece(b"g" * 500)] * 5), Pieces([Piece(b"o")])
        out.wake(gone)
        out.pump()
        out.wake(other)
        out.forget(gone)
        out.forget(gone)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(out.run)
            assert await line.read_until(501) == b"g" * 500 + b"o"
            await out.wait_idle()
            nursery.cancel_scope.cancel()
        assert gone.asked == 1

    run(main)


def test_ten_thousand_sources_are_forgotten_in_any_order_at_once() -> None:
    async def main() -> None:
        out = Line(buffer_bytes=1).outgoing
        sources = [Pieces([]) for _ in range(10_000)]
        for source in sources:
            out.wake(source)
        for source in reversed(sources):
            out.forget(source)
        assert out.idle

    run(main)


def test_who_never_reads_is_given_up_although_its_socket_never_has_room() -> None:
    async def main() -> None:
        line = Line(buffer_bytes=10)
        out = line.outgoing
        async with trio.open_nursery() as nursery:
            nursery.start_soon(out.run)
            out.send(b"x" * 100)
            await trio.testing.wait_all_tasks_blocked()
            assert out.blocked
            for _ in range(9):
                out.send(bytes(CONTROL_BYTES_MAX // 8))
            # `run` returns, or the test never ends.
        assert isinstance(out.failure, LimitReached)
        kept = out._control_bytes
        out.send(bytes(CONTROL_BYTES_MAX))
        assert out._control_bytes == kept, "it keeps what can never be sent"

    run(main)


def test_what_others_send_leaves_room_for_answers() -> None:
    async def main() -> None:
        out = Line(buffer_bytes=10).outgoing
        out.send(b"x" * 100)
        assert out.has_room(CONTROL_BYTES_MAX // 2)
        out.send(bytes(CONTROL_BYTES_MAX // 2))
        assert not out.has_room(1)
        assert out.failure is None

    run(main)


def test_a_broken_connection_never_raises() -> None:
    async def main() -> None:
        line = Line()
        line.far.close()
        await trio.sleep(1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(line.outgoing.run)
            line.outgoing.send(b"x")
        assert isinstance(line.outgoing.failure, OSError)
        line.outgoing.send(b"x")
        line.outgoing.wake(Pieces([Piece(b"x")]))
        line.outgoing.pump()
        assert not line.outgoing.send_at_once(b"x", memoryview(b"y"))

    run(main)


def test_a_source_whose_disk_fails_ends_its_own_connection_only() -> None:
    async def main() -> None:
        line = Line()
        line.outgoing.wake(Pieces([], fault=OSError("the disk")))
        line.outgoing.pump()
        assert str(line.outgoing.failure) == "the disk"

    run(main)


def test_nothing_but_control_frames_follows_the_end_of_sources() -> None:
    async def main() -> None:
        line = Line()
        out = line.outgoing
        source = Pieces([Piece(b"no")])
        out.wake(source)
        out.end_sources()
        out.wake(source)
        assert not out.send_at_once(b"no", memoryview(b"no"))
        out.send(b"<goodbye>")
        assert await line.read_until(9) == b"<goodbye>"
        await trio.sleep(1)
        assert not line.read()
        assert source.asked == 0

    run(main)


def test_what_is_sent_at_once_never_overtakes() -> None:
    async def main() -> None:
        line = Line(buffer_bytes=100)
        out = line.outgoing
        assert out.send_at_once(b"<1>", memoryview(b"x" * 200)), "what is not taken is copied"
        assert not out.send_at_once(b"<2>", memoryview(b"y"))
        out.send(b"<3>")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(out.run)
            assert await line.read_until(206) == b"<1>" + b"x" * 200 + b"<3>"
            await out.wait_idle()
            assert out.send_at_once(b"<4>", memoryview(b"z"))
            assert await line.read_until(210) == b"<1>" + b"x" * 200 + b"<3><4>z"
            source = Pieces([Piece(b"first")])
            out.wake(source)
            assert not out.send_at_once(b"<5>", memoryview(b"z")), "a source waits"
            nursery.cancel_scope.cancel()

    run(main)


@pytest.mark.parametrize("taken", [1, 3, 5, 7])
def test_what_is_sent_at_once_is_cut_anywhere(taken: int) -> None:
    async def main() -> None:
        line = Line(buffer_bytes=taken)
        buffer = bytearray(b"12345")
        assert line.outgoing.send_at_once(b"abc", memoryview(buffer))
        buffer[:] = b"-----"  # it was valid only then
        async with trio.open_nursery() as nursery:
            nursery.start_soon(line.outgoing.run)
            assert await line.read_until(8) == b"abc12345"
            nursery.cancel_scope.cancel()

    run(main)


def test_one_connection_does_not_keep_the_loop_for_all_that_it_has() -> None:
    """A socket that always has room would keep it until the end of a log."""

    async def main() -> None:
        line = Line(buffer_bytes=1 << 20)
        out = line.outgoing
        source = Pieces([Piece(b"x")] * (3 * PIECES_BEFORE_YIELD))
        out.wake(source)
        out.pump()
        assert source.asked == PIECES_BEFORE_YIELD
        out.pump()
        assert source.asked == PIECES_BEFORE_YIELD, "others have their turn first"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(out.run)
            await line.read_until(3 * PIECES_BEFORE_YIELD)
            nursery.cancel_scope.cancel()
        assert out.idle

    run(main)


def test_large_pieces_keep_the_loop_for_no_longer_than_small_ones() -> None:
    async def main() -> None:
        line = Line(buffer_bytes=3 * BYTES_BEFORE_YIELD)
        range_ = a_range(bytes(BYTES_BEFORE_YIELD // 4))
        source = Pieces([Piece(b"", range_)] * 8)
        line.outgoing.wake(source)
        line.outgoing.pump()
        assert source.asked == 4
        async with trio.open_nursery() as nursery:
            nursery.start_soon(line.outgoing.run)
            await line.read_until(2 * BYTES_BEFORE_YIELD)
            nursery.cancel_scope.cancel()
        assert line.outgoing.idle

    run(main)


def test_waiting_until_idle_ends_with_the_last_byte_or_a_failure() -> None:
    async def main() -> None:
        line = Line(buffer_bytes=100)
        line.outgoing.send(b"x" * 250)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(line.outgoing.run)
            nursery.start_soon(line.read_until, 250)
            await line.outgoing.wait_idle()
            nursery.cancel_scope.cancel()
        broken = Line(buffer_bytes=100)
        broken.outgoing.send(b"x" * 250)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(broken.outgoing.run)
            nursery.start_soon(broken.outgoing.wait_idle)
            await trio.testing.wait_all_tasks_blocked()
            broken.far.close()

    run(main)


@pytest.mark.parametrize("stopped_s", [0.5, 5.0])
def test_what_a_stopped_reader_has_not_got_yet_is_fetched_anew_after_a_while(
    stopped_s: float,
) -> None:
    async def main() -> None:
        line = Line(buffer_bytes=1000)
        found = a_range(b"x" * 3000)
        fetched: list[tuple[int, int]] = []

        class Noting:
            def __getattr__(self, name: str) -> object:
                return getattr(found.file, name)

            async def fetch(self, offset: int, length: int) -> None:
                fetched.append((offset, length))
                await found.file.fetch(offset, length)

        line.outgoing.wake(Pieces([Piece(b"<head>", replace(found, file=cast(Any, Noting())))]))
        line.outgoing.pump()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(line.outgoing.run)
            await trio.sleep(stopped_s)
            assert await line.read_until(3006) == b"<head>" + b"x" * 3000
            nursery.cancel_scope.cancel()
        assert fetched == ([(6 + 994, 3000 - 994)] if stopped_s > 1 else [])

    run(main)


@pytest.mark.parametrize("broken", ["file", "socket"])
def test_a_file_that_fails_is_suspected_and_a_socket_is_not(broken: str) -> None:
    async def main() -> None:
        line = Line(buffer_bytes=1000)
        suspected: list[Range] = []
        found = a_range(b"x" * 3000)
        line.outgoing.wake(Pieces([Piece(b"<head>", found, suspected.append)]))
        async with trio.open_nursery() as nursery:
            line.outgoing.pump()
            nursery.start_soon(line.outgoing.run)
            if broken == "file":
                found.file.close()
                await line.read_until(1000)
            else:
                line.far.close()
        assert isinstance(line.outgoing.failure, OSError)
        assert suspected == ([found] if broken == "file" else [])

    run(main)


def test_who_cannot_use_what_was_fetched_ends_its_own_connection_only() -> None:
    async def main() -> None:
        out = Line().outgoing

        def fail(error: OSError | None) -> None:
            raise OSError(f"no memory after {error}")

        out.fetch(Cold(a_range(b"x")), fail)
        await out.run()
        assert str(out.failure) == "no memory after None"

    run(main)


def test_what_is_to_be_fetched_is_so_only_while_somebody_sends() -> None:
    async def main() -> None:
        out = Line().outgoing
        cold = Cold(a_range(b"x"))
        outcomes: list[OSError | None] = []
        out.fetch(cold, outcomes.append)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(out.run)
            await trio.sleep(10)
            assert outcomes == [None], "it was asked for before the session had a turn"
            nursery.cancel_scope.cancel()
        out.fetch(cold, outcomes.append)
        await trio.sleep(10)
        assert outcomes == [None]

    run(main)


def test_a_source_that_fails_ends_its_own_connection_and_not_whoever_pumps_it() -> None:
    async def main() -> None:
        line = Line()
        source = Pieces([], fault=OverflowError("a number that no frame holds"))
        line.outgoing.wake(source)
        line.outgoing.pump()
        assert "a number that no frame holds" in str(line.outgoing.failure)

    simulate(0, main)
