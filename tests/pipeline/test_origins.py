"""Who has written which logs, as nodes themselves tell."""

import json
from pathlib import Path

import pytest

from busnode.node.ownership import Ownership
from busnode.pipeline.origins import FILES, origins
from busnode.segments.memory_store import MemoryStore
from busnode.wire.ids import BrokerId
from busnode.world.real_files import RealFiles
from tests.segments.samples import StoppedClock

from .written_logs import LATER, ORDERS, flip

MINE, THEIRS = ORDERS.broker_id, LATER.broker_id


def tell(directory: Path, *broker_ids: BrokerId) -> Path:
    """Let a node write down what is its own."""
    directory.mkdir(exist_ok=True)
    ownership = Ownership(RealFiles(), str(directory), MemoryStore(RealFiles(), StoppedClock()))
    for broker_id in broker_ids:
        ownership.add(broker_id)
    return directory


def test_a_node_s_own_incarnations_are_known(tmp_path: Path) -> None:
    first, second = tell(tmp_path / "n1", MINE), tell(tmp_path / "n2", THEIRS)
    (second / "node.json").write_text(json.dumps({"name": "other"}))
    assert origins([str(first), str(second)]) == {MINE.hex(): "n1", THEIRS.hex(): "other"}


def test_what_several_take_for_their_own_is_nobody_s(tmp_path: Path) -> None:
    both = [str(tell(tmp_path / name, MINE)) for name in ("n1", "n2")]
    tell(tmp_path / "n2", THEIRS)
    assert origins(both) == {THEIRS.hex(): "n2"}


@pytest.mark.parametrize("damaged", FILES)
def test_either_file_is_enough(tmp_path: Path, damaged: str) -> None:
    directory = tell(tmp_path / "n1", MINE)
    flip(directory / damaged, 30)
    assert origins([str(directory)]) == {MINE.hex(): "n1"}
    (directory / damaged).unlink()
    assert origins([str(directory)]) == {MINE.hex(): "n1"}


def test_the_newer_file_counts(tmp_path: Path) -> None:
    directory = tell(tmp_path / "n1", MINE)
    old = (directory / FILES[0]).read_bytes()
    tell(directory, THEIRS)
    (directory / FILES[0]).write_bytes(old)
    assert origins([str(directory)]) == {MINE.hex(): "n1", THEIRS.hex(): "n1"}


@pytest.mark.parametrize("text", [b"", b"[]", b'{"own": 3}', b'{"own": ["00"], "hash": "wrong"}'])
def test_what_makes_no_sense_tells_nothing(tmp_path: Path, text: bytes) -> None:
    for name in FILES:
        (tmp_path / name).write_bytes(text)
    assert origins([str(tmp_path), str(tmp_path / "nowhere")]) == {}
