"""The outside world as one object, handed to a node at its start."""

from dataclasses import dataclass

from busnode.world.clock import Clock
from busnode.world.discovery import Discovery
from busnode.world.entropy import Entropy
from busnode.world.files import Files
from busnode.world.network import Network


@dataclass(frozen=True, slots=True)
class World:
    """Everything that a node may ask of the world; nothing goes around it."""

    clock: Clock
    entropy: Entropy
    files: Files
    network: Network
    discovery: Discovery
