"""The frame of the command line: what is loaded, and what becomes of whatever goes wrong."""

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from busnode import __version__
from busnode.node import cli
from busnode.wire.batches import Columns
from busnode.wire.errors import BadPattern, BusnodeError, DataDirectoryInUse, NotMirrored
from busnode.wire.ids import Topic

from . import FIRST_BROKER, UTC_US, DataDirectory, make_plant

COMMAND = [sys.executable, "-c", "from busnode.node.cli import main; main()"]
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
"""As users have it: what is printed waits in a buffer, and a pipe may break at the very end."""


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli.main, arguments)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Makes `busnode explain` a command that raises what it is given."""

    def install(error: BaseException) -> None:
        @click.command()
        @click.option("--json", is_flag=True)
        def explain(json: bool) -> None:
            raise error

        monkeypatch.setattr("busnode.node.cli_explain.explain", explain)

    return install


# What there is --------------------------------------------------------------------------------


def test_help_lists_every_command_with_its_line() -> None:
    result = run("--help")
    assert result.exit_code == 0
    for name, (_, line) in cli.COMMANDS.items():
        assert f"  {name} " in result.stdout
        assert line in result.stdout


@pytest.mark.parametrize("arguments", [[], ["-h"], ["--help"]])
def test_no_arguments_are_a_question_for_help(arguments: list[str]) -> None:
    assert run(*arguments).stdout.startswith("Usage: busnode ")


def test_a_group_without_a_command_is_a_question_for_help() -> None:
    result = run("log")
    assert result.exit_code == 0
    assert result.stdout.startswith("Usage: busnode log ")


def test_the_version_is_told() -> None:
    assert run("--version").stdout == f"busnode {__version__}\n"


@pytest.mark.parametrize("name", list(cli.COMMANDS))
def test_a_command_in_the_table_is_there(name: str) -> None:
    pytest.importorskip(cli.COMMANDS[name][0].partition(":")[0])
    assert run(name, "--help").stdout.startswith(f"Usage: busnode {name} ")


def test_the_line_in_the_table_is_one_sentence_that_fits_on_a_terminal() -> None:
    for name, (_, line) in cli.COMMANDS.items():
        assert line.endswith(".")
        assert len(name) + len(line) < 70


def test_an_unknown_command_is_answered_with_the_nearest() -> None:
    result = run("lgo")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.splitlines() == [
        "busnode: USAGE: there is no command 'lgo'; did you mean 'log'?",
        "  → `busnode --help` tells what it takes.",
    ]


def test_a_command_that_resembles_none_is_answered_with_all() -> None:
    assert f"there are {', '.join(cli.COMMANDS)}\n" in run("xyzzy").stderr
    assert "there is no command 'verfy'; did you mean 'verify'?" in run("log", "verfy").stderr


# What goes wrong ------------------------------------------------------------------------------


def test_an_error_is_one_line_and_an_advice(failing: Callable[[BaseException], None]) -> None:
    failing(NotMirrored("no mirror is up"))
    result = run("explain")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.splitlines() == [
        "busnode: NOT_MIRRORED: no mirror is up",
        f"  → {NotMirrored.advice}",
    ]


def test_an_error_is_an_object_where_json_was_asked_for(
    failing: Callable[[BaseException], None],
) -> None:
    failing(NotMirrored("no mirror\nis up"))
    result = run("explain", "--json")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert json.loads(result.stderr) == {
        "error": "NOT_MIRRORED",
        "text": "no mirror\nis up",
        "advice": NotMirrored.advice,
    }


def test_json_behind_two_dashes_is_a_word_and_no_option(
    failing: Callable[[BaseException], None],
) -> None:
    failing(NotMirrored("no mirror is up"))
    assert run("explain", "--", "--json").stderr.startswith("busnode: ")


def test_an_error_cannot_forge_lines_or_move_the_cursor(
    failing: Callable[[BaseException], None],
) -> None:
    failing(NotMirrored("one\ntwo\x1b[2J\u202e"))
    assert run("explain").stderr.splitlines()[0] == (
        "busnode: NOT_MIRRORED: one\\ntwo\\x1b[2J\\u202e"
    )


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BadPattern("pattern"), 2),
        (DataDirectoryInUse("in use"), 2),
        (cli.WrongUsage("no"), 2),
        (click.UsageError("no"), 2),
        (OSError(errno.EADDRINUSE, "Address already in use"), 2),
        (NotMirrored("no mirror"), 1),
        (BusnodeError("a bug"), 1),
        (PermissionError(errno.EACCES, "Permission denied", "/data/logs"), 1),
        (KeyboardInterrupt(), 130),
        (BrokenPipeError(), 141),
        (ExceptionGroup("of a nursery", [ExceptionGroup("of another", [BadPattern("x")])]), 2),
        (BaseExceptionGroup("of a nursery", [KeyboardInterrupt()]), 130),
    ],
)
def test_each_way_to_fail_has_its_exit_code(
    error: BaseException, code: int, failing: Callable[[BaseException], None]
) -> None:
    failing(error)
    result = run("explain")
    assert result.exit_code == code
    assert "Traceback" not in result.output


def test_what_the_system_refuses_is_told_with_its_path(
    failing: Callable[[BaseException], None],
) -> None:
    failing(PermissionError(errno.EACCES, "Permission denied", "/data/logs"))
    assert run("explain").stderr.startswith(
        "busnode: STORAGE_FAILED: /data/logs: Permission denied\n"
    )


def test_a_taken_port_is_told_what_to_do_about() -> None:
    error = OSError(errno.EADDRINUSE, "Address already in use")
    assert "another port" in cli._told(error)[2]


@pytest.mark.parametrize(
    "bug", [ZeroDivisionError("ours"), ExceptionGroup("two", [OSError(1), BadPattern("x")])]
)
def test_a_bug_is_not_dressed_up(bug: Exception, failing: Callable[[BaseException], None]) -> None:
    failing(bug)
    assert run("explain").exception is bug


# What is loaded, and real processes -----------------------------------------------------------


def modules_of(*arguments: str) -> set[str]:
    """The modules that a run of busnode has loaded at its end."""
    code = (
        "import atexit, sys\n"
        "atexit.register(lambda: print(*sys.modules, file=sys.stderr))\n"
        "from busnode.node.cli import main\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stderr.split())


@pytest.mark.scenario
@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["log", "--help"],
        ["log", "verify", "--help"],
        ["explain", "BAD_FRAME"],
        ["explain"],
    ],
)
def test_only_what_a_command_needs_is_loaded(arguments: list[str]) -> None:
    loaded = modules_of(*arguments)
    assert "click" in loaded
    assert not loaded & {"trio", "anyio", "rich", "msgpack", "pyarrow", "numpy", "zeroconf"}
    assert "busnode.node.cli_start" not in loaded
    if arguments[0].startswith("-"):
        assert not loaded & {"busnode.node.cli_log", "busnode.node.cli_explain"}


@pytest.mark.scenario
def test_a_shell_completes_commands_without_loading_them() -> None:
    environment = {
        **ENVIRONMENT,
        "_BUSNODE_COMPLETE": "bash_complete",
        "COMP_WORDS": "busnode l",
        "COMP_CWORD": "1",
    }
    done = subprocess.run(COMMAND, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "plain,log\n"


@pytest.mark.scenario
def test_offline_commands_that_print_json_do_not_load_rich(tmp_path: Path) -> None:
    loaded = modules_of("log", "ls", str(make_plant(tmp_path / "n1")), "--json")
    assert not loaded & {"rich", "pyarrow"}


@pytest.fixture
def much(tmp_path: Path) -> Path:
    """A data directory with more than a pipe holds."""
    directory = DataDirectory(tmp_path / "much")
    for _ in range(20):
        directory.write(FIRST_BROKER, Topic("/much"), Columns([b"x" * 100] * 400), UTC_US)
    directory.close()
    return directory.path


@pytest.mark.scenario
@pytest.mark.parametrize(
    "arguments",
    [
        ["dump"],
        ["dump", "--json"],
        ["export", "--to", "-"],
        ["export", "--to", "-", "--format", "parquet"],
    ],
)
def test_a_reader_that_has_seen_enough_ends_it_quietly(much: Path, arguments: list[str]) -> None:
    if "parquet" in arguments:
        pytest.importorskip("pyarrow")
    command, *options = arguments
    with subprocess.Popen(
        [*COMMAND, "log", command, str(much), *options],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(1)
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode in ({141} if "parquet" not in arguments else {0, 141})


@pytest.mark.scenario
def test_an_interrupt_ends_it_quietly(much: Path) -> None:
    with subprocess.Popen(
        [*COMMAND, "log", "dump", str(much)],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(1)  # it is in the midst of it: there is more than a pipe holds
        process.send_signal(signal.SIGINT)
        _, said = process.communicate()
    assert said == b""
    assert process.returncode == 130


@pytest.mark.scenario
@pytest.mark.parametrize(
    "arguments",
    [["log", "ls"], ["log", "ls", "--json"], ["log", "dump"], ["explain"], ["--help"]],
)
def test_a_full_disk_behind_stdout_is_an_error_and_no_traceback(
    much: Path, arguments: list[str]
) -> None:
    directory = [str(much)] if arguments[0] == "log" else []
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*COMMAND, *arguments, *directory],
            env=ENVIRONMENT,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    text = os.strerror(errno.ENOSPC)
    if "--json" in arguments:
        assert json.loads(done.stderr)["text"] == text
    else:
        assert done.stderr.startswith(f"busnode: STORAGE_FAILED: {text}\n")
        assert len(done.stderr.splitlines()) == 2


@pytest.mark.scenario
@pytest.mark.parametrize("arguments", [["--help"], ["explain"], ["explain", "NONSENSE"]])
def test_a_reader_that_never_reads_ends_it_quietly(arguments: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    process = subprocess.run(
        [*COMMAND, *arguments], env=ENVIRONMENT, stdout=writing, stderr=writing, check=False
    )
    os.close(writing)
    assert process.returncode == 141
