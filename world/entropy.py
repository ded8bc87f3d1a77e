"""The seam to randomness."""

from typing import Protocol

from busnode.wire.ids import BrokerId


class Entropy(Protocol):
    """Random numbers and GUIDs."""

    def random(self) -> float:
        """A number in [0, 1): for jitter and for choosing among equals."""
        ...

    def u64(self) -> int:
        """A number in [0, 2**64): for producer ids and nonces."""
        ...

    def broker_id(self) -> BrokerId:
        """A GUID that no other incarnation of any node has."""
        ...
