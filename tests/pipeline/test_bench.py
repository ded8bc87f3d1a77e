"""What `busnode bench spark` measures."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from busnode.pipeline.bench import measure
from busnode.world.real_world import real_world

pytestmark = pytest.mark.spark


def test_scans_are_measured_against_parquet(spark: SparkSession, tmp_path: Path) -> None:
    steps: list[str] = []
    report = measure(spark, real_world(), str(tmp_path), 3000, 1, steps.append)
    assert report["rows"] == 3000
    assert set(report) == {
        "rows",
        "full_scan_rows_per_s",
        "parquet_scan_rows_per_s",
        "three_columns_rows_per_s",
        "archive_rows_per_s",
        "parquet_copy_rows_per_s",
        "full_scan_to_parquet_scan",
        "three_columns_to_parquet_scan",
        "archive_to_parquet_copy",
    }
    assert all(value > 0 for value in report.values())
    assert steps[-1] == "round 1 of 1"
