"""The jobs as a declarative pipeline, run by `spark-pipelines` itself, twice."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import Row as RowOfTable
from pyspark.sql import SparkSession

from busnode.pipeline.health import ROCKSDB
from busnode.pipeline.java import use_java
from busnode.tasks import journal
from busnode.wire.ids import Topic
from tests.segments.samples import UTC_US

from .conftest import SETTINGS as SHARED
from .conftest import said
from .written_logs import ORDERS, OTHERS, Row, numbered, write_log

pytestmark = pytest.mark.spark

S = 1_000_000
SPEC = """\
name: bus
storage: file://{folder}/storage
libraries:
  - glob:
      include: transformations/**
configuration:
  spark.busnode.path: {path}
  spark.sql.pipelines.execution.maxConcurrentFlows: "1"
  {provider}
"""
DEFINITIONS = "from busnode.pipeline.declared import declare\n\ndeclare(spark)\n"
SETTINGS = {
    **SHARED,
    "spark.sql.catalogImplementation": "hive",  # or a second run does not know what the first made
    "spark.driver.host": "127.0.0.1",
}


def run_pipeline(folder: Path) -> str:
    use_java()
    program = Path(sys.executable).parent / "spark-pipelines"
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_CONF_DIR": str(folder / "conf"),
        # There are two JVMs; the one that waits for the other reads no settings.
        "JDK_JAVA_OPTIONS": SHARED["spark.driver.extraJavaOptions"],
    }
    done = subprocess.run(
        [program, "run"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, said(done.stdout + done.stderr)
    return done.stdout + done.stderr


def running_at_most(log: str) -> int:
    """How many flows ran at the same time."""
    running = most = 0
    for happened in re.findall(r"Flow \S+ (is STARTING|has COMPLETED)", log):
        running += 1 if happened == "is STARTING" else -1
        most = max(most, running)
    return most


def write_bus(source: Path) -> None:
    """Something for each table, in as few logs as that takes."""
    write_log(source, ORDERS, [numbered(1 + 10 * place, 10) for place in range(5)])
    beats = [Row(place, b"", UTC_US + place * S) for place in range(1, 4)]
    write_log(source, ORDERS._replace(topic=Topic("/heartbeat/mail")), [beats])
    tasks = [Row(number, b"{}") for number in range(1, 4)]
    write_log(source, ORDERS._replace(topic=Topic("/$task/mail")), [tasks])
    done = journal.encode_record(journal.Finished("completed", ((1, 2),)))
    journal_log = ORDERS._replace(topic=Topic("/$sys/task/journal/mail"))
    write_log(source, journal_log, [[Row(1, done, UTC_US + 9 * S)]])


def test_each_run_adds_what_is_new(spark: SparkSession, tmp_path: Path) -> None:
    source, folder = tmp_path / "n1", tmp_path / "bus"
    write_bus(source)
    (folder / "transformations").mkdir(parents=True)
    (folder / "transformations" / "bus.py").write_text(DEFINITIONS)
    provider = "\n  ".join(f"{name}: {value}" for name, value in ROCKSDB.items())
    spec = SPEC.format(folder=folder, path=source, provider=provider)
    (folder / "spark-pipeline.yml").write_text(spec)
    (folder / "conf").mkdir()
    defaults = "".join(f"{name} {value}\n" for name, value in SETTINGS.items())
    (folder / "conf" / "spark-defaults.conf").write_text(defaults)

    def table(name: str) -> list[RowOfTable]:
        return spark.read.parquet(str(folder / "spark-warehouse" / name)).collect()

    def totals() -> dict[str, int]:
        return {row["topic"]: row["messages"] for row in table("topics")}

    # Two streams that start at the same moment could break what the tasks of all flows share.
    assert running_at_most(run_pipeline(folder)) == 1
    assert len(table("messages")) == 53
    assert totals() == {"/orders/new": 50, "/heartbeat/mail": 3}
    assert sum(row["messages"] for row in table("traffic")) == 53
    assert sorted(row["state"] for row in table("tasks")) == ["completed", "completed", "waiting"]
    assert [(row["service"], row["state"]) for row in table("health")] == [
        ("/heartbeat/mail", "healthy")
    ]
    assert table("audit") == []

    write_log(source, OTHERS, [numbered(1, 2)])
    run_pipeline(folder)
    assert len(table("messages")) == 55
    assert totals() == {"/orders/new": 50, "/heartbeat/mail": 3, "/others": 2}
    assert sum(row["messages"] for row in table("traffic")) == 55
    assert len(table("health")) == 1
