"""The jobs as a person runs them."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from busnode.pipeline.command_words import MASTERS, SETTINGS
from busnode.pipeline.commands import pipeline
from busnode.pipeline.failures import told
from busnode.pipeline.jvm_log import quiet_jvm
from busnode.wire.errors import BadOption, DataLost, NotADataDirectory, Refused
from tests.segments.samples import UTC_US

from .plant import write_plant
from .written_logs import ORDERS, flip, numbered, segments, write_log

JOBS = ("archive", "restore", "traffic", "health", "tasks", "audit", "report")


@pytest.fixture
def run(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs a command in this process, with the session that all tests share."""
    monkeypatch.setitem(SETTINGS, "spark.sql.shuffle.partitions", "1")
    monkeypatch.setattr(SparkSession, "stop", lambda _: None)

    def invoke(*words: object) -> Result:
        return CliRunner().invoke(pipeline, [str(word) for word in words])

    return invoke


def loaded(result: Result) -> Any:
    assert result.exception is None, (result.output, result.exception)
    return json.loads(result.stdout)


def test_every_job_says_what_it_is_for() -> None:
    whole = CliRunner().invoke(pipeline, ["--help"])
    assert all(f"  {job} " in whole.stdout for job in JOBS)
    for job in JOBS:
        shown = CliRunner().invoke(pipeline, [job, "--help"])
        assert shown.exit_code == 0
        assert "--master URL" in shown.stdout
        assert len(shown.stdout.splitlines()) > 15


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["traffic"], "Missing argument 'SOURCE"),
        (["traffic", "/nowhere", "--topics", "a"], "Invalid value for '--topics'"),
        (["traffic", "/n", "--since", "noon"], "option start"),
        (["traffic", "bus://127.0.0.1:1", "/nowhere"], "not both"),
        (["audit", "bus://127.0.0.1:1"], "name data directories"),
        (["archive", "/nowhere"], "Missing option '--to'"),
        (["archive", "/n", "--to", "/a", "--since", "2026-01-01T00:00:00Z"], "No such option"),
        (["restore", "/nowhere", "--to", "/a"], "/nowhere is no archive"),
        (["restore", "/nowhere", "--to", "/tmp"], "/tmp is there already"),
        (["traffic", "/n", "--window", "fortnight"], "'30 seconds' or '1 hour'"),
        (["traffic", "/n", "--window", "0 seconds"], "is no length of time"),
        (["tasks", "/n", "--master", "nonsense"], "is no master of Spark"),
        (["tasks", "/n", "--master", "local[x]"], "is no master of Spark"),
        (["restore", "/nowhere", "--to", "/a", "--since", "noon"], "is no day"),
        (["health", "/nowhere", "--at", "2026-01-01"], "has no time zone"),
        (["health", "/nowhere", "--dead", "1"], "less than --dead"),
    ],
)
def test_a_wrong_word_is_refused_before_spark_is_started(words: list[str], text: str) -> None:
    result = CliRunner().invoke(pipeline, words)
    assert result.exit_code == 2
    assert text in result.stderr


@pytest.mark.parametrize("job", ["traffic", "health", "tasks", "audit", "report"])
def test_a_folder_without_logs_is_refused_before_spark_is_started(
    job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "busnode.pipeline.session", None)
    result = CliRunner().invoke(pipeline, [job, "/nowhere"])
    assert isinstance(result.exception, NotADataDirectory)
    assert "/nowhere" in result.exception.text


def test_without_a_job_it_shows_its_help() -> None:
    assert CliRunner().invoke(pipeline, []).stdout.startswith("Usage: ")


@pytest.mark.parametrize(
    "master",
    ["local", "local[*]", "local[2,3]", "spark://a:7077,b:7077", "yarn", "k8s://https://h"],
)
def test_masters_that_spark_knows_are_taken(master: str) -> None:
    assert MASTERS.fullmatch(master)


def test_a_jvm_of_a_command_says_errors_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Xss4m")
    quiet_jvm()
    quiet_jvm()
    mine, _, path = os.environ["SPARK_SUBMIT_OPTS"].partition(" -Dlog4j2.configurationFile=file:")
    assert mine == "-Xss4m"
    assert "rootLogger.level = error" in Path(path).read_text()


def test_what_a_task_has_raised_is_told_as_it_was() -> None:
    text = (
        "Job aborted.\n  File x\nbusnode.wire.errors.DataLost: DATA_LOST: messages 1–2 are gone\n"
    )
    error = told(text + "\tat org.apache.spark…\nCaused by: BAD_OPTION: later")
    assert type(error) is DataLost
    assert error.text == "messages 1–2 are gone"
    assert type(told("BAD_OPTION: option x")) is BadOption
    assert type(told("\n[SOMETHING] else")) is Refused


@pytest.mark.spark
def test_logs_are_archived_and_restored(run: Callable[..., Result], tmp_path: Path) -> None:
    source, to = tmp_path / "n1", tmp_path / "archive"
    write_log(source, ORDERS, [numbered(1 + 10 * place, 10) for place in range(5)], 2)
    done = loaded(run("archive", source, "--to", to, "--json"))
    assert (done["messages"], done["run"]) == (40, 1)
    assert "nothing new" in run("archive", source, "--to", to).stdout
    (log,) = loaded(run("restore", to, "--to", tmp_path / "again", "--json"))
    assert (log["first_no"], log["last_no"], log["messages"]) == (1, 40, 40)
    nothing = run("restore", to, "--to", tmp_path / "other", "--topics", "/nothing")
    assert nothing.exit_code == 2
    assert "has nothing of /nothing" in nothing.stderr
    flip(segments(source)[2], 600)
    os.utime(segments(source)[2], (1, 1))  # nobody has written to it for long
    damaged = run("archive", source, "--to", to)
    assert isinstance(damaged.exception, DataLost)
    assert segments(source)[2].name in damaged.exception.text


@pytest.mark.spark
def test_logs_are_measured_and_compared(run: Callable[..., Result], tmp_path: Path) -> None:
    first, second = write_plant(tmp_path, seconds=600)
    totals = loaded(run("traffic", first, "--totals", "--json"))
    assert {"/orders/new", "/heartbeat/mail"} < {row["topic"] for row in totals}
    at = "2023-11-14T22:23:20Z"  # ten minutes after the beginning
    assert UTC_US == 1_700_000_000_000_000
    services = loaded(run("health", first, "--at", at, "--json"))
    assert {row["state"] for row in services} == {"healthy"}
    (mail,) = (row for row in loaded(run("tasks", first, "--json")) if row["queue"] == "mail")
    assert (mail["tasks"], mail["waiting"]) == (240, 5)
    wrong = run("audit", first, second, "--json")
    assert wrong.exit_code == 1
    found = {row["what"] for row in json.loads(wrong.stdout)["findings"]}
    assert found == {"hole", "short"}
    assert run("audit", first).stdout.startswith("all copies are whole")
