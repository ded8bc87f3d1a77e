"""What a kind of fault is: a name, what it does, and how it ends."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from busnode.testing.sim.history import FaultBegun, FaultEnded, FaultSkipped
from busnode.testing.sim.schedule import Entry
from busnode.testing.sim.stage import Skipped, Stage

Strike = Callable[["Fault"], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Fault:
    """One entry of a schedule while it happens."""

    stage: Stage
    entry: Entry

    def begun(self, on: str, detail: str = "") -> None:
        """It has happened. A kind says so once, before it waits."""
        entry = self.entry
        event = FaultBegun(self.stage.now, entry.number, entry.kind, on, detail)
        self.stage.history.add(event)

    @property
    def cause(self) -> str:
        """For what the network keeps apart by its cause."""
        return f"fault {self.entry.number}"


KINDS: Final[dict[str, Strike]] = {}
"""All kinds of faults by name, in the order in which their files are imported."""


def kind(name: str) -> Callable[[Strike], Strike]:
    """Make a function a kind of fault. It strikes, tells that it has (`begun`), waits as long as
    the entry says, and mends what it did; or raises Skipped before it did anything."""

    def add(strike: Strike) -> Strike:
        assert name not in KINDS
        KINDS[name] = strike
        return strike

    return add


async def strike(stage: Stage, entry: Entry) -> None:
    """Let one fault happen, from its beginning to its end."""
    try:
        await KINDS[entry.kind](Fault(stage, entry))
    except Skipped as why:
        stage.history.add(FaultSkipped(stage.now, entry.number, entry.kind, str(why)))
    else:
        stage.history.add(FaultEnded(stage.now, entry.number))
