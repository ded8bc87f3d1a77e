"""Hostile frames for a real node, on both of its listeners and in every state of a session.

Meanwhile a well-behaved client publishes and consumes: nothing of what it does may fail, be late or
out of order. The node must stay alive, log no failure of its own, keep its memory and its event
loop. Run by `scripts/fuzz`, and in short by the tests.
"""

import argparse
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, Final

import trio

from busnode.client import Bus, Subscription, connect
from busnode.wire.control import Error, Ping, Pong, encode_control
from busnode.wire.ids import BrokerId
from busnode.wire.reader import FrameReader
from busnode.wire.runs import DELIVERED_KINDS

from .guarded import KEY, Papers, token_of
from .hostile_frames import CLIENTS, GUARDED_STATES, IDENTITY, PEERS, STATES, Hostile
from .process_cluster import PATIENCE_S, Node, logged_failure

ROOT: Final = Path(__file__).parents[2]
HOSTILE_AT_ONCE: Final = 16
FRAMES_A_SESSION: Final = 60
WARM_UP: Final = 0.2
"""The share of the frames after which the node's memory is measured first."""

GROWTH_BYTES_MAX: Final = 32 * 1024 * 1024
STEP_MS_MAX: Final = 50.0
PACE_S: Final = 0.002
"""Between two messages of the well-behaved client."""

MIB: Final = 1024 * 1024

GOOD: Final = "good"
ACL: Final = f"""
[{GOOD}.allow]
any = ["/*"]

[{IDENTITY}.allow]
any = ["/hostile/*", "/+/+/+", "/$task/q", "/$sys/*"]

[{IDENTITY}.deny]
any = ["/good", "/hostile/3/*"]
"""
"""Of a guarded node: hostile clients come in, and have something that they may do."""


@dataclass
class Report:
    """What happened, to be printed and judged."""

    frames: int = 0
    sessions: Counter[str] = field(default_factory=Counter)
    """By listener and state."""
    outcomes: Counter[str] = field(default_factory=Counter)
    good: int = 0
    """Messages of the well-behaved client, acked and received."""
    slowest_s: float = 0.0
    """From publishing to having it back."""
    growth_bytes: int = 0
    longest_step_ms: float = 0.0
    longest_step: str = ""
    longest_gc_ms: float = 0.0
    """Of Python's collector, which no frame is to blame for."""
    warm_at: float = 0.0
    over_at: float = 0.0
    took_s: float = 0.0
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        outcomes = ", ".join(f"{n} {what}" for what, n in self.outcomes.most_common())
        return (
            f"{self.frames} frames in {self.sessions.total()} sessions, {self.took_s:.0f} s; the "
            f"node has grown by {self.growth_bytes / MIB:.1f} MiB, its loop was kept for "
            f"{self.longest_step_ms:.1f} ms at most ({self.longest_step or 'nobody'}; garbage "
            f"collection {self.longest_gc_ms:.1f} ms); "
            f"{self.good} messages of the good client, back after {1e3 * self.slowest_s:.0f} ms at "
            f"most; sessions ended: {outcomes}"
        )


class Connection:
    """One hostile connection; what it is told is looked at for errors and pongs alone."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._reader = FrameReader(DELIVERED_KINDS)
        self.codes: list[str] = []
        self.closed = False
        self.pongs: set[int] = set()
        self.greeted = False

    async def send(self, data: bytes) -> None:
        try:
            await self._stream.send_all(data)
        except trio.BrokenResourceError:
            self.closed = True

    async def send_last(self, data: bytes) -> None:
        await self.send(data)
        with suppress(trio.BrokenResourceError):
            await self._stream.send_eof()

    async def hear(self) -> None:
        """Take what comes next."""
        space = self._reader.space()
        try:
            count = await self._stream.socket.recv_into(space)
        except OSError:
            count = 0
        if not count:
            self.closed = True
            return
        self._reader.received(count)
        for event in self._reader.events():
            if isinstance(event, Error) and event.refused is None:
                self.codes.append(event.code)
            elif isinstance(event, Pong):
                self.pongs.add(event.token)
            self.greeted = True

    async def until_answered(self, token: int) -> bool:
        """Whether it has answered a PING, and not ended before."""
        while token not in self.pongs and not self.closed:
            await self.hear()
        return not self.closed


class Fuzzer:
    """One run against one node."""

    def __init__(self, node: Node, pid: int, seed: int, frames: int, *, guarded: bool) -> None:
        """`guarded`: the node wants to know who comes."""
        self._token = token_of(GOOD) if guarded else None
        self._hostile_token, self._key_id = (
            (token_of(IDENTITY), KEY.key_id) if guarded else ("", b"")
        )
        self.states = GUARDED_STATES if guarded else STATES
        self.report = Report()
        self._node = node
        self._pid = pid
        self._seed = seed
        self._frames = frames
        self._numbers = count()
        self._brokers = [BrokerId(bytes.fromhex(node.told["broker_id"]))]
        self._running: set[int] = set()
        self._resident_bytes = 0

    async def run(self, progress: Callable[[str], None]) -> Report:
        began = time.monotonic()
        async with trio.open_nursery() as good:
            stop = trio.Event()
            await good.start(self._behave, stop)
            async with trio.open_nursery() as hostile:
                hostile.start_soon(self._tell, progress)
                async with trio.open_nursery() as workers:
                    for _ in range(HOSTILE_AT_ONCE):
                        workers.start_soon(self._harm)
                hostile.cancel_scope.cancel()
            stop.set()
        self.report.growth_bytes = self.resident_bytes() - self._resident_bytes
        self.report.over_at = time.monotonic()
        self.report.took_s = self.report.over_at - began
        return self.report

    def resident_bytes(self) -> int:
        pages = int(Path(f"/proc/{self._pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    async def _tell(self, progress: Callable[[str], None]) -> None:
        while True:
            await trio.sleep(5)
            if self._resident_bytes:
                self.report.growth_bytes = self.resident_bytes() - self._resident_bytes
            progress(str(self.report))

    # The well-behaved client ----------------------------------------------------------------------

    async def _behave(self, stop: trio.Event, task_status: trio.TaskStatus[None]) -> None:
        sent_at: dict[bytes, float] = {}
        known: dict[str, Any] = {"deadline_s": PATIENCE_S, "token": self._token}
        async with (
            connect(self._node.url, name="good publisher", **known) as out,
            connect(self._node.url, name="good consumer", **known) as back,
            back.subscribe("/good", on_gap="raise") as messages,
        ):
            task_status.started()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._publish, out, sent_at, stop)
                try:
                    await self._consume(messages, sent_at)
                except trio.TooSlowError:
                    self.report.wrong.append("a message of the good client never came")
                    nursery.cancel_scope.cancel()
            connections = out.statistics().connections, back.statistics().connections
            if connections != (1, 1):
                self.report.wrong.append(f"the good client had to connect again: {connections}")

    async def _consume(self, messages: Subscription, sent_at: dict[bytes, float]) -> None:
        for number in count():
            with trio.fail_after(PATIENCE_S):
                message = await anext(messages)
            if message.payload == b"end":
                break
            if message.payload != b"%d" % number:
                self.report.wrong.append(f"{message.payload!r} came in place of {number}")
            self.report.good += 1
            took_s = time.monotonic() - sent_at.pop(message.payload)
            self.report.slowest_s = max(self.report.slowest_s, took_s)

    async def _publish(self, out: Bus, sent_at: dict[bytes, float], stop: trio.Event) -> None:
        last_no = 0
        for number in count():
            payload = b"end" if stop.is_set() else b"%d" % number
            sent_at[payload] = time.monotonic()
            receipt = await out.publish("/good", payload, persistent=True)
            if receipt.msg_no != last_no + 1:
                self.report.wrong.append(f"receipt {receipt.msg_no} after {last_no}")
            last_no = receipt.msg_no
            if payload == b"end":
                break
            await trio.sleep(PACE_S)

    # The others -----------------------------------------------------------------------------------

    async def _harm(self) -> None:
        while self.report.frames < self._frames and not self.report.wrong:
            number = next(self._numbers)
            self._running.add(number)
            try:
                await self._session(number)
            except (OSError, trio.BrokenResourceError) as error:
                running = sorted(self._running)
                self.report.wrong.append(f"session {number}: {error!r}, during {running}")
            self._running.discard(number)
            if not self._resident_bytes and self.report.frames > WARM_UP * self._frames:
                self._resident_bytes = self.resident_bytes()
                self.report.warm_at = time.monotonic()

    async def _session(self, number: int) -> None:
        chance = Random(f"{self._seed}/{number}")
        door = chance.choice([CLIENTS, PEERS])
        state = chance.choice(self.states[door])
        hostile = Hostile(
            chance, door, self._brokers, token=self._hostile_token, key_id=self._key_id
        )
        async with self._opened(hostile, state) as connection:
            outcome = await self._attack(connection, hostile, chance, state)
        self.report.sessions[f"{door} {state}"] += 1
        self.report.outcomes[outcome] += 1
        if outcome == "never answered":
            self.report.wrong.append(f"session {number} ({door}, {state}) was {outcome}")

    @asynccontextmanager
    async def _opened(self, hostile: Hostile, state: str) -> AsyncIterator[Connection]:
        """A session that has come as far as a state."""
        at = self._node.told["client" if hostile.door == CLIENTS else "peer"]
        host, _, port = at.rpartition(":")
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            stream.setsockopt(trio.socket.IPPROTO_TCP, trio.socket.TCP_NODELAY, True)
            connection = Connection(stream)
            if state != "new":
                await connection.send(encode_control(hostile.greeting(self._node.cluster_id)))
                with trio.fail_after(PATIENCE_S):
                    while not (connection.greeted or connection.closed):
                        await connection.hear()
            for frame in hostile.opening(state):
                await connection.send(frame)
            yield connection

    async def run_to_the_end(self) -> None:
        """The node is told to leave while hostile sessions of all kinds are there and go on."""
        leaving = trio.Event()
        async with trio.open_nursery() as nursery:
            for door, states in self.states.items():
                for state in states:
                    await nursery.start(self._harm_to_the_end, door, state, leaving)
            self._node.send(signal.SIGTERM)
            leaving.set()

    async def _harm_to_the_end(
        self, door: str, state: str, leaving: trio.Event, task_status: trio.TaskStatus[None]
    ) -> None:
        chance = Random(f"{self._seed}/{door}/{state}")
        hostile = Hostile(
            chance, door, self._brokers, token=self._hostile_token, key_id=self._key_id
        )
        async with self._opened(hostile, state) as connection, trio.open_nursery() as nursery:
            task_status.started()
            nursery.start_soon(self._hear_to_the_end, connection, nursery.cancel_scope)
            await leaving.wait()
            for _ in range(FRAMES_A_SESSION):
                await connection.send(hostile.well_formed())
                self.report.frames += not connection.closed
            await connection.send(hostile.broken())
        self.report.sessions[f"{door} {state}, and the node leaves"] += 1

    async def _hear_to_the_end(self, connection: Connection, scope: trio.CancelScope) -> None:
        with trio.move_on_after(PATIENCE_S) as patience:
            while not connection.closed:
                await connection.hear()
        if patience.cancelled_caught:
            self.report.wrong.append("a node that leaves does not end its sessions")
        scope.cancel()

    async def _attack(
        self, connection: Connection, hostile: Hostile, chance: Random, state: str
    ) -> str:
        """Frames of the right form, which it must answer or refuse; then a broken one."""
        if state not in ("new", "leaving"):
            frames = [hostile.well_formed() for _ in range(chance.randrange(FRAMES_A_SESSION))]
            with trio.move_on_after(PATIENCE_S) as patience:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(connection.send, b"".join([*frames, ping(7)]))
                    await connection.until_answered(7)
                    nursery.cancel_scope.cancel()
            if patience.cancelled_caught:
                return "never answered"
            if connection.closed:
                self.report.frames += 1  # of those before it nobody knows
                return ended(connection)
            self.report.frames += len(frames)
        self.report.frames += 1
        # What may be the beginning of a longer frame is answered when no more can come.
        with trio.move_on_after(PATIENCE_S) as patience:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(connection.send_last, hostile.broken() + ping(8))
                while not connection.closed:
                    await connection.hear()
                nursery.cancel_scope.cancel()
        return "never answered" if patience.cancelled_caught else ended(connection, 8)


def ping(token: int) -> bytes:
    return encode_control(Ping(token))


def ended(connection: Connection, token: int = 0) -> str:
    """What the node made of the last frame."""
    if connection.codes:
        return connection.codes[-1]
    return "taken" if token in connection.pongs else "closed"


async def fuzz(
    folder: Path,
    seed: int,
    frames: int,
    progress: Callable[[str], None],
    *,
    guarded: bool = False,
) -> Report:
    """Everything from starting a node to its end, which it must come to in peace."""
    papers = Papers(folder / "papers", GOOD, IDENTITY, acl=ACL)
    steps = folder / "steps"
    steps.touch()
    node = Node(f"fuzz-{os.urandom(6).hex()}", "n1", folder, log_level="error", mdns="off",
                drain_timeout="3s", **(papers.settings if guarded else {}))  # fmt: skip
    node.command = [
        sys.executable, "-c",
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        f"from tests.node.watched_node import run_watched; run_watched({str(steps)!r})", "start",
    ]  # fmt: skip
    await trio.to_thread.run_sync(node.start)
    try:
        fuzzer = Fuzzer(node, node.pid, seed, frames, guarded=guarded)
        report = await fuzzer.run(progress)
        await fuzzer.run_to_the_end()
        code = await trio.to_thread.run_sync(node.wait)
        if code != 0:
            report.wrong.append(f"the node has ended with {code}")
    finally:
        node.end()
    for line in steps.read_text().splitlines():
        at, took_ms, name = line.split()
        # Before it is warm it imports what dialling a name takes; in the end it closes its files.
        if not report.warm_at < float(at) < report.over_at:
            continue
        if name == "gc":
            report.longest_gc_ms = max(report.longest_gc_ms, float(took_ms))
        elif float(took_ms) > report.longest_step_ms:
            report.longest_step_ms, report.longest_step = float(took_ms), name
    if report.longest_step_ms > STEP_MS_MAX:
        report.wrong.append(
            f"{report.longest_step} has kept the loop for more than {STEP_MS_MAX} ms"
        )
    if report.growth_bytes > GROWTH_BYTES_MAX:
        report.wrong.append(f"memory has grown by {report.growth_bytes} bytes")
    log = (folder / "n1.log").read_text()
    if failure := logged_failure(log):
        report.wrong.append(f"the node has logged a failure: {failure}")
    return report


def main() -> None:
    words = argparse.ArgumentParser("scripts/fuzz", description=__doc__)
    words.add_argument("--frames", type=int, default=200_000)
    words.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4)))
    words.add_argument("--guarded", action="store_true", help="a node with a key, users and rules")
    given = words.parse_args()
    print(f"seed {given.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="busnode-fuzz-") as folder:

        def progress(line: str) -> None:
            print(line, flush=True)

        run = partial(fuzz, guarded=given.guarded)
        report = trio.run(run, Path(folder), given.seed, given.frames, progress)
    print(f"in all: {report}")
    for where, sessions in sorted(report.sessions.items()):
        print(f"{sessions:8} sessions: {where}")
    for sentence in report.wrong:
        print(sentence)
    if report.wrong:
        again = f"--frames {given.frames} --seed {given.seed}{' --guarded' * given.guarded}"
        print(f"FAILED; to repeat: scripts/fuzz {again}")
        sys.exit(1)


if __name__ == "__main__":
    main()
