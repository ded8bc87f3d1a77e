"""Values as people write them: durations with a unit, sizes, ports, names."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol, cast

from busnode.wire.errors import BadTask
from busnode.wire.limits import NAME_BYTES_MAX
from busnode.wire.retry_schedule import Schedule
from busnode.wire.task_options import check_queue
from busnode.world.network import Address, parse_address

DURATIONS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
SIZES: Final = {
    "B": 1,
    **{f"{letter}iB": 1024**power for power, letter in enumerate("KMGT", 1)},
    **{f"{letter}B": 1000**power for power, letter in enumerate("KMGT", 1)},
    "kB": 1000,
}
OFF: Final = "off"
_AMOUNT: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?) ?([A-Za-z]+)")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_TRUE: Final = frozenset({"1", "true", "yes", "on"})
_FALSE: Final = frozenset({"0", "false", "no", "off"})


class Kind(Protocol):
    """How a value is written. ValueError tells what was expected."""

    @property
    def metavar(self) -> str: ...

    def read(self, raw: object) -> Any:
        """The value from text, or from what TOML has made of it."""
        ...

    def write(self, value: Any) -> str:
        """The value as a person would write it."""
        ...


class Text:
    """Words without control characters."""

    def __init__(self, metavar: str, bytes_max: int = NAME_BYTES_MAX) -> None:
        self.metavar = metavar
        self._bytes_max = bytes_max

    def read(self, raw: object) -> str:
        if not isinstance(raw, str) or not raw or not raw.isprintable():
            raise ValueError("is no text")
        if len(raw.encode()) > self._bytes_max:
            raise ValueError(f"has more than {self._bytes_max} bytes: shorten it")
        return raw

    def write(self, value: str) -> str:
        return value


class NodeName:
    """A word that can also be a folder."""

    metavar = "NAME"

    def read(self, raw: object) -> str:
        if not isinstance(raw, str) or not _NAME.fullmatch(raw):
            raise ValueError(
                "cannot be a name: use letters, digits, '.', '_' and '-', at most 63 of them, "
                "and begin with a letter or a digit"
            )
        return raw

    def write(self, value: str) -> str:
        return value


class Choice:
    def __init__(self, *options: str) -> None:
        self.metavar = "|".join(options)
        self._options = options

    def read(self, raw: object) -> str:
        if raw not in self._options:
            raise ValueError(f"is none of {', '.join(self._options)}")
        return str(raw)

    def write(self, value: str) -> str:
        return value


class Storage:
    """The name of a storage: ours, or one that was installed beside."""

    metavar = "NAME"

    def read(self, raw: object) -> str:
        if raw not in ("files", "memory"):
            from busnode.segments.storages import storage_names  # noqa: PLC0415 - 20 ms

            if raw not in storage_names():
                raise ValueError(f"is none of {', '.join(storage_names())}")
        return str(raw)

    def write(self, value: str) -> str:
        return value


class Port:
    metavar = "PORT"

    def __init__(self, can_be_off: bool = False) -> None:
        self._can_be_off = can_be_off

    def read(self, raw: object) -> int | None:
        if self._can_be_off and raw == OFF:
            return None
        number = _whole(raw)
        if number is None or number > 65535:
            off = f", or {OFF!r}" if self._can_be_off else ""
            raise ValueError(f"is no port: write a number from 1 to 65535, 0 for a free one{off}")
        return number

    def write(self, value: int | None) -> str:
        return OFF if value is None else str(value)


class Count:
    metavar = "N"

    def __init__(self, least: int = 1) -> None:
        self._least = least

    def read(self, raw: object) -> int:
        number = _whole(raw)
        if number is None or number < self._least:
            raise ValueError(f"is no number from {self._least} on")
        return number

    def write(self, value: int) -> str:
        return str(value)


class Duration:
    metavar = "TIME"

    def __init__(self, least_s: float = 0.001, most_s: float = 100 * 365 * 86400.0) -> None:
        self._least_s = least_s
        self._most_s = most_s

    def read(self, raw: object) -> float:
        found = _AMOUNT.fullmatch(raw) if isinstance(raw, str) else None
        if found is None or found[2] not in DURATIONS:
            raise ValueError("is no time: write it with its unit, as 500ms, 90s, 15m, 12h or 1d")
        seconds = float(found[1]) * DURATIONS[found[2]]
        if not self._least_s <= seconds <= self._most_s:
            raise ValueError(
                f"is out of bounds: {self.write(self._least_s)} to {self.write(self._most_s)}"
            )
        return seconds

    def write(self, value: float) -> str:
        return _written(value, DURATIONS, "d")


class Size:
    metavar = "SIZE"

    def __init__(self, least_bytes: int = 1) -> None:
        self._least_bytes = least_bytes

    def read(self, raw: object) -> int:
        found = _AMOUNT.fullmatch(raw) if isinstance(raw, str) else None
        if found is None or found[2] not in SIZES:
            raise ValueError("is no size: write it with its unit, as 512KiB, 64MiB or 10GB")
        size_bytes = int(float(found[1]) * SIZES[found[2]])
        if size_bytes < self._least_bytes:
            raise ValueError(f"is too small: {self.write(self._least_bytes)} is the least")
        return size_bytes

    def write(self, value: int | None) -> str:
        return "no limit" if value is None else _written(value, SIZES, "TiB")


class OnOff:
    """For what is on unless somebody says otherwise, which a flag without a value could not."""

    metavar = "on|off"

    def read(self, raw: object) -> bool:
        word = str(raw).lower()
        if word not in _TRUE | _FALSE:
            raise ValueError("is neither on nor off")
        return word in _TRUE

    def write(self, value: bool) -> str:
        return "on" if value else "off"


class Seeds:
    """Addresses of nodes; several of them with commas between, or as a list, or given again."""

    metavar = "HOST:PORT"

    def __init__(self, default_port: int) -> None:
        self._default_port = default_port

    def read(self, raw: object) -> tuple[Address, ...]:
        texts: object = raw.split(",") if isinstance(raw, str) else raw
        if not isinstance(texts, list | tuple):
            raise ValueError("is no address, nor a list of them")
        found: list[Address] = []
        for text in cast("Sequence[object]", texts):
            for part in str(text).split(","):
                found.append(parse_address(part, self._default_port))
        return tuple(dict.fromkeys(found))

    def write(self, value: tuple[Address, ...]) -> str:
        return ",".join(map(str, value))


class Retry:
    """When a task that failed is tried again."""

    metavar = "SCHEDULE"

    def read(self, raw: object) -> Schedule:
        try:
            return Schedule.parse(str(raw))
        except BadTask as error:
            raise ValueError(f"is no retry schedule: {error.text}") from None

    def write(self, value: Schedule) -> str:
        return value.text


class QueueRetries:
    """The same for queues by their names; given again for each, or as a list."""

    metavar = "QUEUE=SCHEDULE"

    def read(self, raw: object) -> tuple[tuple[str, Schedule], ...]:
        texts: object = [raw] if isinstance(raw, str) else raw
        if not isinstance(texts, list | tuple):
            raise ValueError("is no QUEUE=SCHEDULE, nor a list of them")
        found: dict[str, Schedule] = {}
        for text in cast("Sequence[object]", texts):
            queue, separator, schedule = str(text).partition("=")
            try:
                found[check_queue(queue)] = Schedule.parse(schedule if separator else "")
            except BadTask as error:
                raise ValueError(f"is no QUEUE=SCHEDULE: {error.text}") from None
        return tuple(found.items())

    def write(self, value: tuple[tuple[str, Schedule], ...]) -> str:
        return " ".join(f"{queue}={schedule.text}" for queue, schedule in value)


class Switch:
    metavar = ""

    def read(self, raw: object) -> bool:
        if isinstance(raw, bool):
            return raw
        word = str(raw).lower()
        if word not in _TRUE | _FALSE:
            raise ValueError("is neither true nor false")
        return word in _TRUE

    def write(self, value: bool) -> str:
        return str(value).lower()


def _whole(raw: object) -> int | None:
    if isinstance(raw, int) and not isinstance(raw, bool):
        return raw if raw >= 0 else None
    is_number = isinstance(raw, str) and raw.isascii() and raw.isdigit() and len(raw) <= 15
    return int(str(raw)) if is_number else None


def _written(value: float, units: Mapping[str, float], largest: str) -> str:
    """With the largest unit, up to one that people use, of which it is a whole number."""
    fitting = [
        (size, unit)
        for unit, size in units.items()
        if size <= units[largest] and (value / size).is_integer()
    ]
    size, unit = max(fitting, default=(1, ""))
    return f"{value / size:g}{unit}"
