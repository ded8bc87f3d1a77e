"""Something that has happened to a node, as a value: what is published, kept and shown."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from busnode.node.event_kinds import Kind
from busnode.wire.errors import Refused

TEXT_CHARACTERS_MAX: Final = 500
"""Of a text and of a fact: reasons may hold paths and what others have said."""

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Fact = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Event:
    utc_us: int
    node: str
    kind: str
    severity: str
    text: str
    facts: Mapping[str, Fact] = field(default_factory=dict[str, Fact])
    count: int = 1
    """How often, when many that are alike are told as one."""
    broker_id: str = ""
    """The first incarnation of the process that tells it; within that its events are numbered."""
    number: int = 0

    def told(self) -> dict[str, Any]:
        """As JSON has it."""
        return {"utc": utc_text(self.utc_us), **asdict(self)}

    @property
    def identity(self) -> tuple[str, int]:
        return self.broker_id, self.number


def make_event(utc_us: int, node: str, kind: Kind, facts: Mapping[str, object]) -> Event:
    """An event from what was seen. A fact that a sentence needs and nobody gave is a question mark:
    telling of something never fails it."""
    plain = {name: _plain(value) for name, value in facts.items()}
    try:
        text = kind.sentence.format_map(plain)
    except (KeyError, ValueError, TypeError):
        beside = ", ".join(f"{name} {value}" for name, value in plain.items())
        text = f"{kind.title}: {beside}"
    return Event(utc_us, node, kind.name, kind.severity, text[:TEXT_CHARACTERS_MAX], plain)


def read_event(told: Mapping[str, Any]) -> Event:
    """The event that JSON has; Refused when it has none."""
    try:
        return Event(**{each.name: told[each.name] for each in fields(Event)})
    except (KeyError, TypeError) as error:
        raise Refused(f"this is no event: {str(told)[:200]}") from error


def utc_text(utc_us: int) -> str | None:
    """A moment as ISO 8601 has it; None before year 1 or after 9999."""
    try:
        moment = EPOCH + timedelta(microseconds=utc_us)
    except OverflowError:
        return None
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _plain(value: object) -> Fact:
    if value is None or isinstance(value, bool | int | float):
        return value
    return str(value)[:TEXT_CHARACTERS_MAX]
