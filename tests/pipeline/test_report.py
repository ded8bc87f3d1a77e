"""The page, as a browser draws it."""

import re
import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from busnode.pipeline import service_charts
from busnode.pipeline.audit_job import Audited
from busnode.pipeline.chart_style import label
from busnode.pipeline.health import ROCKSDB
from busnode.pipeline.report import Findings, report, window_of
from busnode.pipeline.report_page import inert, page
from busnode.pipeline.sources import Source

from .plant import HOSTILE, write_plant

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync "
    "--disable-background-networking --disable-component-update "
    "--enable-logging=stderr --virtual-time-budget=10000 --window-size=1280,2400"
).split()
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
AT = datetime(2023, 11, 14, 22, 23, 20, tzinfo=UTC)
NOTHING = Findings("empty", ["n1"], NOON, 1, [], [], [], [], [], [], [], None)


def test_a_page_of_nothing_says_so() -> None:
    text = page(NOTHING)
    assert "0</b><span>messages" in text
    assert text.count("Nothing to show") == 3


def test_a_page_asks_nobody_for_anything() -> None:
    text = page(NOTHING)
    own = re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
    assert not re.search(r"(src|href)=[\"']?(http|//)", own)
    assert len(text) > 1_000_000  # what draws is in it


def test_a_name_cannot_end_the_script_that_it_stands_in() -> None:
    assert "<" not in inert('{"x": "</script><script>alert(1)"}')
    assert label("<b>x") == "&lt;b&gt;x"
    row = {"broker_id": "00", "topic": HOSTILE, "holder": "<i>", "what": "hole"}
    found = {**row, "first_no": 1, "last_no": 2}
    extent = {**row, "first_no": 1, "last_no": 9, "messages": 7}
    text = page(Findings("<x>", ["<y>"], NOON, 1, [], [], [], [], [], [], [],
                         Audited(1, 1, 7, 1, (extent,), (found,))))  # fmt: skip
    for part in ("<x>", "<y>", "<i>", "</script><b>"):
        assert part not in text


def test_names_that_are_cut_to_the_same_text_are_drawn_apart() -> None:
    rows = [{"queue": "q", "error": f"{n}{'x' * 60}", "tasks": n} for n in (1, 2)]
    figure: Any = service_charts.dead_chart(rows)
    assert len(set(figure.data[0].y)) == 2


def test_a_window_is_as_wide_as_the_page_can_show() -> None:
    assert window_of([]) == 1
    for hours, expected in ((0.01, 1), (1, 60), (24, 1800), (24 * 365, 86_400)):
        assert window_of([{"first": NOON, "last": NOON + timedelta(hours=hours)}]) == expected


@pytest.mark.spark
def test_a_browser_draws_every_chart_and_complains_of_nothing(
    spark: SparkSession, tmp_path: Path, browser_required: bool
) -> None:
    for name, value in ROCKSDB.items():
        spark.conf.set(name, value)
    directories = tuple(map(str, write_plant(tmp_path, seconds=600)))
    steps: list[str] = []
    source = Source(directories, tolerant=True)
    text, told = report(spark, source, "/*", "the plant", AT, steps.append)
    assert told == {
        "messages": told["messages"], "topics": 11, "services": 4, "queues": 3, "findings": 2,
    }  # fmt: skip
    assert told["messages"] > 2000
    assert len(steps) == 4
    assert "4 of 4</b><span>services healthy" in text
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        assert not browser_required, f"none of {', '.join(BROWSERS)} is on the PATH"
        pytest.skip("there is no chromium on this machine (Debian: apt install chromium)")
    path = tmp_path / "report.html"
    path.write_text(text)
    words = [
        browser,
        *FLAGS,
        f"--user-data-dir={tmp_path / 'profile'}",
        "--dump-dom",
        path.as_uri(),
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=180)
    assert 'data-drawn="9"' in done.stdout
    assert done.stdout.count('class="plot-container') == 9
    assert "CONSOLE" not in done.stderr, done.stderr
    assert "&lt;b&gt;x" in done.stdout
