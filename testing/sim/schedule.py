"""Which faults strike a run, when and whom: drawn from the seed before it begins.

A schedule is a list that can be printed, and shortened: each entry draws what else it needs from
its own number, so that dropping one changes none of the others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from busnode.testing.sim.entropy import SimEntropy


@dataclass(frozen=True, slots=True)
class Entry:
    number: int
    at_s: float
    """Since the trouble begins."""
    kind: str
    node: str
    other: str
    """Another node, for faults that need one."""
    lasts_s: float

    def __str__(self) -> str:
        return (
            f"{self.number:3d}  {self.at_s:7.3f} s  {self.kind:<18} {self.node} {self.other}"
            f"  for {self.lasts_s:.3f} s"
        )


@dataclass(frozen=True, slots=True)
class Profile:
    """How likely each kind of fault is, and what sort of cluster it strikes."""

    name: str = "all"
    weights: Mapping[str, float] = field(default_factory=dict[str, float])
    """By kind; those that are not named have weight 1 in the profile `all`, else none."""
    faults: int = 24
    trouble_s: float = 36.0
    nodes: int | None = None
    """None: two to four, by the seed."""
    lasts_s: tuple[float, float] = (0.2, 6.0)


ALL: Final = Profile(weights={"read_eio": 3.0, "flip_metadata": 1.0})
"""All kinds but two, whose consequences are known and would hide others: docs/simulation.md."""


def draw_schedule(
    entropy: SimEntropy, profile: Profile, kinds: Sequence[str], nodes: Sequence[str]
) -> list[Entry]:
    """The faults of one run, in order of time."""
    otherwise = 1.0 if profile.name == "all" else 0.0
    weights = [profile.weights.get(kind, otherwise) for kind in kinds]
    times = sorted(entropy.between(0.0, profile.trouble_s) for _ in range(profile.faults))
    schedule: list[Entry] = []
    for number, at_s in enumerate(times):
        kind = entropy.choose_weighted(kinds, weights)
        node = entropy.choose(nodes)
        other = entropy.choose([each for each in nodes if each != node])
        # Most troubles are short; some outlast every patience.
        low, high = profile.lasts_s
        lasts_s = low + (high - low) * entropy.random() ** 2
        schedule.append(Entry(number, at_s, kind, node, other, lasts_s))
    return schedule
