"""One Spark session for all tests of the pipeline."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.default.parallelism": "2",
    "spark.driver.memory": "1g",
    # For a few hundred rows, what Spark does to be fast is nearly all that it does.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}

SAID_MAX = 20_000


def said(text: str) -> str:
    """What a process with a JVM has said, for the message of a failure: the head of an exception
    stands far before its end."""
    half = SAID_MAX // 2
    return text if len(text) <= SAID_MAX else f"{text[:half]}\n[...]\n{text[-half:]}"


@pytest.fixture(scope="session")
def spark() -> "Iterator[SparkSession]":
    from busnode.pipeline import session

    made = session("tests", "local[2]", SETTINGS)
    made.sparkContext.setLogLevel("OFF")
    yield made
    made.stop()
