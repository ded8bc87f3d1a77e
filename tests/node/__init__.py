"""What the tests of this folder share: a small data directory, made by the real store."""

from dataclasses import dataclass, field
from pathlib import Path

import trio

from busnode.segments.file_store import FileStore
from busnode.segments.store import StoreOptions
from busnode.wire.batches import Columns, encode_columns
from busnode.wire.frames import Flags, broker_seed, encode_batch_frame
from busnode.wire.ids import BrokerId, LogId, Topic
from busnode.wire.runs import stamp_run, verify_runs
from busnode.world.real_world import real_world

FIRST_BROKER = BrokerId(bytes.fromhex("0f3a9c1e" * 4))
SECOND_BROKER = BrokerId(bytes.fromhex("b7d24410" * 4))
UTC_US = 1_700_000_000_123_456
"""2023-11-14 22:13:20.123456"""
PRODUCER_ID = 0xABCDEF


@dataclass
class DataDirectory:
    """A node's data directory that is being made."""

    path: Path
    options: StoreOptions = field(default_factory=StoreOptions)

    def __post_init__(self) -> None:
        world = real_world()
        self._store = FileStore(world.files, world.clock, str(self.path), self.options)
        self._sequence = 0

    def write(
        self, broker_id: BrokerId, topic: str, columns: Columns, utc_us: int = UTC_US
    ) -> None:
        """Append one batch and make it durable."""
        self.write_body(broker_id, topic, encode_columns(columns), len(columns.payloads), utc_us)

    def write_body(
        self, broker_id: BrokerId, topic: str, body: bytes, count: int, utc_us: int = UTC_US
    ) -> None:
        """The same for a body that need not make sense."""
        self._sequence += 1
        log = self._store.create(LogId(broker_id, Topic(topic)))
        frame = bytearray(
            encode_batch_frame(
                topic=topic.encode(),
                body=body,
                count=count,
                flags=Flags.PERSISTENT | Flags.GLOBAL,
                utc_us=utc_us,
                producer_id=PRODUCER_ID,
                producer_seq=self._sequence,
            )
        )
        view = memoryview(frame)
        (run,), _ = verify_runs(frame, view, 0, len(frame))
        stamp_run(view, run, broker_id, broker_seed(broker_id), log.next_no)
        log.append(frame, count, utc_us)
        trio.run(self._store.commit)

    def close(self) -> None:
        self._store.close()


def make_plant(path: Path) -> Path:
    """Three logs of two brokers, 9 messages: text, binary, ids, headers, times."""
    directory = DataDirectory(path)
    temps = "/plant/north/temp"
    directory.write(FIRST_BROKER, temps, Columns([b"21.5", b"21.6", b"21.7"], [2_000_000, 1, 0]))
    directory.write(FIRST_BROKER, temps, Columns([b"21.8", b"21.9"]), UTC_US + 60_000_000)
    directory.write(
        FIRST_BROKER,
        "/orders/new",
        Columns(
            ["naïve – ✓".encode(), b"\xff\xfe\x00"],
            None,
            ["order-1", None],
            [{"kind": "book", "to": "Zoë"}, None],
        ),
    )
    directory.write(SECOND_BROKER, temps, Columns([b"\x1b[31mred\nline", b""]))
    directory.close()
    return path


def segment(path: Path, broker_id: BrokerId, topic: str) -> Path:
    """The first segment file of a log."""
    for file in sorted((path / "logs" / broker_id.hex()).glob("*.seg")):
        if topic.encode() in file.read_bytes()[:512]:
            return file
    raise LookupError(topic)


def flip(file: Path, offset: int) -> None:
    data = bytearray(file.read_bytes())
    data[offset] ^= 0xFF
    file.write_bytes(data)
