"""Whether all copies are whole and the same."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from busnode.pipeline.audit import EXTENT_COLUMNS, copy_extents, findings, suspects

from .written_logs import ORDERS, OTHERS, drop, flip, numbered, segments, write_log

pytestmark = pytest.mark.spark


def copies(spark: SparkSession, *directories: Path, schema: str | None = None) -> DataFrame:
    reader: Any = spark.read.format("busnode").option("copies", "all")
    reader = reader.option("failOnDataLoss", "false").option(
        "path", ",".join(map(str, directories))
    )
    frame: DataFrame = reader.schema(schema).load() if schema else reader.load()
    return frame


def audit(spark: SparkSession, *directories: Path) -> tuple[set[str], set[tuple[Any, ...]]]:
    """Suspects of the first stage, and what the second has found of them."""
    chosen = suspects(copy_extents(copies(spark, *directories, schema=EXTENT_COLUMNS)))
    found = findings(copies(spark, *directories), chosen).collect()
    return (
        {row["topic"] for row in chosen.collect()},
        {
            (row["holder"], row["topic"], row["what"], row["first_no"], row["last_no"])
            for row in found
        },
    )


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    path = tmp_path / "n1"
    write_log(path, ORDERS, [numbered(1 + 10 * place, 10) for place in range(6)], 2)
    write_log(path, OTHERS, [numbered(1, 5)])
    return path


def test_copies_that_are_whole_and_the_same_are_no_suspects(
    spark: SparkSession, origin: Path, tmp_path: Path
) -> None:
    mirror = shutil.copytree(origin, tmp_path / "n2")
    assert audit(spark, origin, mirror) == (set(), set())


def test_what_is_missing_damaged_or_different_is_found_and_named(
    spark: SparkSession, origin: Path, tmp_path: Path
) -> None:
    mirror = shutil.copytree(origin, tmp_path / "n2")
    drop(segments(mirror)[0])
    other = tmp_path / "n3"
    write_log(other, ORDERS, [numbered(1, 10), numbered(11, 10, size=30)])
    write_log(other, OTHERS, [numbered(1, 5)])
    flip(segments(origin)[1], 600)
    chosen, found = audit(spark, origin, mirror, other)
    assert chosen == {"/orders/new"}
    assert found == {
        ("n1", "/orders/new", "hole", 21, 30),
        ("n2", "/orders/new", "short", 1, 20),
        ("n3", "/orders/new", "short", 21, 60),
        ("n3", "/orders/new", "different", 11, 20),
    }


def test_two_copies_that_differ_in_their_headers_alone_are_suspects(spark: SparkSession) -> None:
    rows = [("00", "/a", 1, 7, seq, holder) for seq, holder in ((1, "n1"), (1, "n2"), (2, "n3"))]
    whole = [("00", "/b", 1, 7, 1, holder) for holder in ("n1", "n2")]
    chosen = suspects(copy_extents(spark.createDataFrame([*rows, *whole], EXTENT_COLUMNS)))
    assert [tuple(row) for row in chosen.collect()] == [("00", "/a")]


def test_a_copy_is_compared_with_its_origin_also_where_that_is_shorter(
    spark: SparkSession, tmp_path: Path
) -> None:
    first, second, third = (tmp_path / name for name in ("n1", "n2", "n3"))
    write_log(first, OTHERS, [numbered(1, 5)])
    write_log(second, OTHERS, [numbered(1, 5, size=21), numbered(6, 3)])
    write_log(third, OTHERS, [numbered(1, 5), numbered(6, 3, size=21)])
    all_copies = copies(spark, first, second, third)
    origins = spark.createDataFrame(
        [(OTHERS.broker_id.hex(), "n1")], "broker_id string, origin string"
    )
    found = findings(all_copies, None, origins).collect()
    assert {row["origin"] for row in found} == {"n1"}
    assert {ranged(row) for row in found} == {
        ("n1", "short", 6, 8),
        ("n2", "different", 1, 5),
        ("n3", "different", 6, 8),  # of what the origin lacks the first of the longest counts
    }
    guessed = findings(all_copies).collect()
    assert {row["origin"] for row in guessed} == {None}
    assert ("n1", "different", 1, 5) in {ranged(row) for row in guessed}


def ranged(row: Any) -> tuple[Any, ...]:
    return row["holder"], row["what"], row["first_no"], row["last_no"]


def test_a_number_that_is_there_twice_is_a_repeat(
    spark: SparkSession, origin: Path, tmp_path: Path
) -> None:
    again = shutil.copytree(origin, tmp_path / "elsewhere" / "n1")
    shutil.rmtree(again / "logs" / ORDERS.broker_id.hex())
    write_log(again, OTHERS, [numbered(1, 2)])
    chosen, found = audit(spark, origin, again)
    assert chosen == {"/others"}
    assert found == {("n1", "/others", "repeat", 1, 2)}


def test_other_bodies_under_the_same_numbers_are_found_when_all_are_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_log(tmp_path / "n1", OTHERS, [numbered(1, 5)])
    write_log(tmp_path / "n2", OTHERS, [numbered(1, 5, size=21)])
    found = findings(copies(spark, tmp_path / "n1", tmp_path / "n2")).collect()
    assert [ranged(row) for row in found] == [("n2", "different", 1, 5)]
