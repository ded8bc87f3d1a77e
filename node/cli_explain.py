"""`busnode explain`: what an error code means and what to do about it."""
# ruff: noqa: PLC0415 - rich is for people alone

import json
import re
from difflib import get_close_matches
from functools import cache
from typing import Final, NamedTuple

import click

from busnode.node.cli import WrongUsage
from busnode.wire import errors
from busnode.wire.errors import BusnodeError

EVERY_ERROR: Final = {**errors.BY_CODE, WrongUsage.code: WrongUsage}

_DRAWN: Final = re.compile(r"^[│├└─ ]*(\w+)(?: {2,}([A-Z_]+))?(?: {2,}(.+))?$", re.MULTILINE)
"""A line of the tree at the top of `wire/errors.py`: class, code, and what it says of it."""


class Explanation(NamedTuple):
    code: str
    name: str
    kind: str
    """The class that it derives from: what else catches it."""
    meaning: str
    ends_session: bool
    advice: str


@cache
def _drawn() -> dict[str, str]:
    """What the tree of errors says of each class."""
    return {name: text for name, _, text in _DRAWN.findall(errors.__doc__ or "") if text}


def explanation(error: type[BusnodeError]) -> Explanation:
    """All that is known of an error; its meaning is its docstring, or its line in the tree."""
    meaning = (
        error.__dict__.get("__doc__")
        or _drawn().get(error.__name__)
        or error.code.lower().replace("_", " ")
    )
    return Explanation(
        error.code,
        error.__name__,
        error.__mro__[1].__name__,
        f"{meaning[0].upper()}{meaning[1:].rstrip('.')}.",
        error.ends_session,
        error.advice,
    )


def find(code: str) -> type[BusnodeError]:
    """The error with that code, however it is spelled. UsageError names the nearest."""
    wanted = code.upper().replace("-", "_").removesuffix(":")
    found = EVERY_ERROR.get(wanted)
    if found is None:
        near = get_close_matches(wanted, EVERY_ERROR, n=3, cutoff=0.5)
        text = f"there is no error code {code!r}"
        text += f"; did you mean {' or '.join(near)}?" if near else "."
        raise click.UsageError(f"{text} `busnode explain` lists them all.")
    return found


@click.command()
@click.argument("code", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def explain(code: str | None, as_json: bool) -> None:
    """Say what an error CODE means and what to do. Without one, list them all."""
    if code is not None:
        told = explanation(find(code))
        if as_json:
            _print_json(told._asdict())
        else:
            _show(told)
        return
    every = [explanation(error) for error in EVERY_ERROR.values()]
    if as_json:
        _print_json([each._asdict() for each in every])
    else:
        _show_all(every)


def _print_json(value: object) -> None:
    click.echo(json.dumps(value, ensure_ascii=False, indent=2).encode())


def _session(told: Explanation) -> str:
    return "ends" if told.ends_session else "goes on"


def _show(told: Explanation) -> None:
    from busnode.node.presentation import show_facts

    show_facts(
        told.code,
        {
            "meaning": told.meaning,
            "what to do": told.advice,
            "session": "It ends." if told.ends_session else "It goes on.",
            "in Python": f"{told.name}, which is a {told.kind}",
        },
    )


def _show_all(every: list[Explanation]) -> None:
    from busnode.node.presentation import Column, show_table

    show_table(
        [Column("code", style="cyan"), Column("session"), Column("meaning", wraps=True)],
        [(told.code, _session(told), told.meaning) for told in every],
    )
