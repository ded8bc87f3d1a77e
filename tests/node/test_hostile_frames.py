"""Whatever strangers send to a real node, it stays, and those who behave notice nothing."""

import os
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from busnode.wire.errors import BadBatch
from busnode.wire.frames import FrameType
from busnode.wire.ids import BrokerId
from busnode.wire.reader import FrameReader
from busnode.wire.runs import DELIVERED_KINDS
from busnode.wire.sessions import State

from ..wire.samples import fed
from .fuzzer import fuzz
from .hostile_frames import DOORS, GUARDED_STATES, KINDS, STATES, Hostile

FRAMES = 40_000
"""`scripts/fuzz` has more."""

GUARDED_FRAMES = 5_000

NODES = [BrokerId(b"n" * 16)]


@pytest.mark.parametrize("door", DOORS)
def test_well_formed_frames_are_of_all_kinds_and_can_be_read(door: str) -> None:
    found: Counter[int] = Counter()
    for seed in range(40):
        hostile = Hostile(Random(seed), door, NODES)
        hostile.opening(STATES[door][seed % len(STATES[door])])
        for _ in range(40):
            frame = hostile.well_formed()
            found[frame[4]] += 1
            assert fed(FrameReader(), frame), "nothing is left to wait for"
    data = FrameType.CHUNK if door == "peers" else FrameType.BATCH
    assert set(found) == {*KINDS[door], data}


@pytest.mark.parametrize("door", DOORS)
def test_a_batch_without_a_body_is_refused_for_what_it_is(door: str) -> None:
    frame = Hostile(Random(1), door, NODES).bodiless()
    reader = FrameReader() if door == "clients" else FrameReader(DELIVERED_KINDS)
    with pytest.raises(BadBatch, match="and a body"):
        fed(reader, frame)


def test_one_seed_makes_the_same_frames_again() -> None:
    def made(seed: int) -> list[bytes]:
        hostile = Hostile(Random(seed), "peers", NODES)
        return [*hostile.opening("mirroring"), hostile.well_formed(), hostile.broken()]

    assert made(1) == made(1) != made(2)


@pytest.mark.fuzz
async def test_hostile_frames_harm_nobody_at_a_node_that_asks_who_comes(tmp_path: Path) -> None:
    seed = int(os.environ.get("BUSNODE_FUZZ_SEED") or int.from_bytes(os.urandom(4)))
    print(f"BUSNODE_FUZZ_SEED={seed}")
    report = await fuzz(tmp_path, seed, GUARDED_FRAMES, progress=print, guarded=True)
    print(report)
    assert report.wrong == []
    assert report.frames >= GUARDED_FRAMES
    assert report.good > 50
    assert report.outcomes["NOT_AUTHENTICATED"], "wrong proofs were refused"
    for door, states in GUARDED_STATES.items():
        for state in states:
            assert report.sessions[f"{door} {state}"] > GUARDED_FRAMES // 2000


def test_every_state_of_a_session_is_one_in_which_hostile_frames_come() -> None:
    """One more state of the protocol has to be among those that are tried."""
    tried = {
        State.NEW: "new", State.GREETED: "new", State.CHALLENGED: "challenged",
        State.PROVEN: "proven", State.OPEN: "interested", State.DIALLER_LEFT: "leaving",
        State.LISTENER_LEFT: "leaving", State.BOTH_LEFT: "leaving", State.CLOSED: "leaving",
    }  # fmt: skip
    assert set(tried) == set(State)
    assert set(tried.values()) <= {*STATES["peers"], *GUARDED_STATES["peers"]}


@pytest.mark.fuzz
async def test_hostile_frames_harm_only_their_sender(tmp_path: Path) -> None:
    seed = int(os.environ.get("BUSNODE_FUZZ_SEED") or int.from_bytes(os.urandom(4)))
    print(f"BUSNODE_FUZZ_SEED={seed}")
    report = await fuzz(tmp_path, seed, FRAMES, progress=print)
    print(report)
    assert report.wrong == []
    assert report.frames >= FRAMES
    assert report.good > 100
    for door, states in STATES.items():
        for state in states:
            assert report.sessions[f"{door} {state}"] > FRAMES // 2000
