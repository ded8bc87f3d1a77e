"""What can go wrong with a simulated disk, and when it does."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from busnode.testing.sim.entropy import SimEntropy


class DiskFault(StrEnum):
    """Every kind that is counted. The first group can be armed and has odds in `DiskFaults`."""

    APPEND_ENOSPC = "append_enospc"
    """The disk is full: some of the bytes are written, not all."""
    APPEND_EIO = "append_eio"
    SYNC_EIO = "sync_eio"
    """A sync of a file or directory, or a truncate, fails; what was dirty is in doubt for ever."""
    SYNC_SLOW = "sync_slow"
    """`sync_all` takes virtual seconds."""
    ENTRY_ENOSPC = "entry_enospc"
    """A file or directory cannot be made, or not renamed; nothing has changed."""
    ENTRY_EIO = "entry_eio"
    READ_EIO = "read_eio"
    READ_COLD = "read_cold"
    """What is to be read is not in memory: fetching it takes virtual seconds."""

    BIT_FLIP = "bit_flip"
    KILL = "kill"
    POWER_LOSS = "power_loss"

    LOST_TAIL = "lost_tail"
    """A power loss took bytes from the end of a file."""
    ZERO_TAIL = "zero_tail"
    """A power loss left a file longer than what survived of it."""
    DAMAGED_SECTOR = "damaged_sector"
    LOST_ENTRY = "lost_entry"
    """A power loss undid a name made, renamed or removed."""
    HALF_RENAME = "half_rename"
    """A power loss left a file under both its names."""


@dataclass(frozen=True, slots=True)
class DiskFaults:
    """How likely each fault is at each operation that it can strike; 0 is never."""

    append_enospc: float = 0.0
    append_eio: float = 0.0
    sync_eio: float = 0.0
    sync_slow: float = 0.0
    sync_slow_s_max: float = 5.0
    entry_enospc: float = 0.0
    entry_eio: float = 0.0
    read_eio: float = 0.0
    read_cold: float = 0.0
    read_cold_s_max: float = 1.0

    def odds(self, fault: DiskFault) -> float:
        odds: float = getattr(self, fault)
        return odds


def anywhere(path: str) -> bool:
    return bool(path)


@dataclass(slots=True)
class Trap:
    """A fault that waits for an operation on a path."""

    fault: DiskFault
    where: Callable[[str], bool]
    skip: int
    count: int


class FaultPlan:
    """Decides for each operation whether a fault strikes it, and counts those that did."""

    def __init__(self, entropy: SimEntropy, odds: DiskFaults) -> None:
        self.entropy = entropy
        self.odds = odds
        self.counts: Counter[DiskFault] = Counter()
        self._traps: list[Trap] = []

    def arm(self, trap: Trap) -> None:
        self.odds.odds(trap.fault)  # raises for a kind that strikes no operation
        self._traps.append(trap)

    def disarm(self) -> None:
        self._traps.clear()

    def strikes(self, fault: DiskFault, path: str) -> bool:
        struck = self._springs(fault, path) or self.entropy.chance(self.odds.odds(fault))
        if struck:
            self.counts[fault] += 1
        return struck

    def part_of(self, count: int) -> int:
        """How much of an operation on `count` bytes was done before a fault struck: not all."""
        return self.entropy.below(count) if count else 0

    def _springs(self, fault: DiskFault, path: str) -> bool:
        for trap in self._traps:
            if trap.fault is fault and trap.where(path):
                if trap.skip:
                    trap.skip -= 1
                    continue
                trap.count -= 1
                if trap.count == 0:
                    self._traps.remove(trap)
                return True
        return False
