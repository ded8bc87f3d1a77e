"""Simulated randomness: everything that happens by chance comes from one seed."""

import random
from collections.abc import Sequence
from typing import TypeVar

from busnode.wire.ids import BROKER_ID_BYTES, BrokerId

T = TypeVar("T")


class SimEntropy:
    """The same seed gives the same draws, in every process and under every hash seed.

    Beside the seam it has what the simulated world draws its faults with.
    """

    def __init__(self, seed: int | str) -> None:
        self._seed = seed
        self._random = random.Random(f"{seed}")  # a string is hashed the same way everywhere

    def fork(self, name: str) -> "SimEntropy":
        """Entropy of its own for one part, so that a draw there moves none here."""
        return SimEntropy(f"{self._seed}/{name}")

    def random(self) -> float:
        return self._random.random()

    def u64(self) -> int:
        return self._random.getrandbits(64)

    def broker_id(self) -> BrokerId:
        return BrokerId(self._random.randbytes(BROKER_ID_BYTES))

    def chance(self, probability: float) -> bool:
        """Draws nothing when the outcome is certain: a fault that is off does not move the rest."""
        if probability <= 0.0 or probability >= 1.0:
            return probability >= 1.0
        return self._random.random() < probability

    def below(self, limit: int) -> int:
        """A number in [0, limit)."""
        return self._random.randrange(limit)

    def between(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)

    def choose(self, among: Sequence[T]) -> T:
        return self._random.choice(among)

    def choose_weighted(self, among: Sequence[T], weights: Sequence[float]) -> T:
        return self._random.choices(among, weights)[0]

    def garbage(self, count: int) -> bytes:
        return self._random.randbytes(count)
