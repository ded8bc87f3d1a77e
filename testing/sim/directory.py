"""The names of a simulated file system, and which of them a power loss leaves.

A name is durable when the directory that holds it has been synced, and not before: neither a sync
of the file nor one of any other directory helps. ext4 is kinder: it journals the operations of the
whole file system in order, and a sync of anything commits all before it. At a power loss half of
the draws are like that, a prefix of the operations that were not synced. The other half decides for
each operation by itself. In both, a rename may be kept by half: then the file has both its names,
but never neither, unless the directory that it left was synced and the one that it went to was not.
A directory has one name always.

After a failed sync of a directory its changes are in doubt for ever, as those of a file are.
"""

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TypeAlias

from busnode.testing.sim.contents import Contents
from busnode.testing.sim.faults import DiskFault, FaultPlan


@dataclass(eq=False, slots=True)
class File:
    modified_us: int
    contents: Contents = field(default_factory=Contents)


@dataclass(eq=False, slots=True)
class Directory:
    modified_us: int
    entries: dict[str, "Inode"] = field(default_factory=dict[str, "Inode"])
    """What programs see."""
    durable: dict[str, "Inode"] = field(default_factory=dict[str, "Inode"])


Inode: TypeAlias = File | Directory


class Safety(Enum):
    PENDING = auto()
    DURABLE = auto()
    DOUBTFUL = auto()


@dataclass(eq=False, slots=True)
class Change:
    """One name given to an inode, or taken away."""

    number: int
    directory: Directory
    name: str
    inode: Inode | None
    moved_by: "Change | None" = None
    """For the old name of a rename: the change that gave the new one."""
    safety: Safety = Safety.PENDING
    kept: bool = True

    def apply(self, entries: dict[str, Inode]) -> None:
        if self.inode is None:
            entries.pop(self.name, None)
        else:
            entries[self.name] = self.inode


class Journal:
    """All changes of names that are not yet folded into `durable`, in order."""

    def __init__(self) -> None:
        self.mark = 0
        """The number of the last change."""
        self.version = 0
        """Grows with all that may change what is certain."""
        self._changes: list[Change] = []

    def link(self, directory: Directory, name: str, inode: Inode) -> Change:
        return self._record(Change(self.mark + 1, directory, name, inode))

    def unlink(self, directory: Directory, name: str, moved_by: Change | None = None) -> None:
        self._record(Change(self.mark + 1, directory, name, None, moved_by))

    def _record(self, change: Change) -> Change:
        change.apply(change.directory.entries)
        self._changes.append(change)
        self.mark = change.number
        self.version += 1
        return change

    def sync(self, directory: Directory, mark: int) -> None:
        """Make durable the changes of a directory, up to the mark."""
        self._settle(directory, mark, Safety.DURABLE)
        folded: set[int] = set()
        for change in self._of(directory):
            if change.safety is not Safety.DURABLE:
                break  # a change must not overtake one that a power loss may still bring back
            change.apply(directory.durable)
            folded.add(change.number)
        self.version += 1
        self._changes = [change for change in self._changes if change.number not in folded]

    def fail_sync(self, directory: Directory, mark: int) -> None:
        """Leave the changes of a directory in doubt, up to the mark."""
        self._settle(directory, mark, Safety.DOUBTFUL)

    def _settle(self, directory: Directory, mark: int, safety: Safety) -> None:
        for change in self._of(directory):
            if change.number <= mark and change.safety is Safety.PENDING:
                change.safety = safety

    def _of(self, directory: Directory) -> list[Change]:
        return [change for change in self._changes if change.directory is directory]

    def certain(self, directory: Directory) -> dict[str, Inode]:
        """What a power loss would certainly leave of a directory's names. Those that were synced
        behind one that is in doubt are not yet folded, and safe all the same."""
        names = directory.durable
        for change in self._changes:
            if change.directory is directory:
                if names is directory.durable:
                    names = dict(names)
                if change.safety is Safety.DURABLE:
                    change.apply(names)
                elif change.inode is None:
                    names.pop(change.name, None)  # it may be gone
        return names

    def power_loss(self, plan: FaultPlan) -> None:
        """Decide what became of each change, and leave it in `durable`."""
        self.version += 1
        unsure = sum(change.safety is not Safety.DURABLE for change in self._changes)
        in_order = plan.entropy.chance(0.5)
        left = plan.entropy.below(unsure + 1)
        for change in self._changes:
            if change.safety is not Safety.DURABLE:
                change.kept = left > 0 if in_order else plan.entropy.chance(0.5)
                left -= 1
                if change.moved_by is not None:
                    self._keep_half(change, change.moved_by, plan)
                if not change.kept:
                    plan.counts[DiskFault.LOST_ENTRY] += 1
            if change.kept:
                change.apply(change.directory.durable)
        self._changes = []

    def _keep_half(self, old: Change, new: Change, plan: FaultPlan) -> None:
        if not new.kept:
            old.kept = False
        elif isinstance(new.inode, Directory):
            old.kept = True
        elif not old.kept:
            plan.counts[DiskFault.HALF_RENAME] += 1
