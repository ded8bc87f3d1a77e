"""How a node tells of itself: lines for people or JSON for machines, on stderr.

Whoever has something to say uses the standard library with a short event and its facts beside it:

    logger.info("client came", extra=fields(client=3, name="billing"))

What came from outside is escaped here, so that no client can forge a line or move a cursor.
"""

import json
import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TextIO

from busnode.node.presentation import printable

LEVELS: Final = ("debug", "info", "warning", "error")
FORMATS: Final = ("text", "json")

_FIELDS: Final = "busnode_fields"
_COLOURS: Final = {"debug": "2", "warning": "33", "error": "31", "critical": "31"}
_CRAMPED: Final = frozenset(' "=')


@dataclass(frozen=True, slots=True)
class LogConfig:
    format: str = "text"
    level: str = "info"


def fields(**facts: object) -> Mapping[str, object]:
    """Facts about an event, for the argument `extra` of a logger's methods."""
    return {_FIELDS: facts}


def configure(config: LogConfig, stream: TextIO | None = None) -> None:
    """Make this process's logs go to a stream, stderr unless another is given.

    For a process that is ours: an embedded node leaves logging to whoever embeds it.
    """
    out: TextIO = sys.stderr if stream is None else stream
    handler = logging.StreamHandler(out)
    handler.setFormatter(JsonLines() if config.format == "json" else TextLines(out.isatty()))
    level = config.level.upper()
    logging.raiseExceptions = False  # nobody reads stderr any more: that must not end a node
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("busnode").setLevel(level)


class TextLines(logging.Formatter):
    """`05:23:55.123 info    client came  client=3 name=billing`; with the date in a file."""

    def __init__(self, on_terminal: bool) -> None:
        super().__init__()
        self._on_terminal = on_terminal

    def format(self, record: logging.LogRecord) -> str:
        level = record.levelname.lower()
        when = datetime.fromtimestamp(record.created, UTC).isoformat(" ", "milliseconds")[:-6]
        shown = f"{level:<7}"
        if self._on_terminal:
            when = when.partition(" ")[2]
            colour = _COLOURS.get(level)
            shown = f"\x1b[{colour}m{shown}\x1b[0m" if colour else shown
        facts = " ".join(f"{name}={_value(value)}" for name, value in _facts(record).items())
        line = f"{when} {shown} {printable(record.getMessage())}{'  ' if facts else ''}{facts}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JsonLines(logging.Formatter):
    """One object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "logger": record.name,
        }
        for name, value in _facts(record).items():
            line[f"{name}_" if name in line else name] = value
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def _facts(record: logging.LogRecord) -> Mapping[str, Any]:
    return getattr(record, _FIELDS, {})


def _value(value: object) -> str:
    text = printable(str(value))
    return json.dumps(text, ensure_ascii=False) if not text or _CRAMPED & set(text) else text
