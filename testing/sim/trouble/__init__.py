"""The kinds of faults, by what they strike."""

from busnode.testing.sim.trouble import cables, clocks, deaths, disks, lies, rot
from busnode.testing.sim.trouble.kind import KINDS, Fault, strike

__all__ = ["KINDS", "Fault", "cables", "clocks", "deaths", "disks", "lies", "rot", "strike"]
