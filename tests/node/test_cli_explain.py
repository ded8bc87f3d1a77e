"""`busnode explain`."""

import json

import pytest
from click.testing import CliRunner, Result

from busnode.node.cli import main
from busnode.node.cli_explain import EVERY_ERROR, explanation
from busnode.wire.errors import BY_CODE, BadFrame, NotMirrored


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["explain", *arguments])


@pytest.mark.parametrize("spelling", ["BAD_FRAME", "bad_frame", "bad-frame", "BAD_FRAME:"])
def test_a_code_is_explained_however_it_is_spelled(spelling: str) -> None:
    result = run(spelling)
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "BAD_FRAME",
        "  meaning     A prefix that no frame can have.",
        f"  what to do  {BadFrame.advice}",
        "  session     It ends.",
        "  in Python   BadFrame, which is a ProtocolError",
    ]


def test_a_session_that_survives_is_said_to() -> None:
    assert "  session     It goes on.\n" in run("NOT_MIRRORED").stdout


def test_an_explanation_is_an_object_with_json() -> None:
    assert json.loads(run("NOT_MIRRORED", "--json").stdout) == {
        "code": "NOT_MIRRORED",
        "name": "NotMirrored",
        "kind": "Refused",
        "meaning": "No mirror is up; nothing was appended.",
        "ends_session": False,
        "advice": NotMirrored.advice,
    }


def test_an_unknown_code_is_answered_with_near_ones() -> None:
    result = run("BAD_FRAM")
    assert result.exit_code == 2
    assert "there is no error code 'BAD_FRAM'; did you mean BAD_FRAME" in result.stderr


def test_a_code_like_no_other_is_answered_with_where_to_look() -> None:
    result = run("42")
    assert result.exit_code == 2
    assert "did you mean" not in result.stderr
    assert "`busnode explain` lists them all" in result.stderr


def test_without_a_code_all_are_listed() -> None:
    lines = run().stdout.splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(EVERY_ERROR)
    assert {each["code"] for each in json.loads(run("--json").stdout)} == set(EVERY_ERROR)


def test_whatever_the_command_line_reports_can_be_explained() -> None:
    assert {*BY_CODE, "USAGE"} <= set(EVERY_ERROR)


@pytest.mark.parametrize("code", list(EVERY_ERROR))
def test_every_error_has_a_meaning_that_is_a_sentence(code: str) -> None:
    told = explanation(EVERY_ERROR[code])
    assert told.meaning[0].isupper()
    assert told.meaning.endswith(".")
    assert "\n" not in told.meaning
