"""A publisher with a fixed window of batches of a fixed size, in the protocol's own words.

The client library packs as many messages into a batch as have come; here the size of a batch and
the number of those in flight are what is asked for.
"""

from collections.abc import Callable
from typing import Final

import trio

from busnode.node.bench_segments import PAYLOAD_BYTES
from busnode.wire.batches import Columns, encode_columns
from busnode.wire.control import Ack, Error, Hello, Ping, Pong, encode_control
from busnode.wire.frames import Flags, encode_batch_frame
from busnode.wire.limits import PROTOCOL_VERSION
from busnode.wire.reader import FrameReader
from busnode.world.network import Stream
from busnode.world.world import World

WINDOW_BATCHES: Final = 32
BATCH_MESSAGES: Final = 100

BODIES: Final = 16
"""Different ones that are sent in turn."""

SAMPLE_US: Final = 5000


class WindowedPublisher:
    """One connection. What is acked is counted in batches."""

    def __init__(self, world: World, stream: Stream, topic: str) -> None:
        self._world = world
        self._stream = stream
        self._topic = topic.encode()
        self._reader = FrameReader()
        self._producer_id = world.entropy.u64()
        self._bodies = [encode_columns(Columns(self._payloads())) for _ in range(BODIES)]
        self.sent = 0
        self.acked = 0
        self.levels: set[str] = set()
        self.samples: list[tuple[int, int]] = []
        """Of the last run: how many were acked at which time of the calendar, in µs."""
        stream.send(encode_control(Hello(PROTOCOL_VERSION, "bench windowed", self._producer_id)))

    def _payloads(self) -> list[bytes]:
        number = self._world.entropy.u64
        words = PAYLOAD_BYTES // 8
        return [
            b"".join(number().to_bytes(8, "little") for _ in range(words))
            for _ in range(BATCH_MESSAGES)
        ]

    async def run(self, more: Callable[[], bool]) -> None:
        """Keep the window full as long as there is more, and wait for the last ack."""
        self.levels = set()
        self.samples = [(self._world.clock.utc_us(), self.acked)]
        while True:
            frames: list[bytes] = []
            while self.sent - self.acked < WINDOW_BATCHES and more():
                frames.append(self._frame())
            if frames:
                await self._send(b"".join(frames))
            elif self.acked == self.sent:
                return
            await self._hear()

    def _frame(self) -> bytes:
        self.sent += 1
        return encode_batch_frame(
            topic=self._topic,
            body=self._bodies[self.sent % BODIES],
            count=BATCH_MESSAGES,
            flags=Flags.PERSISTENT | Flags.GLOBAL,
            utc_us=self._world.clock.utc_us(),
            producer_id=self._producer_id,
            producer_seq=self.sent,
        )

    async def _send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._stream.send(view) :]
            if view:
                await self._stream.wait_writable()

    async def _hear(self) -> None:
        await trio.lowlevel.checkpoint()
        while (count := self._stream.receive_into(self._reader.space())) is None:
            await self._stream.wait_readable()
        if not count:
            raise ConnectionError("the node has closed the connection")
        self._reader.received(count)
        for event in self._reader.events():
            match event:
                case Ack():
                    self.acked += sum(batches for _, batches, _ in event.receipts)
                    self.levels.add(event.level)
                case Ping():
                    self._stream.send(encode_control(Pong(event.token)))
                case Error():
                    raise ConnectionError(f"the node refuses: {event}")
                case _:
                    pass
        now_us = self._world.clock.utc_us()
        if now_us - self.samples[-1][0] >= SAMPLE_US:
            self.samples.append((now_us, self.acked))
