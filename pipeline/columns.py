"""The columns of a table of messages."""

from typing import Any, Final

from pyspark.sql.pandas import types as pandas_types
from pyspark.sql.types import (
    BinaryType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from busnode.pipeline.arrow import Schema
from busnode.wire.errors import BadOption

TABLE: Final = StructType(
    [
        StructField("broker_id", StringType()),
        StructField("topic", StringType()),
        StructField("msg_no", LongType()),
        StructField("utc", TimestampType()),
        StructField("id", StringType()),
        StructField("headers", MapType(StringType(), StringType())),
        StructField("payload", BinaryType()),
        StructField("producer_id", LongType()),
        StructField("producer_seq", LongType()),
        StructField("holder", StringType()),
    ]
)

FLAGS: Final = StructField("flags", LongType())
"""Of the batch that a message was in, as docs/protocol.md has them: also its scope. Only who names
the column gets it."""

ARCHIVED: Final = StructType([*(each for each in TABLE if each.name != "holder"), FLAGS])
"""What a message is. Whose copy it was read from is nothing that history needs."""

_KNOWN: Final = StructType([*TABLE, FLAGS])


def arrow_schema(asked: StructType) -> Schema:
    """What Spark expects of the columns that were asked for; BadOption for one that is none."""
    for column in asked.fields:
        if column.name not in _KNOWN.names:
            raise BadOption(
                f"schema: there is no column {column.name!r}; there are {', '.join(_KNOWN.names)}"
            )
        kind: Any = _KNOWN[column.name].dataType
        if column.dataType != kind:
            raise BadOption(
                f"schema: column {column.name!r} is {kind.simpleString()}, "
                f"not {column.dataType.simpleString()}"
            )
    convert: Any = getattr(pandas_types, "to_arrow_schema")  # noqa: B009 - its type is unknown
    return convert(asked, timezone="UTC")
