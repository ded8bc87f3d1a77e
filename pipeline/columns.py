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


def arrow_schema(asked: StructType) -> Schema:
    """What Spark expects of the columns that were asked for; BadOption for one that is none."""
    for column in asked.fields:
        if column.name not in TABLE.names:
            raise BadOption(
                f"schema: there is no column {column.name!r}; there are {', '.join(TABLE.names)}"
            )
        kind: Any = TABLE[column.name].dataType
        if column.dataType != kind:
            raise BadOption(
                f"schema: column {column.name!r} is {kind.simpleString()}, "
                f"not {column.dataType.simpleString()}"
            )
    convert: Any = getattr(pandas_types, "to_arrow_schema")  # noqa: B009 - its type is unknown
    return convert(asked, timezone="UTC")
