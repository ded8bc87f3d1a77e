"""pyarrow, which has no types of its own: here it is Any once for all."""

from importlib import import_module
from typing import Any

pa: Any = import_module("pyarrow")
compute: Any = import_module("pyarrow.compute")
parquet: Any = import_module("pyarrow.parquet")

Array = Any
RecordBatch = Any
Schema = Any
Table = Any
