"""What one task of an archive does: a range of a log as Parquet files, one for each day, verified.

A file is written whole, synced, and read back from where it lies. It counts only if it then has as
many rows as the log has messages there, with the same hash.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import numpy as np
from xxhash import xxh3_64_hexdigest

from busnode.pipeline.arrow import RecordBatch, Schema, Table, pa, parquet
from busnode.pipeline.logs import LogRange, Logs
from busnode.pipeline.record_rows import RecordRows
from busnode.pipeline.row_digest import RowDigest
from busnode.segments.bucket import make_durable_directory
from busnode.wire.errors import DataLost, StorageFailed
from busnode.wire.ids import LogId
from busnode.world.files import Files
from busnode.world.real_files import RealFiles

GATHERED_BYTES_MAX: Final = 96 * 1024 * 1024
"""What a task holds before it writes files, however many days that makes: a range of a file is
some 32 MiB; one that is fetched from a cluster may be larger."""

ROW_GROUP_ROWS: Final = 131_072

DAY_US: Final = 24 * 3600 * 1_000_000
LAST_DAY: Final = (datetime(9999, 12, 31) - datetime(1970, 1, 1)).days

COMPRESSION: Final = "zstd"
DICTIONARIES: Final = ["broker_id", "topic", "id", "producer_id", "producer_seq", "flags"]
"""Columns whose values come again and again. Payloads seldom do, and to find that out costs more
than all the rest."""


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """One file of an archive, as its manifest has it."""

    path: str
    """From the folder of its run on."""
    broker_id: str
    topic: str
    date: str
    first_no: int
    last_no: int
    rows: int
    size_bytes: int
    digest: str

    def fields(self) -> dict[str, Any]:
        return asdict(self)


class _Gathered:
    """Rows of one part that wait to become files."""

    def __init__(self) -> None:
        self.days: dict[int, list[RecordBatch]] = {}
        self.size_bytes = 0

    def add(self, batch: RecordBatch) -> None:
        self.size_bytes += batch.nbytes
        utc_us = batch.column("utc").view(pa.int64()).to_numpy()
        days = np.clip(utc_us // DAY_US, 0, LAST_DAY)  # a producer's clock may say anything
        if days[0] == days[-1] and (days == days[0]).all():
            self.days.setdefault(int(days[0]), []).append(batch)
            return
        for day in np.unique(days).tolist():
            self.days.setdefault(day, []).append(batch.filter(pa.array(days == day)))


def write_range(
    logs: Logs, part: LogRange, schema: Schema, directory: str, name: str, *, tolerant: bool
) -> list[ArchivedFile]:
    """The range as verified files below `directory`, in names that begin with `name`.

    DataLost where it cannot be read whole, unless it is tolerant; StorageFailed where what was
    written does not read back as it was.
    """
    files = RealFiles()
    rows = RecordRows(schema, part.log_id, part.span, tolerant=tolerant)
    made: list[ArchivedFile] = []
    gathered = _Gathered()

    def write() -> None:
        nonlocal gathered
        for day, batches in sorted(gathered.days.items()):
            table = pa.Table.from_batches(batches, schema)
            path = f"{shelf(part.log_id)}/date={date_of(day)}/{name}-{len(made)}.parquet"
            made.append(_write_file(files, directory, path, table, part.log_id, date_of(day)))
        gathered = _Gathered()

    for batch in _batches(logs, part, rows):
        gathered.add(batch)
        if gathered.size_bytes >= GATHERED_BYTES_MAX:
            write()
    write()
    wanted, there = part.span.last_no - part.span.first_no + 1, sum(each.rows for each in made)
    if there != wanted and not tolerant:
        raise DataLost(
            f"{there} of the messages {part.span.first_no}–{part.span.last_no} of {part.log_id} "
            f"were read, not {wanted}"
        )
    return made


def _batches(logs: Logs, part: LogRange, rows: RecordRows) -> Iterator[RecordBatch]:
    for stretch in logs.read(part):
        yield from rows.add(stretch)
    yield from rows.finish()


def _write_file(
    files: Files, directory: str, path: str, table: Table, log_id: LogId, date: str
) -> ArchivedFile:
    digest = RowDigest()
    digest.add_table(table)
    sink = pa.BufferOutputStream()
    parquet.write_table(
        table, sink, compression=COMPRESSION, row_group_size=ROW_GROUP_ROWS,
        use_dictionary=DICTIONARIES,
    )  # fmt: skip
    buffer = sink.getvalue()
    whole = f"{directory}/{path}"
    make_durable_directory(files, whole.rpartition("/")[0])
    if files.exists(whole):
        files.remove(whole)  # of an attempt that was ended
    file = files.append_to(whole)
    try:
        file.append(memoryview(buffer))
        file.sync()
    finally:
        file.close()
    files.sync_directory(whole.rpartition("/")[0])
    numbers = table.column("msg_no")
    made = ArchivedFile(
        path, log_id.broker_id.hex(), log_id.topic, date,
        numbers[0].as_py(), numbers[-1].as_py(), table.num_rows, buffer.size, digest.hexdigest(),
    )  # fmt: skip
    read_verified(directory, made)
    return made


def read_verified(directory: str, file: ArchivedFile) -> Table:
    """What a file holds, if it is what its manifest says; StorageFailed if not."""
    whole = f"{directory}/{file.path}"
    try:
        # Neither the folders' names, which tell the date, nor anything else is made a column.
        table = parquet.ParquetFile(whole).read()
        digest = RowDigest()
        digest.add_table(table)
    except (OSError, ValueError, KeyError) as error:
        raise StorageFailed(f"{whole} cannot be read: {error!s:.200}") from error
    if (digest.rows, digest.hexdigest()) != (file.rows, file.digest):
        raise StorageFailed(
            f"{whole} has {digest.rows} rows with hash {digest.hexdigest()}; the log had "
            f"{file.rows} with {file.digest}"
        )
    return table


def date_of(day: int) -> str:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=day)).date().isoformat()


def shelf(log_id: LogId) -> str:
    """The folder of a topic: what can be read of its name, and a hash. The topic itself, which may
    be longer than a file's name and hold anything, is a column."""
    # The hash alone keeps two topics apart that differ in what is replaced.
    plain = "".join(c if c.isascii() and c.isalnum() else "-" for c in log_id.topic[1:])
    return f"shelf={plain[:60]}-{xxh3_64_hexdigest(log_id.topic.encode())}"
