"""Logs: one line for each event, for people and for machines, that nobody can forge."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from busnode.node.logs import LogConfig, configure, fields

logger = logging.getLogger("busnode.node.test")


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Puts back what `configure` does to the whole process."""
    root, ours = logging.getLogger(), logging.getLogger("busnode")
    before = root.handlers[:], root.level, ours.level, logging.raiseExceptions
    yield
    root.handlers[:], root.level, ours.level, logging.raiseExceptions = before


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def logged(config: LogConfig, said: str, stream: io.StringIO | None = None, **facts: object) -> str:
    stream = stream or io.StringIO()
    configure(config, stream)
    logger.warning(said, extra=fields(**facts))
    return stream.getvalue()


def test_a_line_has_time_level_event_and_facts() -> None:
    line = logged(LogConfig(), "client came", client=3, name="billing")
    day, when, rest = line.split(" ", 2)
    assert (len(day), len(when)) == (len("2025-11-16"), len("05:23:55.123"))
    assert rest == "warning client came  client=3 name=billing\n"


def test_on_a_terminal_it_is_short_and_in_colour() -> None:
    line = logged(LogConfig(), "it broke", Terminal())
    assert line[2] == line[5] == ":"
    assert line[12:] == " \x1b[33mwarning\x1b[0m it broke\n"


def test_facts_that_could_be_misread_are_quoted_and_escaped() -> None:
    line = logged(LogConfig(), "x", a="two words", b="", c="q=1", d="\x1b[2J", e="1\n2 info forged")
    assert line.endswith(r' x  a="two words" b="" c="q=1" d=\x1b[2J e="1\\n2 info forged"' + "\n")
    assert line.count("\n") == 1


def test_an_event_cannot_forge_a_line_either() -> None:
    assert logged(LogConfig(), "client\n12:00 info evil").count("\n") == 1


def test_json_is_one_object_a_line() -> None:
    line = logged(LogConfig("json"), "client\ncame", client=3, name=b"x", event="mine")
    assert line.count("\n") == 1
    found = json.loads(line)
    assert found.pop("time").endswith("+00:00")
    assert found == {
        "level": "warning",
        "event": "client\ncame",
        "logger": "busnode.node.test",
        "client": 3,
        "name": "b'x'",
        "event_": "mine",
    }


@pytest.mark.parametrize("form", ["text", "json"])
def test_an_exception_is_told_with_its_traceback(form: str) -> None:
    stream = io.StringIO()
    configure(LogConfig(form), stream)
    try:
        raise ValueError("why")
    except ValueError:
        logger.exception("it failed")
    text = stream.getvalue() if form == "text" else json.loads(stream.getvalue())["traceback"]
    assert "Traceback" in text
    assert "ValueError: why" in text


def test_the_level_is_that_of_the_node_and_others_must_warn() -> None:
    stream = io.StringIO()
    configure(LogConfig(level="debug"), stream)
    logger.debug("ours")
    logging.getLogger("elsewhere").info("theirs")
    logging.getLogger("elsewhere").warning("their warning")
    assert "ours" in stream.getvalue()
    assert "theirs" not in stream.getvalue()
    assert "their warning" in stream.getvalue()


def test_a_stream_that_nobody_reads_ends_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    configure(LogConfig(), stream)
    stream.close()
    logger.error("into the void")
    assert capsys.readouterr().err == ""
