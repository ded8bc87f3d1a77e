"""Which faults strike a run, when and whom: drawn from the seed before it begins.

A schedule is a list that can be printed, and shortened: each entry draws what else it needs from
its own number, so that dropping one changes none of the others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

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
    """By kind."""
    faults: int = 24
    trouble_s: float = 36.0
    nodes: int | None = None
    """None: two to four, by the seed."""
    lasts_s: tuple[float, float] = (0.2, 6.0)
    retain_s: tuple[float, ...] = (24 * 3600.0,)
    """How long a node keeps messages: one of these, by the seed."""
    about: Literal["messages", "tasks"] = "messages"
    """What clients do."""
    otherwise: float = 0.0
    """How likely kinds are that are not named in `weights`."""


ALL: Final = Profile(
    weights={"read_eio": 3.0, "flip_all_copies": 0.0, "wiped_all_copies": 0.0}, otherwise=1.0
)
"""All kinds but those that leave no good copy."""

LOSSES: Final = Profile(
    "losses",
    {
        "flip_all_copies": 8, "wiped_all_copies": 1, "flip_origin": 1, "flip_mirror": 1,
        "flip_index": 1, "wiped_disk": 1, "kill": 2, "restart": 1, "power_loss": 1, "pause": 1,
        "partition": 1, "isolation": 1, "link_reset": 1, "mirror_change": 1, "slow_link": 1,
        "slow_disk": 1, "read_eio": 1, "client_reset": 1, "client_cut": 1,
    },
    retain_s=(5.0, 10.0, 3600.0),
)  # fmt: skip
"""What is lost for good: it has expired, or all copies of it are gone. Consumers hear of it."""

TASKS: Final = replace(ALL, name="tasks", about="tasks", lasts_s=(0.2, 9.0))
"""All kinds but those that leave no good copy, some of them for longer: nodes are given up, and
others go on with their tasks."""

EVERY: Final = 4
"""Of so many seeds one is about messages that are lost for good, and one about tasks."""


def profile_of(seed: int) -> Profile:
    """What an ordinary run of a seed is like."""
    return {1: TASKS, 3: LOSSES}.get(seed % EVERY, ALL)


def draw_schedule(
    entropy: SimEntropy, profile: Profile, kinds: Sequence[str], nodes: Sequence[str]
) -> list[Entry]:
    """The faults of one run, in order of time."""
    weights = [profile.weights.get(kind, profile.otherwise) for kind in kinds]
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
