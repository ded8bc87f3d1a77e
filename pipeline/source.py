"""The format `busnode`: what Spark asks for tables and streams of messages, and gives rows to."""

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from busnode.pipeline.batch import MessageReader
from busnode.pipeline.columns import TABLE, arrow_schema
from busnode.pipeline.options import sink_options, source_options
from busnode.pipeline.session import FORMAT
from busnode.pipeline.sink import MessageStreamWriter, MessageWriter, check_columns
from busnode.pipeline.stream import MessageStreamReader


class BusnodeSource(DataSource):
    """`spark.read.format("busnode")` and all that is like it."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return TABLE

    def reader(self, schema: StructType) -> MessageReader:
        return MessageReader(source_options(self.options, stream=False), arrow_schema(schema))

    def streamReader(self, schema: StructType) -> MessageStreamReader:
        return MessageStreamReader(source_options(self.options, stream=True), arrow_schema(schema))

    def writer(self, schema: StructType, overwrite: bool) -> MessageWriter:
        options = sink_options(self.options, overwrite=overwrite)
        check_columns(schema, options)
        return MessageWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> MessageStreamWriter:
        options = sink_options(self.options, overwrite=overwrite)
        check_columns(schema, options)
        return MessageStreamWriter(options)
