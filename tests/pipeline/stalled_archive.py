"""The tasks of an archive in a process of its own, which then stands still, to be killed.

    python -m tests.pipeline.stalled_archive DATA_DIRECTORY ARCHIVE

It does what `archive` does, without Spark around the tasks, up to where the run would be finished.
"""

import signal
import sys

from busnode.pipeline.archive_files import write_range
from busnode.pipeline.archive_runs import Archive
from busnode.pipeline.columns import ARCHIVED, arrow_schema
from busnode.pipeline.directories import Directories
from busnode.pipeline.record_rows import Span
from busnode.wire.ids import Pattern
from busnode.world.real_files import RealFiles


def write_and_stall(source: str, to: str) -> None:
    archive = Archive(RealFiles(), to)
    schema = arrow_schema(ARCHIVED)
    with archive.locked():
        logs = Directories([source], Pattern("/*"))
        for log_id, extent in logs.extents().items():
            for part in logs.ranges(log_id, Span(*extent), None):
                write_range(logs, part, schema, archive.making, "0", tolerant=False)
        signal.pause()


if __name__ == "__main__":
    write_and_stall(*sys.argv[1:])
