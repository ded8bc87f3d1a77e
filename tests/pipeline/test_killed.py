"""What Spark has begun and not finished when it is killed is done again, and nothing twice.

As in test_declared.py, several tests of one run let it begin before files that take less.
"""

import os
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from time import monotonic, sleep

import pytest
from pyspark.sql import SparkSession

from busnode.client.blocking import BlockingBus
from busnode.testing import BusCluster

from .conftest import said
from .queries import start

pytestmark = pytest.mark.spark

KILLS = 3
PATIENCE_S = 240
"""For what takes ten seconds on a quiet machine."""
ROOT = Path(__file__).resolve().parents[2]


class Appender:
    """Publishes messages, some at a time, until it is told to end."""

    def __init__(self, bus: BlockingBus) -> None:
        self.count = 0
        self._bus = bus
        self._ended = Event()
        self._thread = Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with self._bus.publisher("/in", persistent=True) as out:
            while not self._ended.wait(0.05):  # the pace: some 1000 messages a second
                for number in range(self.count, self.count + 50):
                    out.send(b"%d" % number)
                out.flush()
                self.count += 50

    def end(self) -> int:
        self._ended.set()
        self._thread.join()
        return self.count


def run_queries(folder: Path, directory: Path, url: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "tests.pipeline.queries", str(folder), str(directory), url]
    with (folder / "stderr").open("wb") as stderr:
        return subprocess.Popen(
            command, cwd=ROOT, stdout=stderr, stderr=stderr, start_new_session=True
        )


def numbers(folder: Path) -> set[int]:
    return {int(path.name) for path in folder.glob("*") if path.name.isdecimal()}


def unfinished(folder: Path) -> bool:
    """Whether both queries have begun a batch and not finished it."""
    return all(
        numbers(folder / f"checkpoint-{name}" / "offsets")
        - numbers(folder / f"checkpoint-{name}" / "commits")
        for name in ("rows", "out")
    )


def wait_for_the_middle(process: "subprocess.Popen[bytes]", folder: Path, began: int) -> None:
    """Until both queries are in the middle of a batch, and one has done more than before."""
    give_up_at = monotonic() + PATIENCE_S
    while not unfinished(folder) or began >= len(numbers(folder / "checkpoint-out" / "commits")):
        assert process.poll() is None, said((folder / "stderr").read_text())
        assert monotonic() < give_up_at, said((folder / "stderr").read_text())
        sleep(0.005)


def kill(process: "subprocess.Popen[bytes]") -> None:
    """The JVM and the Python that has started it, with no time for either to notice."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@dataclass(frozen=True, slots=True)
class Done:
    """What has become of messages by the end, with queries that were killed again and again."""

    appended: int
    numbers: list[int]
    """Of the rows of Parquet, in the log that they were read from."""
    rows: "Counter[int]"
    published: "Counter[int]"


@pytest.fixture(scope="module")
def done(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Done:
    folder = tmp_path_factory.mktemp("killed")
    with BusCluster(folder / "cluster", nodes=1) as cluster:
        directory = folder / "cluster" / "n1"
        appender = Appender(cluster.bus())
        try:
            began = 0
            for _ in range(KILLS):
                process = run_queries(folder, directory, cluster.url)
                try:
                    wait_for_the_middle(process, folder, began)
                finally:
                    kill(process)
                began = len(numbers(folder / "checkpoint-out" / "commits"))
        finally:
            appended = appender.end()
        for query in start(spark, folder, str(directory), cluster.url, drain=True):
            assert query.awaitTermination(PATIENCE_S)

        rows = spark.read.parquet(str(folder / "rows")).select("msg_no", "payload").collect()
        table = spark.read.format("busnode").option("url", cluster.url).option("topics", "/out")
        return Done(
            appended,
            [row["msg_no"] for row in rows],
            Counter(int(bytes(row["payload"])) for row in rows),
            Counter(int(bytes(row["payload"])) for row in table.load().collect()),
        )


def test_a_killed_jvm_leaves_no_hole_and_no_repeat(done: Done) -> None:
    assert done.published == Counter(range(done.appended))


def test_what_it_wrote_as_parquet_has_no_hole_and_no_repeat(done: Done) -> None:
    assert done.rows == Counter(range(done.appended))


def test_a_number_of_the_log_is_in_one_row(done: Done) -> None:
    assert len(done.numbers) == len(set(done.numbers)) == done.appended


def test_messages_came_all_the_while(done: Done) -> None:
    """Else there was no middle of a batch to be killed in."""
    assert done.appended > 0
