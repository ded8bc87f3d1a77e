"""A folder of the system's for what nobody needs afterwards."""

import tempfile
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def scratch_directory(prefix: str) -> Generator[str, None, None]:
    """It is removed at the end of the block, with all that is in it."""
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as path:
        yield path
