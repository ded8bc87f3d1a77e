"""`busnode log repair`, on directories that the real store has made."""

import shutil
from pathlib import Path

import pytest

from busnode.segments.segment import index_path

from . import FIRST_BROKER, SECOND_BROKER, flip, make_plant, segment
from .test_cli_log import TEMPS, contents, dumped, read_json, run


@pytest.fixture
def mirror(tmp_path: Path) -> Path:
    """The data directory of another node, with the same logs."""
    return make_plant(tmp_path / "n2")


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A hole: messages 1–3."""
    plant = make_plant(tmp_path / "n1")
    flip(segment(plant, FIRST_BROKER, TEMPS), 512 + 110)
    return plant


def test_what_is_damaged_is_taken_from_another_directory(damaged: Path, mirror: Path) -> None:
    bad = segment(damaged, FIRST_BROKER, TEMPS).read_bytes()[512 : 512 + 127]
    result = run("repair", damaged, "--from", str(mirror))
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == f"0f3a9c1e {TEMPS} messages 1–3: mended"
    assert lines[-1] == "1 hole, 3 messages mended, 0 messages remaining"
    assert f"from {mirror}" in result.stdout
    assert run("verify", damaged).exit_code == 0
    assert dumped(damaged) == dumped(mirror)
    (kept,) = (damaged / "quarantine").rglob("*.bad")
    assert kept.read_bytes() == bad
    assert run("repair", damaged).stdout == "nothing is damaged or missing\n"


def test_a_dry_run_tells_the_same_and_changes_nothing(damaged: Path, mirror: Path) -> None:
    before = contents(damaged)
    result = run("repair", damaged, "--from", str(mirror), "--dry-run")
    assert result.exit_code == 0
    assert "messages 1–3: could be mended" in result.stdout
    assert contents(damaged) == before
    assert run("verify", damaged).exit_code == 1


def test_what_nobody_has_remains_and_is_told(damaged: Path, mirror: Path) -> None:
    result = run("repair", damaged)
    assert result.exit_code == 1
    assert "messages 1–3: remains" in result.stdout
    assert "--from" in result.stdout
    flip(segment(mirror, FIRST_BROKER, TEMPS), 512 + 110)
    told = read_json("repair", damaged, "--from", str(mirror))
    assert told["good"] is False
    assert (told["mended_messages"], told["remaining_messages"]) == (0, 3)
    (hole,) = told["holes"]
    assert (hole["first_no"], hole["last_no"], hole["remaining"]) == (1, 3, 3)
    assert hole["sources"] == hole["quarantine"] == []


def test_of_several_directories_each_gives_what_it_has(tmp_path: Path, mirror: Path) -> None:
    plant = make_plant(tmp_path / "n1")
    other = make_plant(tmp_path / "n3")
    flip(segment(plant, FIRST_BROKER, TEMPS), 512 + 110)
    flip(segment(plant, SECOND_BROKER, TEMPS), 512 + 110)
    shutil.rmtree(mirror / "logs" / FIRST_BROKER.hex())
    flip(segment(other, SECOND_BROKER, TEMPS), 512 + 110)
    told = read_json("repair", plant, "--from", str(mirror), "--from", str(other))
    assert told["good"] is True
    assert sorted(hole["sources"][0] for hole in told["holes"]) == [str(mirror), str(other)]
    assert run("verify", plant).exit_code == 0


def test_the_end_that_a_log_has_lost_is_appended(tmp_path: Path, mirror: Path) -> None:
    plant = make_plant(tmp_path / "n1")
    cut = segment(plant, FIRST_BROKER, TEMPS)
    cut.write_bytes(cut.read_bytes()[: 512 + 127])
    Path(index_path(str(cut))).unlink()
    assert dumped(plant) != dumped(mirror)
    told = read_json("repair", plant, "--from", str(mirror))
    assert told["good"] is True
    assert told["holes"][0]["reason"] == "this copy ends before others do"
    assert dumped(plant) == dumped(mirror)
    assert run("verify", plant).exit_code == 0


def test_a_directory_is_not_mended_from_itself_or_from_none(damaged: Path, tmp_path: Path) -> None:
    assert run("repair", damaged, "--from", str(damaged)).exit_code == 2
    assert run("repair", damaged, "--from", str(tmp_path / "nowhere")).exit_code == 2
