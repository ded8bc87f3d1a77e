"""The tree of errors, and its drawing."""

import re

import pytest

from busnode.wire import errors
from busnode.wire.errors import (
    BY_CODE,
    BusnodeError,
    NotMirrored,
    ProtocolError,
    Refused,
    StorageError,
    Unavailable,
)

EVERY = [
    value
    for value in vars(errors).values()
    if isinstance(value, type) and issubclass(value, BusnodeError)
]
FAMILIES = (ProtocolError, Refused, Unavailable, StorageError)

every_error = pytest.mark.parametrize("error", EVERY, ids=lambda error: error.__name__)


def drawn() -> dict[str, tuple[str | None, str | None]]:
    """The drawing at the top of the module: each class with its parent and, of leaves, its code."""
    found: dict[str, tuple[str | None, str | None]] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"^    ((?:│   |    )*)(├── |└── )?([A-Z]\w+)(?: +([A-Z_]{5,}))?\b", line)
        if match is None:
            continue
        indent, branch, name, code = match.groups()
        depth = len(indent) // 4 + bool(branch)
        del path[depth:]
        found[name] = (path[-1] if path else None, code)
        path.append(name)
    return found


def test_the_drawing_shows_every_class_under_its_parent_and_no_other() -> None:
    parents = {name: parent for name, (parent, _) in drawn().items()}
    assert parents == {
        error.__name__: None if error is BusnodeError else error.__bases__[0].__name__
        for error in EVERY
    }


def test_the_drawing_shows_the_code_of_every_leaf() -> None:
    codes = {name: code for name, (_, code) in drawn().items()}
    assert codes == {
        error.__name__: None if errors.is_family(error) else error.code for error in EVERY
    }


def test_codes_are_unique_and_each_is_found_again() -> None:
    assert len({error.code for error in EVERY}) == len(EVERY)
    assert {error.code: error for error in EVERY} == BY_CODE


@every_error
def test_an_error_has_a_code_and_an_advice_of_its_own(error: type[BusnodeError]) -> None:
    assert "code" in vars(error)
    assert "advice" in vars(error)
    assert re.fullmatch(r"[A-Z]+(_[A-Z]+)*", error.code)
    assert re.fullmatch(r"[A-Z].*\.", error.advice), "a sentence"
    assert [other for other in EVERY if other.advice == error.advice] == [error]


@every_error
def test_the_code_of_a_leaf_is_its_name_spelled_out(error: type[BusnodeError]) -> None:
    if not errors.is_family(error):
        assert error.code == re.sub(r"(?<!^)(?=[A-Z])", "_", error.__name__).upper()


@every_error
def test_a_session_ends_with_a_breach_of_the_protocol_and_with_nothing_else(
    error: type[BusnodeError],
) -> None:
    assert error.ends_session == issubclass(error, ProtocolError)


@every_error
def test_an_error_belongs_to_one_family(error: type[BusnodeError]) -> None:
    families = [family for family in FAMILIES if issubclass(error, family)]
    assert len(families) == (error is not BusnodeError)


@every_error
def test_an_error_tells_its_code_and_its_text(error: type[BusnodeError]) -> None:
    raised = error("the text says what to do")
    assert str(raised) == f"{error.code}: the text says what to do"
    assert raised.text == "the text says what to do"
    assert raised.retry_after_s is None


def test_a_refusal_can_say_when_to_try_again() -> None:
    assert NotMirrored("no mirror is up", retry_after_s=2.0).retry_after_s == 2.0
