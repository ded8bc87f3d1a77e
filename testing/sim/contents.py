"""The bytes of one simulated file, and which of them are on the platter.

What fsync promises, and what a disk may do to everything else:

- Bytes that a sync has covered survive a power loss. They are never touched.
- Of the bytes after them some prefix survives; any 512-byte sector of it may hold zeros, garbage,
  an older sector of the same file, or only its first part; and the file may be longer than what
  survived, filled with zeros. ext4 in its default mode is kinder: it writes the data before the
  size. Other modes and file systems are not.
- After a *failed* sync nobody knows which bytes reached the platter. The kernel has marked them
  clean: the next sync has nothing to do for them and reports success. They are in doubt for ever.
- A truncate that failed may come undone.
"""

from busnode.testing.sim.faults import DiskFault, FaultPlan
from busnode.world.files import Bytes

SECTOR_BYTES = 512


class Contents:
    def __init__(self) -> None:
        self.cached = bytearray()
        """What programs read."""
        self.changes = 0
        """How often bytes that were there have changed: appending does not count."""
        self._dirty_from = 0
        """From here on a sync still has work to do."""
        self._doubtful: list[tuple[int, int]] = []
        """Ranges below `_dirty_from` that a failed sync has left in doubt."""
        self._cut_off = bytearray()
        """What a truncate has cut off and no sync has confirmed."""
        self._cut_at = 0

    @property
    def durable_bytes(self) -> int:
        """How much from the beginning on a power loss would certainly leave."""
        if not self._doubtful:
            return self._dirty_from
        return min(self._dirty_from, *(start for start, _ in self._doubtful))

    def append(self, data: Bytes) -> None:
        self.cached += data

    def cut(self, size_bytes: int) -> None:
        """Only in the cache; a sync must follow."""
        self.changes += 1
        self._cut_off = self._uncut()[size_bytes:]
        self._cut_at = size_bytes
        del self.cached[size_bytes:]
        self._dirty_from = min(self._dirty_from, size_bytes)
        self._doubtful = [
            (start, min(end, size_bytes)) for start, end in self._doubtful if start < size_bytes
        ]

    def sync(self, end: int | None = None) -> None:
        """Make durable what is dirty, up to `end`."""
        end = len(self.cached) if end is None else min(end, len(self.cached))
        self._dirty_from = max(self._dirty_from, end)
        self._cut_off.clear()

    def fail_sync(self, end: int | None = None) -> None:
        """Leave in doubt what is dirty, up to `end`."""
        end = len(self.cached) if end is None else min(end, len(self.cached))
        if end > self._dirty_from:
            self._doubtful.append((self._dirty_from, end))
            self._dirty_from = end

    def flip_bit(self, offset: int, bit: int) -> None:
        """Raises ValueError for a byte that is not at rest on the platter."""
        if not 0 <= bit < 8:
            raise ValueError(f"a byte has no bit {bit}")
        in_doubt = any(start <= offset < end for start, end in self._doubtful)
        if in_doubt or not 0 <= offset < self._dirty_from:
            raise ValueError(f"the byte at {offset} is not durable")
        self.changes += 1
        self.cached[offset] ^= 1 << bit

    def power_loss(self, plan: FaultPlan) -> None:
        """Draw what is found after the power comes back; all of that is then durable."""
        self.changes += 1
        written = len(self.cached)
        latest = self._uncut()
        tail = self._dirty_from
        while self._doubtful and self._doubtful[-1][1] == tail:
            tail = self._doubtful.pop()[0]

        entropy = plan.entropy
        unsure = len(latest) - tail
        survived = tail + entropy.choose((0, unsure, entropy.below(unsure + 1)))
        end = survived
        if entropy.chance(1 / 3):
            end += entropy.below(len(latest) - survived + 1)
        if end < written:
            plan.counts[DiskFault.LOST_TAIL] += 1
        if end > survived:
            plan.counts[DiskFault.ZERO_TAIL] += 1

        found = latest[:survived] + bytes(end - survived)
        for start, stop in self._doubtful:
            _damage(found, (start, stop), 0.7, plan)
        _damage(found, (tail, end), entropy.choose((0.0, 0.0, 0.3)), plan)
        self.cached = found
        self._dirty_from = len(found)
        self._doubtful = []
        self._cut_off.clear()

    def _uncut(self) -> bytearray:
        return self.cached + self._cut_off[len(self.cached) - self._cut_at :]


def _damage(found: bytearray, extent: tuple[int, int], odds: float, plan: FaultPlan) -> None:
    """Let sectors go bad in a range of bytes, and change no byte outside of it."""
    start, end = extent
    while start < end:
        stop = min(end, start - start % SECTOR_BYTES + SECTOR_BYTES)
        if plan.entropy.chance(odds):
            found[start:stop] = _damaged(found, start, stop - start, plan)
            plan.counts[DiskFault.DAMAGED_SECTOR] += 1
        start = stop


def _damaged(found: bytearray, start: int, count: int, plan: FaultPlan) -> bytes:
    match plan.entropy.below(4):
        case 0:
            return bytes(count)
        case 1:
            return plan.entropy.garbage(count)
        case 2:
            kept = plan.entropy.below(count)
            return bytes(found[start : start + kept]).ljust(count, b"\0")
        case _:
            older = plan.entropy.below(start // SECTOR_BYTES + 1) * SECTOR_BYTES
            return bytes(found[older : older + count]).ljust(count, b"\0")
