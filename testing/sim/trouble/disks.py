"""What disks do wrong while they are written."""

from collections.abc import Callable

import trio

from busnode.testing.sim.faults import DiskFault, DiskFaults
from busnode.testing.sim.trouble.kind import Fault, kind


def is_segment(path: str) -> bool:
    return path.endswith(".seg")


def is_folder(path: str) -> bool:
    return "/logs" in path and "." not in path


def is_metadata(path: str) -> bool:
    return path.endswith((".json", ".json.new", ".idx", ".idx.new"))


def _arm(fault: Fault, what: DiskFault, where: Callable[[str], bool], count: int = 1) -> None:
    node = fault.stage.cluster[fault.entry.node]
    skip = fault.stage.entropy(fault.entry.number).below(3)
    node.disk.arm(what, where, count=count, skip=skip)
    fault.begun(node.name)


@kind("fsync_eio")
async def fsync_eio(fault: Fault) -> None:
    _arm(fault, DiskFault.SYNC_EIO, is_segment)


@kind("folder_fsync_eio")
async def folder_fsync_eio(fault: Fault) -> None:
    _arm(fault, DiskFault.SYNC_EIO, is_folder)


@kind("append_enospc")
async def append_enospc(fault: Fault) -> None:
    _arm(fault, DiskFault.APPEND_ENOSPC, is_segment)


@kind("roll_enospc")
async def roll_enospc(fault: Fault) -> None:
    """No room for a new segment."""
    _arm(fault, DiskFault.ENTRY_ENOSPC, is_segment)


@kind("rename_enospc")
async def rename_enospc(fault: Fault) -> None:
    """No room where metadata is written anew."""
    _arm(fault, DiskFault.ENTRY_ENOSPC, is_metadata, count=2)


@kind("short_write")
async def short_write(fault: Fault) -> None:
    """Some of the bytes are written, and then an error."""
    _arm(fault, DiskFault.APPEND_EIO, is_segment)


@kind("read_eio")
async def read_eio(fault: Fault) -> None:
    _arm(fault, DiskFault.READ_EIO, is_segment, count=2)


@kind("full_disk")
async def full_disk(fault: Fault) -> None:
    """Nothing can be written for a while."""
    disk = fault.stage.cluster[fault.entry.node].disk
    disk.capacity_bytes = 0
    fault.begun(fault.entry.node)
    await trio.sleep(min(fault.entry.lasts_s, 2.0))
    disk.capacity_bytes = None


@kind("slow_disk")
async def slow_disk(fault: Fault) -> None:
    disk = fault.stage.cluster[fault.entry.node].disk
    longest_s = 0.1 + fault.entry.lasts_s / 2
    disk.odds = DiskFaults(
        sync_slow=0.5, sync_slow_s_max=longest_s, read_cold=0.3, read_cold_s_max=longest_s
    )
    fault.begun(fault.entry.node, f"up to {longest_s:.1f} s")
    await trio.sleep(fault.entry.lasts_s)
    disk.odds = DiskFaults()
