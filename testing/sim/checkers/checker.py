"""What a checker is: it reads the whole history of a run and says where a promise was broken."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from busnode.testing.sim.history import Acked, History
from busnode.testing.sim.task_audit import Fates
from busnode.wire.ids import LogId


@dataclass(frozen=True, slots=True)
class Violation:
    checker: str
    at: float
    text: str
    payload: bytes | None = None
    """The message that it is about, if it is about one."""

    def __str__(self) -> str:
        return f"{self.checker}: {self.text} (at {self.at:.3f} s)"


@dataclass(slots=True)
class Story:
    """A run that is over."""

    history: History
    bodies: dict[tuple[LogId, int], bytes] = field(default_factory=dict[tuple[LogId, int], bytes])
    """All messages that were ever seen under a number: on a disk at the end, or by somebody."""
    conflicts: list[tuple[LogId, int, str]] = field(default_factory=list[tuple[LogId, int, str]])
    """Numbers with two bodies on the disks, and where."""
    lacking: list[tuple[str, Acked]] = field(default_factory=list[tuple[str, Acked]])
    """What they neither got nor were told of, where it could be had or missed."""
    tasks: Fates | None = None
    """What has become of tasks; None in a run that is about messages."""


Found = Iterator[tuple[float, str, bytes | None]]
"""When, what, and about which message."""

CHECKERS: Final[dict[str, Callable[[Story], Found]]] = {}
"""All checkers by name."""


def checker(name: str) -> Callable[[Callable[[Story], Found]], Callable[[Story], Found]]:
    """Make a function a checker."""

    def add(check: Callable[[Story], Found]) -> Callable[[Story], Found]:
        assert name not in CHECKERS
        CHECKERS[name] = check
        return check

    return add


def judge(story: Story) -> list[Violation]:
    """All that is wrong, the first first."""
    found = [
        Violation(name, at, text, payload)
        for name, check in CHECKERS.items()
        for at, text, payload in check(story)
    ]
    return sorted(found, key=lambda violation: violation.at)
