"""Each workload in a tiny size: that it runs to its end and what it reports, never how fast."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from busnode.node.cli_bench import WORKLOADS, bench

pytestmark = pytest.mark.scenario

TINY = "0.0005"

SHAPES: dict[str, set[str]] = {
    "live": {
        "publisher_to_batches.received_per_s",
        "publisher_to_batches.dropped_share",
        "publisher_send_many_to_batches.received_per_s",
        "publish_to_async_for.received_per_s",
        "publish_to_async_for.published_per_s",
        "publish_to_async_for.processor_us_per_published_message.consumer",
    },
    "fanout": {"1_to_10.received_per_s", "1_to_100.received_per_s", "1_to_100.dropped_share"},
    "durable": {
        "pipelined.acked_per_s",
        "pipelined_send_many.acked_per_s",
        "100_at_once.acked_per_s",
        "one_at_a_time.acked_per_s",
        "one_at_a_time.disk_syncs_per_s",
        "one_at_a_time.of_disk",
    },
    "replay": {
        "decoded_batches.received_per_s",
        "decoded_messages.received_per_s",
        "raw_gb_per_s",
        "raw_of_bare_sendfile",
    },
    "request": {
        "request.p50_us",
        "request.p99_us",
        "bare_echo.p50_us",
        "relayed_echo.p50_us",
        "p50_of_bare_echo",
        "p50_of_relayed_echo",
    },
    "cluster": {
        "live_send.one_node_received_per_s",
        "live_send.two_nodes_received_per_s",
        "live_send.two_of_one",
        "durable_send_many.two_of_one",
        "request.two_nodes_p50_us",
        "request.two_of_one",
    },
    "mirrored": {
        "windowed.mirrored_acked_per_s",
        "windowed.local_acked_per_s",
        "windowed.mirrored_of_local",
        "windowed.mirrored_processor_us_per_message.mirror",
        "windowed.local_processor_us_per_message.lone node",
        "one_at_a_time.mirrored_p50_us",
        "one_at_a_time.mirrored_of_local",
        "catch_up.gb_per_s",
        "catch_up.during_acked_per_s",
        "catch_up.during_of_before",
        "catch_up.during_of_after",
        "catch_up.mirror_processor_s_per_gb",
        "catch_up.bare_gb_per_s",
        "catch_up.bare_processor_s_per_gb",
        "catch_up.of_bare",
    },
    "tls": {
        "live.plain_received_per_s",
        "live.tls_received_per_s",
        "live.tls_of_plain",
        "durable.tls_of_plain",
        "replay.tls_gb_per_s",
        "replay.tls_of_plain",
        "request.tls_p50_us",
        "request.tls_of_plain",
    },
    "tasks": {
        "batched.tasks_per_s",
        "batched.processor_us_per_task.node",
        "one_at_a_time.tasks_per_s",
        "disk_syncs_per_s",
        "waiting.batched.tasks_per_s",
        "waiting.batched_of_without",
        "waiting.one_at_a_time_of_without",
        "waiting.resident_bytes_per_task",
    },
    "memory": {"idle_mb", "reader_behind_mb", "reader_behind_above_idle_mb"},
    "start": {"ready_ms", "bare_python_ms"},
}
"""What a reader of each report relies on."""


def flat(report: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in report.items():
        found |= (
            flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
        )
    return found


def run(directory: Path, *arguments: str) -> str:
    words = [*arguments, "--scale", TINY, "--dir", str(directory)]
    result = CliRunner().invoke(bench, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_every_workload_but_the_ground_is_looked_at_here() -> None:
    assert {*SHAPES, "segments", "spark"} == set(WORKLOADS)  # Spark's is tested with the pipeline


@pytest.mark.parametrize("workload", SHAPES)
def test_a_workload_reports_what_its_readers_rely_on(workload: str, tmp_path: Path) -> None:
    reports = json.loads(run(tmp_path, workload, "--json"))
    assert list(reports) == [workload]
    report = flat(reports[workload])
    assert report["workload"] == workload
    assert report["payload_bytes"] == 128
    assert report["rounds"] >= 3
    assert SHAPES[workload] <= set(report), "a number has gone"
    rates = [value for name, value in report.items() if name.endswith(("_per_s", "p50_us", "_ms"))]
    assert all(value > 0 for value in rates), report
    assert list(tmp_path.iterdir()) == [], "it leaves nothing behind"


def test_people_get_a_table(tmp_path: Path) -> None:
    shown = run(tmp_path, "start")
    assert "ready ms" in shown
    assert "median" in shown


def test_all_that_was_sent_is_received_or_told_as_dropped(tmp_path: Path) -> None:
    report = json.loads(run(tmp_path, "live", "--json"))["live"]["publisher_to_batches"]
    assert 0 <= report["dropped_share"] <= 1
    assert report["messages"] == 1000
