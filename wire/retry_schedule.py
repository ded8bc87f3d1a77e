"""When a task that has failed is tried again, and when it is not.

    0,600,900,1200,1500                                            waits before each attempt, in s
    none                                                           one attempt
    exponential:first=1,factor=2,cap=3600,attempts=10,jitter=0.2   longer and longer, up to the cap

The text stands in headers and in configurations, so what was written once is read for good.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from busnode.wire.errors import BadTask

ATTEMPTS_MAX: Final = 100
"""Each attempt stays in the history, which has to fit into headers when the task is carried."""

WAIT_S_MAX: Final = 30 * 24 * 3600.0
"""What is to be tried again later than in a month has a due time of its own, not a retry."""

TEXT_MAX: Final = 1024
"""Characters of a schedule: 100 waits take less."""

_EXPONENTIAL: Final = "exponential:"
_DEFAULTS: Final = {"first": 1.0, "factor": 2.0, "cap": 3600.0, "attempts": 10.0, "jitter": 0.2}


@dataclass(frozen=True, slots=True)
class Schedule:
    """Equal texts give equal schedules; `parse` is the way to make one."""

    text: str
    attempts_max: int
    waits_s: tuple[float, ...] = ()
    """Before attempt 1, 2, 3 …; empty for an exponential one."""
    first_s: float = 0.0
    factor: float = 1.0
    cap_s: float = 0.0
    jitter: float = 0.0

    @staticmethod
    def parse(text: str) -> "Schedule":
        """BadTask for a text that is none."""
        return _parsed(text)

    def wait_s(self, attempt: int, random: float) -> float:
        """How long to wait before this attempt, 2 or later. `random` is from 0 to 1."""
        assert 2 <= attempt <= self.attempts_max
        if self.waits_s:
            return self.waits_s[attempt - 1]
        if not self.first_s:
            return 0.0
        # By logarithms, because factor^98 is more than a float can hold.
        steps = attempt - 2
        grown = math.log(self.first_s) + steps * math.log(self.factor)
        wait_s = self.cap_s if grown >= math.log(self.cap_s) else self.first_s * self.factor**steps
        return wait_s * (1.0 + self.jitter * (2.0 * random - 1.0))

    @property
    def first_wait_s(self) -> float:
        """Before the first attempt, beside the task's own delay."""
        return self.waits_s[0] if self.waits_s else 0.0


@lru_cache(maxsize=256)
def _parsed(text: str) -> Schedule:
    if len(text) > TEXT_MAX:
        raise BadTask(f"retry schedule of {len(text)} characters; the limit is {TEXT_MAX}")
    if text == "none":
        return Schedule(text, 1, (0.0,))
    if text.startswith(_EXPONENTIAL):
        return _exponential(text)
    waits_s = tuple(_number(text, part, 0.0, WAIT_S_MAX) for part in text.split(","))
    if len(waits_s) > ATTEMPTS_MAX:
        raise _bad(text, f"has {len(waits_s)} attempts and {ATTEMPTS_MAX} are allowed")
    return Schedule(text, len(waits_s), waits_s)


def _exponential(text: str) -> Schedule:
    values = dict(_DEFAULTS)
    given: set[str] = set()
    for part in text.removeprefix(_EXPONENTIAL).split(","):
        name, separator, value = part.partition("=")
        if not separator or name not in values or name in given:
            raise _bad(
                text, f"has {part[:40]!a}: expected each of {', '.join(values)} at most once"
            )
        given.add(name)
        low, high = {
            "first": (0.0, WAIT_S_MAX),
            "factor": (1.0, 1000.0),
            "cap": (0.001, WAIT_S_MAX),
            "attempts": (1.0, float(ATTEMPTS_MAX)),
            "jitter": (0.0, 1.0),
        }[name]
        values[name] = _number(text, value, low, high)
    attempts = values["attempts"]
    if attempts != int(attempts):
        raise _bad(text, f"has {attempts} attempts: expected a whole number")
    return Schedule(
        text,
        int(attempts),
        first_s=values["first"],
        factor=values["factor"],
        cap_s=values["cap"],
        jitter=values["jitter"],
    )


def _number(text: str, part: str, low: float, high: float) -> float:
    try:
        # float() takes "1_0", "١", " 1" and "nan" as well, and none of them is meant.
        value = float(part) if part.isascii() and set(part) <= set("0123456789.") else math.nan
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise _bad(text, f"has {part[:40]!a} where a number from {low:g} to {high:g} is expected")
    return value


def _bad(text: str, fault: str) -> BadTask:
    return BadTask(f"retry schedule {text[:60]!a} {fault}: write it as 0,60,300 or none")


DEFAULT: Final = Schedule.parse("0,600,900,1200,1500")
NO_RETRY: Final = Schedule.parse("none")
