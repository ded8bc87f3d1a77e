"""The jobs as a declarative pipeline, run by `spark-pipelines` itself, twice.

Where tests run side by side, files with many begin first, and this one takes too long to be begun
last: so each table is asked for in a test of its own.
"""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
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
TABLES = ("messages", "topics", "traffic", "tasks", "health", "audit")


def run_pipeline(folder: Path, *options: str) -> str:
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
        [program, "run", *options],
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


@dataclass(frozen=True, slots=True)
class Run:
    """What a run has left behind."""

    log: str
    tables: dict[str, list[RowOfTable]]

    def totals(self) -> dict[str, int]:
        return {row["topic"]: row["messages"] for row in self.tables["topics"]}

    def messages_of_traffic(self) -> int:
        return sum(row["messages"] for row in self.tables["traffic"])


def run_and_read(spark: SparkSession, folder: Path, *options: str) -> Run:
    log = run_pipeline(folder, *options)
    warehouse = folder / "spark-warehouse"
    return Run(log, {name: spark.read.parquet(str(warehouse / name)).collect() for name in TABLES})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pipeline of three files beside the data directory that it reads."""
    made = tmp_path_factory.mktemp("declared") / "bus"
    write_bus(made.parent / "n1")
    (made / "transformations").mkdir(parents=True)
    (made / "transformations" / "bus.py").write_text(DEFINITIONS)
    provider = "\n  ".join(f"{name}: {value}" for name, value in ROCKSDB.items())
    spec = SPEC.format(folder=made, path=made.parent / "n1", provider=provider)
    (made / "spark-pipeline.yml").write_text(spec)
    (made / "conf").mkdir()
    defaults = "".join(f"{name} {value}\n" for name, value in SETTINGS.items())
    (made / "conf" / "spark-defaults.conf").write_text(defaults)
    return made


@pytest.fixture(scope="module")
def first(spark: SparkSession, folder: Path) -> Run:
    return run_and_read(spark, folder)


@pytest.fixture(scope="module")
def second(spark: SparkSession, folder: Path, first: Run) -> Run:
    """After two messages more, of the tables that these change; `first` has to be over."""
    assert first.tables
    write_log(folder.parent / "n1", OTHERS, [numbered(1, 2)])
    return run_and_read(spark, folder, "--refresh", "messages,topics,traffic,health")


def test_flows_run_one_after_the_other(first: Run) -> None:
    """Two streams that start at the same moment could break what the tasks of all flows share."""
    assert running_at_most(first.log) == 1


def test_all_messages_are_there(first: Run) -> None:
    assert len(first.tables["messages"]) == 53


def test_traffic_is_told_by_topic_and_by_minute(first: Run) -> None:
    assert first.totals() == {"/orders/new": 50, "/heartbeat/mail": 3}
    assert first.messages_of_traffic() == 53


def test_tasks_are_told_with_what_became_of_them(first: Run) -> None:
    states = sorted(row["state"] for row in first.tables["tasks"])
    assert states == ["completed", "completed", "waiting"]


def test_services_are_told_by_their_heartbeats(first: Run) -> None:
    told = [(row["service"], row["state"]) for row in first.tables["health"]]
    assert told == [("/heartbeat/mail", "healthy")]


def test_an_audit_of_whole_logs_finds_nothing(first: Run) -> None:
    assert first.tables["audit"] == []


def test_a_second_run_adds_what_is_new(second: Run) -> None:
    assert len(second.tables["messages"]) == 55
    assert len(second.tables["health"]) == 1


def test_a_second_run_makes_views_anew(second: Run) -> None:
    assert second.totals() == {"/orders/new": 50, "/heartbeat/mail": 3, "/others": 2}
    assert second.messages_of_traffic() == 55
