"""An archive in a process of its own that stands still before it makes a run visible, to be killed.

python -m tests.pipeline.stalled_archive DATA_DIRECTORY ARCHIVE
"""

import signal
import sys
from typing import Any

from busnode.pipeline import session
from busnode.pipeline.archive import archive
from busnode.pipeline.archive_runs import Archive
from busnode.pipeline.options import source_options
from busnode.world.real_clock import RealClock


def stall(*_: Any) -> None:
    signal.pause()


if __name__ == "__main__":
    Archive.finish = stall  # type: ignore[method-assign,assignment]
    source, to = sys.argv[1:]
    spark = session("stalled", "local[2]", {"spark.ui.enabled": "false"})
    archive(spark, source_options({"path": source}, stream=False), to, RealClock())
