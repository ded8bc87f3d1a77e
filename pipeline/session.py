"""A Spark session that knows the bus."""

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from busnode.pipeline.java import use_java
from busnode.pipeline.worker_environment import complete_environment
from busnode.wire.errors import Refused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMAT: Final = "busnode"
"""What the logs of the bus are called where Spark reads or writes them."""

SETTINGS: Final = {
    "spark.sql.python.filterPushdown.enabled": "true",  # so that filters choose files and ranges
    "spark.sql.session.timeZone": "UTC",  # the clock of the bus
    "spark.python.unix.domain.socket.enabled": "true",  # a tenth less time for a scan
}

LOCAL_SETTINGS: Final = {
    "spark.driver.host": "127.0.0.1",  # nobody else need reach it
    "spark.driver.bindAddress": "127.0.0.1",
}

INSTALL: Final = "pip install 'busnode[spark]'"


def session(
    app: str = "busnode", master: str | None = None, settings: Mapping[str, str] | None = None
) -> "SparkSession":
    """A SparkSession on a Java that was found or brought along, set up for the format `busnode`,
    which Spark finds by itself (`pyspark_busnode`). Its streams may start at the same moment.

    Without a `master` it is the one that spark-submit or Spark's own configuration names, else
    `local[*]`. What runs already is taken up. Raises Refused when Spark or Java is missing.
    """
    try:
        from pyspark.sql import SparkSession  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise Refused(f"Spark is not installed: {INSTALL}") from error
    use_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app)
    local: Mapping[str, str] = {}
    if master is not None:
        builder = builder.master(master)
        if master.startswith("local"):
            local = LOCAL_SETTINGS
            os.environ.setdefault("SPARK_LOCAL_IP", local["spark.driver.host"])
    for name, value in {**SETTINGS, **local, **(settings or {})}.items():
        builder = builder.config(name, value)
    made = builder.getOrCreate()
    complete_environment(made, FORMAT)
    return made
