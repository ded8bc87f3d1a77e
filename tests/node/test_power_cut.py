"""The power of real disks is cut while clients publish: what was acked is there afterwards."""

import os
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from . import cut_disk
from .cut_disk import CutDisk, cannot_be, cut
from .power_cut import power_cuts
from .processes import wait_for

pytestmark = pytest.mark.scenario

CYCLES = 6
"""Of each of the two: `scripts/power-cut` has more."""

_cannot_be = cache(cannot_be)


@pytest.fixture
def _disks(power_cut_required: bool) -> None:
    """Real disks that can be cut, or a word why there are none."""
    reason = _cannot_be()
    if reason is not None:
        (pytest.fail if power_cut_required else pytest.skip)(reason)


def synced(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


@pytest.mark.usefixtures("_disks")
def test_a_cut_takes_what_was_not_synced_and_nothing_else(tmp_path: Path) -> None:
    """Otherwise the tests below would prove nothing."""
    with CutDisk(tmp_path / "disk") as disk:
        synced(disk.path / "synced", b"a")
        (disk.path / "not synced").write_bytes(b"b")
        with (disk.path / "synced").open("ab") as more:
            more.write(b"c")
        cut([disk])
        with pytest.raises(OSError, match="Input/output error"):
            synced(disk.path / "too late", b"d")
        disk.restore()
        assert (disk.path / "synced").read_bytes() == b"a"
        assert sorted(os.listdir(disk.path)) == ["lost+found", "synced"]
        disk.check()


@pytest.mark.usefixtures("_disks")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_ended_leaves_no_disk_behind(tmp_path: Path, number: signal.Signals) -> None:
    path = tmp_path / "disk"
    code = (
        "import sys, time, pathlib\n"
        f"from {cut_disk.__name__} import CutDisk\n"
        "with CutDisk(pathlib.Path(sys.argv[1])):\n"
        "    print('there', flush=True)\n"
        "    time.sleep(600)\n"
    )
    run = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE,
                           stderr=subprocess.DEVNULL, cwd=Path(__file__).parents[2])  # fmt: skip
    with run:
        assert run.stdout is not None
        assert run.stdout.readline() == b"there\n"
        assert str(path) in Path("/proc/mounts").read_text()
        run.send_signal(number)
    wait_for(lambda: str(path) not in Path("/proc/mounts").read_text(), "nothing is mounted")
    wait_for(lambda: not path.with_name("disk.image").exists(), "the image is gone")


@pytest.mark.usefixtures("_disks")
@pytest.mark.parametrize(("nodes", "level"), [(1, "local"), (2, "mirrored")])
async def test_nothing_acked_is_lost_when_the_power_is_cut(
    tmp_path: Path, nodes: int, level: str
) -> None:
    seed = int(os.environ.get("BUSNODE_TEST_SEED") or int.from_bytes(os.urandom(4)))
    print(f"seed {seed}")
    tally = await power_cuts(tmp_path, nodes, CYCLES, seed, progress=print)
    print(tally)
    assert tally.lost == []
    assert tally.wrong == [], "each log without a hole, and no number with two bodies"
    assert tally.cycles == CYCLES
    assert tally.acks[level] > 100
    assert tally.seen > 100
    assert tally.read >= tally.acks.total(), "it was all read again"
