"""Which node has written which logs, as far as data directories tell.

A node keeps beside its logs which incarnations are its own, in two files of which any good one says
all (`node/ownership.py` writes them). Here they are only looked at, and never needed: where nothing
is told, nothing is assumed.
"""

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from xxhash import xxh3_64_hexdigest

from busnode.pipeline.directories import holder_of
from busnode.wire.limits import MIB
from busnode.wire.shapes import is_list, is_map
from busnode.world.files import Files, read_whole
from busnode.world.real_files import RealFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILES: Final = ("incarnations.json", "incarnations.second.json")
FILE_BYTES_MAX: Final = 16 * MIB
ORIGINS: Final = "broker_id string, origin string"


def origins(directories: Sequence[str]) -> dict[str, str]:
    """The name of the node that wrote an incarnation's logs, by brokerId in hex.

    One that several nodes take for their own is not among them: one of them has lost its files, or
    a disk was copied.
    """
    files = RealFiles()
    claims: dict[str, set[str]] = {}
    for directory in directories:
        for broker_id in own_incarnations(files, directory):
            claims.setdefault(broker_id, set()).add(holder_of(files, directory))
    return {broker_id: min(names) for broker_id, names in claims.items() if len(names) == 1}


def origins_frame(spark: "SparkSession", directories: Sequence[str]) -> "DataFrame":
    """The same as a table: broker_id, origin."""
    untyped: Any = spark
    frame: DataFrame = untyped.createDataFrame(sorted(origins(directories).items()), ORIGINS)
    return frame


def own_incarnations(files: Files, directory: str) -> list[str]:
    """What a node says it has written, as the newest good file has it; nothing where none is."""
    tables = [table for name in FILES for table in _tables(files, f"{directory}/{name}")]
    newest = max(tables, key=_version, default=None)
    own = None if newest is None else newest.get("own")
    return [each for each in own if isinstance(each, str)] if is_list(own) else []


def _tables(files: Files, path: str) -> Iterator[dict[str, Any]]:
    """The table in a file, if it is there and as it was written."""
    try:
        table = json.loads(read_whole(files, path, FILE_BYTES_MAX))
    except (OSError, ValueError, RecursionError):
        return
    if not is_map(table):
        return
    said: dict[str, Any] = {str(key): value for key, value in table.items() if key != "hash"}
    is_old = "hash" not in table and "version" not in table  # of before there were two files
    if is_old or table.get("hash") == xxh3_64_hexdigest(json.dumps(said, sort_keys=True).encode()):
        yield said


def _version(table: dict[str, Any]) -> int:
    version = table.get("version", 0)
    return version if isinstance(version, int) else 0
