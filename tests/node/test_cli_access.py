"""`busnode key`, `busnode user` and `busnode acl`: files, exit codes, and no secret where none is
asked for."""

import json
import os
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from busnode.node.access import load_users
from busnode.node.cli import main
from busnode.security import users as users_module
from busnode.security.cluster_key import read_keys
from busnode.security.users import is_password
from busnode.world.real_files import RealFiles

SECRET = "correct horse battery"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(users_module, "MEMORY_KIB", 8)
    monkeypatch.setattr(users_module, "ITERATIONS", 1)


def run(*arguments: str, given: str | None = None) -> Result:
    result = CliRunner().invoke(main, arguments, input=given)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def mode(path: str) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


# key new ------------------------------------------------------------------------------------------


def test_a_new_key_is_in_a_file_that_only_its_owner_reads() -> None:
    os.umask(0)
    result = run("key", "new", "cluster.key")
    assert result.exit_code == 0
    text = Path("cluster.key").read_text()
    (key,) = read_keys(text)
    assert mode("cluster.key") == 0o600
    assert key.key_id.hex() in result.output
    assert text.strip() not in result.output
    told = json.loads(run("key", "new", "other.key", "--json").stdout)
    (other,) = read_keys(Path("other.key").read_text())
    assert told == {"file": "other.key", "key_id": other.key_id.hex()}
    assert other != key


def test_a_key_that_is_there_is_never_overwritten() -> None:
    run("key", "new", "cluster.key")
    before = Path("cluster.key").read_text()
    result = run("key", "new", "cluster.key")
    assert result.exit_code == 2
    assert "is there already" in result.stderr
    assert Path("cluster.key").read_text() == before
    Path("link.key").symlink_to("cluster.key")
    assert run("key", "new", "link.key").exit_code == 2
    assert Path("cluster.key").read_text() == before


@pytest.mark.parametrize("file", ["no/such/folder.key", "."])
def test_a_file_that_cannot_be_written_is_one_clear_line(file: str) -> None:
    result = run("key", "new", file)
    assert result.exit_code in (1, 2)
    assert file in result.stderr
    assert "Traceback" not in result.output


# user ---------------------------------------------------------------------------------------------


def test_a_token_is_printed_once_and_kept_as_a_hash() -> None:
    os.umask(0)
    result = run("user", "add", "billing")
    assert result.exit_code == 0
    token = result.stdout.splitlines()[-1]
    assert token.startswith("billing.")
    assert mode("users.toml") == 0o600
    assert token not in Path("users.toml").read_text()
    assert load_users(RealFiles(), "users.toml").by_token(token) == "billing"
    listed = run("user", "ls")
    assert listed.stdout == "billing  by token\n"
    assert "sha256" not in listed.output


def test_a_password_is_read_from_stdin_and_kept_as_a_hash() -> None:
    assert run("user", "add", "ada", "--by", "password", given=f"{SECRET}\n").exit_code == 0
    user = load_users(RealFiles(), "users.toml").get("ada")
    assert user is not None
    assert user.password is not None
    assert is_password(SECRET, user.password)
    assert SECRET not in Path("users.toml").read_text()


def test_users_are_added_one_behind_the_other_and_listed_as_json() -> None:
    told = json.loads(run("user", "add", "bot", "--json").stdout)
    assert told["token"].startswith("bot.")
    assert (told["user"], told["by"], told["file"]) == ("bot", "token", "users.toml")
    run("user", "add", "ada", "--by", "password", given=f"{SECRET}\n")
    run("user", "add", "gate.way@x", "--by", "certificate")
    assert json.loads(run("user", "ls", "--json").stdout) == {
        "users": [
            {"user": "ada", "by": ["password"]},
            {"user": "bot", "by": ["token"]},
            {"user": "gate.way@x", "by": ["certificate"]},
        ]
    }


@pytest.mark.parametrize(
    ("arguments", "given", "why"),
    [
        (["anonymous"], None, "cannot be a user"),
        (["a b"], None, "cannot be a user"),
        (['x"]\n[root'], None, "cannot be a user"),
        (["../x"], None, "cannot be a user"),
        (["ada", "--by", "password"], "short\n", "at least 8 bytes"),
        (["ada", "--by", "password"], "", "at least 8 bytes"),
        (["ada", "--by", "magic"], None, "magic"),
        ([], None, "NAME"),
    ],
)
def test_wrong_input_is_one_clear_line_and_nothing_is_written(
    arguments: list[str], given: str | None, why: str
) -> None:
    result = run("user", "add", *arguments, given=given)
    assert result.exit_code == 2
    assert why in result.stderr
    assert not Path("users.toml").exists()


def test_a_user_that_is_there_is_not_added_again() -> None:
    run("user", "add", "ada")
    before = Path("users.toml").read_text()
    result = run("user", "add", "ada")
    assert result.exit_code == 2
    assert "already" in result.stderr
    assert Path("users.toml").read_text() == before


def test_a_user_is_added_behind_a_last_line_that_has_no_end() -> None:
    run("user", "add", "one")
    path = Path("users.toml")
    path.write_text(path.read_text().rstrip())
    assert run("user", "add", "two").exit_code == 0
    assert load_users(RealFiles(), "users.toml").names() == ["one", "two"]


def test_a_file_of_users_that_makes_no_sense_is_left_as_it_is() -> None:
    Path("users.toml").write_text(f"[ada]\npassword = '{SECRET}'\n")
    for command in (("user", "add", "bob"), ("user", "ls")):
        result = run(*command)
        assert result.exit_code == 2
        assert "[ada] password" in result.stderr
        assert SECRET not in result.output
    assert "bob" not in Path("users.toml").read_text()
    assert run("user", "ls", "--file", "none.toml").exit_code == 2


# acl check ----------------------------------------------------------------------------------------

ACL = """
[ada.allow]
publish = ['/a/*']
[ada.deny]
publish = ['/a/b']
['*'.allow]
queue = ['/$task/q']
"""


def test_which_rule_decides_is_said_and_the_exit_code_tells() -> None:
    Path("acl.toml").write_text(ACL)
    may = run("acl", "check", "ada", "publish", "/a/x")
    assert (may.exit_code, may.stdout) == (0, "ada may publish /a/x: [ada.allow] publish /a/*\n")
    denied = run("acl", "check", "ada", "publish", "/a/b")
    assert denied.exit_code == 1
    assert denied.stdout == "ada may not publish /a/b: [ada.deny] publish /a/b\n"
    nothing = run("acl", "check", "bob", "publish", "/a/x")
    assert nothing.exit_code == 1
    assert "no rule of bob or of everybody is about it" in nothing.stdout
    assert run("acl", "check", "bob", "queue", "/$task/q").exit_code == 0


def test_the_answer_is_an_object_with_json() -> None:
    Path("acl.toml").write_text(ACL)
    result = run("acl", "check", "ada", "publish", "/a/b", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout) == {
        "user": "ada", "verb": "publish", "topic": "/a/b", "allowed": False,
        "rule": "[ada.deny] publish /a/b",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["ada", "read", "/a"], "read"),
        (["ada", "publish", "a"], "begin with /"),
        (["ada", "publish", "/a/*"], "/a/*"),
        (["ada", "publish"], "TOPIC"),
        (["ada", "publish", "/a", "--file", "none.toml"], "none.toml"),
    ],
)
def test_a_question_that_makes_no_sense_is_one_clear_line(arguments: list[str], why: str) -> None:
    Path("acl.toml").write_text(ACL)
    result = run("acl", "check", *arguments)
    assert result.exit_code == 2, result.output
    assert why in result.stderr
    assert "Traceback" not in result.output
