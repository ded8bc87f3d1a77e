"""The jobs as a declarative pipeline, run by `spark-pipelines` itself, twice."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from busnode.pipeline.health import ROCKSDB
from busnode.pipeline.java import use_java
from busnode.wire.ids import LogId, Topic

from .plant import N1, write_plant
from .written_logs import Row, write_log

pytestmark = pytest.mark.spark

AGAIN = LogId(N1, Topic("/orders/again"))
SPEC = """\
name: bus
storage: file://{folder}/storage
libraries:
  - glob:
      include: transformations/**
configuration:
  spark.busnode.path: {path}
  {provider}
"""
DEFINITIONS = "from busnode.pipeline.declared import declare\n\ndeclare(spark)\n"
SETTINGS = {
    "spark.sql.catalogImplementation": "hive",  # or a second run does not know what the first made
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.driver.host": "127.0.0.1",
}


def run_pipeline(folder: Path) -> None:
    use_java()
    words = [f"--conf={name}={value}" for name, value in SETTINGS.items()]
    program = Path(sys.executable).parent / "spark-pipelines"
    done = subprocess.run(
        [program, "run", *words],
        cwd=folder,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


def test_each_run_adds_what_is_new(spark: SparkSession, tmp_path: Path) -> None:
    source, _ = write_plant(tmp_path, seconds=100)
    folder = tmp_path / "bus"
    (folder / "transformations").mkdir(parents=True)
    (folder / "transformations" / "bus.py").write_text(DEFINITIONS)
    provider = "\n  ".join(f"{name}: {value}" for name, value in ROCKSDB.items())
    spec = SPEC.format(folder=folder, path=source, provider=provider)
    (folder / "spark-pipeline.yml").write_text(spec)

    def counted(name: str) -> int:
        return spark.read.parquet(str(folder / "spark-warehouse" / name)).count()

    def there() -> int:
        return spark.read.format("busnode").option("path", str(source)).load().count()

    run_pipeline(folder)
    first = there()
    assert counted("messages") == first > 100
    assert counted("tasks") == 240 + 90 + 400
    assert counted("health") == 4
    assert counted("audit") == 0
    topics = counted("topics")

    write_log(source, AGAIN, [[Row(1, b"more"), Row(2, b"and more")]])
    run_pipeline(folder)
    assert counted("messages") == there() == first + 2
    assert counted("topics") == topics + 1
    assert counted("health") == 4
