"""The outside world as one object, handed to a node at its start."""

from dataclasses import dataclass, field

from busnode.world.clock import Clock
from busnode.world.discovery import Discovery
from busnode.world.entropy import Entropy
from busnode.world.files import Files
from busnode.world.network import Network
from busnode.world.threads import Inline, Threads


@dataclass(frozen=True, slots=True)
class World:
    """Everything that a node may ask of the world; nothing goes around it."""

    clock: Clock
    entropy: Entropy
    files: Files
    network: Network
    discovery: Discovery
    threads: Threads = field(default_factory=Inline)
