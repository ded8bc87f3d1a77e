"""What went wrong in a task of Spark, as the error that it was.

Spark wraps what a task raises into pages of text, with the traceback of the Python that ran it and
those of the JVM. In it stands our own error, which says all that a person needs.
"""

import re
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Final

from busnode.wire.errors import BusnodeError, Refused

LINE_MAX: Final = 500


def known_codes(kind: type[BusnodeError] = BusnodeError) -> dict[str, type[BusnodeError]]:
    found = {kind.code: kind}
    for each in kind.__subclasses__():
        found |= known_codes(each)
    return found


def told(text: str) -> BusnodeError:
    """Our error in what Spark says, or one with the first line that says anything."""
    codes = known_codes()
    for found in re.finditer(r"^(?:[\w.]+: )*([A-Z_]{4,}): (.+)$", text, re.MULTILINE):
        kind = codes.get(found[1])
        if kind is not None:
            return kind(found[2].strip())
    lines = (line.strip() for line in text.splitlines())
    first = next((line for line in lines if line), "nothing was said")
    return Refused(f"Spark could not do it: {first[:LINE_MAX]}")


@contextmanager
def clear_errors() -> Generator[None]:
    """Raise what a task has raised, and not what Spark made of it."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - an extra

    java: Any = import_module("py4j.protocol")  # it has no types of its own

    try:
        yield
    except (PySparkException, java.Py4JError) as error:
        raise told(str(error)) from error
