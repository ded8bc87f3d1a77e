"""What a node has to do for the tasks of others and what takes a while: one after the other."""

from dataclasses import dataclass
from typing import ClassVar

from busnode.wire.control import TaskFinished
from busnode.wire.ids import BrokerId


@dataclass(frozen=True, slots=True)
class CarryAll:
    """Take over the tasks of an origin."""

    weight: ClassVar = 1
    origin: BrokerId


@dataclass(frozen=True, slots=True)
class Compare:
    """Somebody else has taken over an origin: tell what is finished."""

    weight: ClassVar = 1
    origin: BrokerId


@dataclass(frozen=True, slots=True)
class Told:
    """Somebody else has finished some of ours; or has some of its own, or knows that they are
    finished."""

    message: TaskFinished
    sender: BrokerId

    @property
    def weight(self) -> int:
        message = self.message
        return 1 + sum(map(len, (message.finished, message.held, message.elsewhere)))


Job = CarryAll | Compare | Told
