"""pyarrow, which has no types of its own: here it is Any once for all."""

from importlib import import_module
from typing import Any

pa: Any = import_module("pyarrow")

Array = Any
RecordBatch = Any
Schema = Any
