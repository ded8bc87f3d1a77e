"""`busnode log`: ls, dump, verify and export, on directories that the real store has made."""

import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest
from click.testing import CliRunner, Result
from rich.cells import cell_len

from busnode.node.cli import main
from busnode.segments.file_store import FileStore
from busnode.segments.retention import RetentionRules
from busnode.segments.store import StoreOptions
from busnode.wire.batches import Columns
from busnode.world.real_world import real_world

from . import FIRST_BROKER, SECOND_BROKER, UTC_US, DataDirectory, flip, make_plant, segment

TEMPS = "/plant/north/temp"


def run(command: str, directory: Path, *options: str) -> Result:
    return CliRunner().invoke(main, ["log", command, str(directory), *options])


def read_json(command: str, directory: Path, *options: str) -> Any:
    return json.loads(run(command, directory, "--json", *options).stdout)


def dumped(directory: Path, *options: str) -> list[dict[str, Any]]:
    lines = run("dump", directory, "--json", *options).stdout.split("\n")
    return [json.loads(line) for line in lines[:-1]]


@pytest.fixture
def plant(tmp_path: Path) -> Path:
    return make_plant(tmp_path / "n1")


@pytest.fixture
def damaged(plant: Path) -> Path:
    """The plant with a hole (messages 1–3), a header that is bad, and a torn tail."""
    flip(segment(plant, FIRST_BROKER, TEMPS), 512 + 110)
    flip(segment(plant, FIRST_BROKER, "/orders/new"), 20)
    torn = segment(plant, SECOND_BROKER, TEMPS)
    torn.write_bytes(torn.read_bytes() + b"half a record")
    return plant


def contents(directory: Path) -> dict[str, bytes]:
    return {
        str(file): file.read_bytes()
        for file in directory.rglob("*")
        if file.is_file() and file.name != "lock"
    }


# The directory --------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["ls", "dump", "verify"])
def test_a_directory_that_is_none_ends_with_code_2(command: str, tmp_path: Path) -> None:
    result = run(command, tmp_path / "nowhere")
    assert result.exit_code == 2
    first, second = result.stderr.splitlines()
    assert first == f"busnode: NOT_A_DATA_DIRECTORY: {tmp_path}/nowhere does not exist"
    assert second.startswith("  → ")
    assert list(tmp_path.iterdir()) == []


def test_the_folder_of_several_nodes_is_answered_with_their_names(tmp_path: Path) -> None:
    make_plant(tmp_path / "n1")
    make_plant(tmp_path / "n2")
    (tmp_path / "notes.txt").write_text("not a node")
    result = run("ls", tmp_path)
    assert result.exit_code == 2
    assert f"name one: {tmp_path}/n1, {tmp_path}/n2\n" in result.stderr


def test_the_folder_inside_is_answered_with_the_one_that_was_meant(plant: Path) -> None:
    assert f"; name {plant}\n" in run("ls", plant / "logs").stderr


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda path: path.write_text("x"), "is a file"),
        (lambda path: path.mkdir(), "is empty"),
        (lambda path: (path / "etc").mkdir(parents=True), "has no folder 'logs'"),
    ],
)
def test_what_is_no_data_directory_is_told_why(
    make: Callable[[Path], object], text: str, tmp_path: Path
) -> None:
    make(tmp_path / "x")
    result = run("verify", tmp_path / "x", "--json")
    assert result.exit_code == 2
    error = json.loads(result.stderr)
    assert error["error"] == "NOT_A_DATA_DIRECTORY"
    assert text in error["text"]


@pytest.mark.parametrize("command", ["ls", "dump", "verify"])
def test_a_directory_in_use_is_left_alone(command: str, plant: Path) -> None:
    world = real_world()
    node = FileStore(world.files, world.clock, str(plant))
    try:
        result = run(command, plant)
    finally:
        node.close()
    assert result.exit_code == 2
    assert result.stderr.startswith("busnode: DATA_DIRECTORY_IN_USE: ")
    assert run(command, plant).exit_code == 0


@pytest.mark.parametrize("command", ["ls", "dump", "verify"])
def test_looking_changes_nothing(command: str, damaged: Path) -> None:
    before = contents(damaged)
    run(command, damaged)
    assert contents(damaged) == before


@pytest.mark.parametrize("command", ["ls", "dump"])
def test_a_wrong_pattern_ends_with_code_2(command: str, plant: Path) -> None:
    result = run(command, plant, "--topics", "plant")
    assert result.exit_code == 2
    assert result.stderr.startswith("busnode: BAD_PATTERN: ")


# ls -------------------------------------------------------------------------------------------


def test_ls_shows_a_line_for_each_log(plant: Path) -> None:
    result = run("ls", plant)
    assert result.exit_code == 0
    title, *rows, total = [line.split() for line in result.stdout.splitlines()]
    assert title == ["broker", "topic", "msgNo", "messages", "size", "files", "utc", "holes"]
    assert [row[:4] for row in rows] == [
        ["0f3a9c1e", TEMPS, "1–5", "5"],
        ["0f3a9c1e", "/orders/new", "1–2", "2"],
        ["b7d24410", TEMPS, "1–2", "2"],
    ]
    assert rows[0][-5:] == ["2023-11-14", "22:13", "–", "22:14", "0"]
    assert total[:4] == ["3", "logs,", "9", "messages,"]


def test_ls_tells_programs_everything(plant: Path) -> None:
    listed = read_json("ls", plant)
    assert listed["directory"] == str(plant)
    assert listed["logs"][0] == {
        "broker_id": FIRST_BROKER.hex(),
        "topic": TEMPS,
        "first_no": 1,
        "last_no": 5,
        "messages": 5,
        "bytes": segment(plant, FIRST_BROKER, TEMPS).stat().st_size,
        "segments": 1,
        "oldest": "2023-11-14T22:13:18.123456Z",
        "newest": "2023-11-14T22:14:20.123456Z",
        "holes": [],
    }


@pytest.mark.parametrize(
    ("patterns", "topics"),
    [
        (["/plant/*"], {TEMPS}),
        (["/+/new"], {"/orders/new"}),
        (["/orders/new", "/plant/+/temp"], {"/orders/new", TEMPS}),
        (["/nothing"], set[str]()),
    ],
)
def test_ls_shows_the_topics_that_were_asked_for(
    patterns: list[str], topics: set[str], plant: Path
) -> None:
    options = [word for pattern in patterns for word in ("--topics", pattern)]
    assert {log["topic"] for log in read_json("ls", plant, *options)["logs"]} == topics


def test_ls_says_that_there_are_no_logs(tmp_path: Path) -> None:
    DataDirectory(tmp_path).close()
    result = run("ls", tmp_path)
    assert (result.exit_code, result.stdout) == (0, f"{tmp_path} holds no logs\n")
    assert read_json("ls", tmp_path)["logs"] == []


def test_ls_says_that_no_log_matches(plant: Path) -> None:
    result = run("ls", plant, "--topics", "/x", "--topics", "/y/*")
    assert result.exit_code == 0
    assert result.stdout == f"{plant} holds no logs that match /x or /y/*\n"


def test_ls_counts_what_is_there_and_not_what_a_hole_has_swallowed(damaged: Path) -> None:
    log = read_json("ls", damaged)["logs"][0]
    assert (log["first_no"], log["last_no"], log["messages"]) == (1, 5, 2)
    (hole,) = log["holes"]
    assert (hole["first_no"], hole["last_no"], hole["offset"]) == (1, 3, 512)
    assert "1 hole and 2 flaws are known" in run("ls", damaged).stdout


# dump -----------------------------------------------------------------------------------------


def test_dump_shows_a_line_for_each_message(plant: Path) -> None:
    result = run("dump", plant)
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        f"0f3a9c1e {TEMPS} 1 2023-11-14 22:13:18.123 21.5",
        f"0f3a9c1e {TEMPS} 2 2023-11-14 22:13:20.123 21.6",
        f"0f3a9c1e {TEMPS} 3 2023-11-14 22:13:20.123 21.7",
        f"0f3a9c1e {TEMPS} 4 2023-11-14 22:14:20.123 21.8",
        f"0f3a9c1e {TEMPS} 5 2023-11-14 22:14:20.123 21.9",
        "0f3a9c1e /orders/new 1 2023-11-14 22:13:20.123 id=order-1 naïve – ✓",
        "0f3a9c1e /orders/new 2 2023-11-14 22:13:20.123 0xfffe00",
        f"b7d24410 {TEMPS} 1 2023-11-14 22:13:20.123 \\x1b[31mred\\nline",
        f"b7d24410 {TEMPS} 2 2023-11-14 22:13:20.123 (empty)",
    ]


def test_dump_shows_headers_when_asked_to(plant: Path) -> None:
    result = run("dump", plant, "--topics", "/orders/new", "--headers")
    assert "id=order-1 kind=book to=Zoë naïve – ✓" in result.stdout


def test_headers_and_ids_cannot_move_the_cursor(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    columns = Columns([b"x"], None, ["\x1b[2J"], [{"a\nb": "\u202e"}])
    directory.write(FIRST_BROKER, TEMPS, columns)
    directory.close()
    (line,) = run("dump", tmp_path, "--headers").stdout.splitlines()
    assert line.endswith("id=\\x1b[2J a\\nb=\\u202e x")


def test_dump_gives_programs_an_object_a_line(plant: Path) -> None:
    messages = dumped(plant)
    assert len(messages) == 9
    assert messages[5] == {
        "broker_id": FIRST_BROKER.hex(),
        "topic": "/orders/new",
        "msg_no": 1,
        "utc": "2023-11-14T22:13:20.123456Z",
        "id": "order-1",
        "headers": {"kind": "book", "to": "Zoë"},
        "payload": "naïve – ✓",
        "producer_id": "0000000000abcdef",
        "producer_seq": 3,
    }
    assert messages[6]["payload_base64"] == "//4A"


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        (["--from", "2"], [2, 3, 4, 5]),
        (["--count", "2"], [1, 2]),
        (["--from", "3", "--count", "2"], [3, 4]),
        (["--from", "5", "--count", "9"], [5]),
        (["--from", "6"], []),
    ],
)
def test_dump_shows_the_numbers_that_were_asked_for(
    options: list[str], numbers: list[int], plant: Path
) -> None:
    messages = dumped(plant, "--topics", TEMPS, *options)
    found = [each["msg_no"] for each in messages if each["broker_id"] == FIRST_BROKER.hex()]
    assert found == numbers


def test_the_count_is_for_each_log(plant: Path) -> None:
    assert [each["msg_no"] for each in dumped(plant, "--count", "1")] == [1, 1, 1]


@pytest.mark.parametrize("option", ["--from", "--count"])
def test_a_number_below_one_is_wrong(option: str, plant: Path) -> None:
    result = run("dump", plant, option, "0")
    assert result.exit_code == 2
    assert result.stderr.startswith("busnode: USAGE: ")


def test_dump_shows_a_hole_in_its_place(damaged: Path) -> None:
    hole, *messages = dumped(damaged)
    assert (hole["broker_id"], hole["topic"]) == (FIRST_BROKER.hex(), TEMPS)
    assert (hole["hole"]["first_no"], hole["hole"]["last_no"]) == (1, 3)
    assert [each["msg_no"] for each in messages] == [4, 5, 1, 2, 1, 2]
    first = run("dump", damaged).stdout.splitlines()[0]
    assert first.startswith(f"0f3a9c1e {TEMPS} 1–3 hole: a record whose body hash does not fit (")


def test_dump_shows_a_batch_that_cannot_be_read_as_a_range(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    directory.write_body(FIRST_BROKER, TEMPS, msgpack.packb("no columns"), 4)
    directory.write(FIRST_BROKER, TEMPS, Columns([b"good"]))
    directory.close()
    result = run("dump", tmp_path)
    assert result.exit_code == 0
    unreadable, good = result.stdout.splitlines()
    assert unreadable.startswith(f"0f3a9c1e {TEMPS} 1–4 unreadable: body of 11 bytes")
    assert good.endswith(" good")
    fields = dumped(tmp_path)[0]["unreadable"]
    assert (fields["first_no"], fields["last_no"]) == (1, 4)


def test_what_has_expired_is_a_hole_only_to_who_asks_for_it(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path, StoreOptions(segment_bytes_max=600))
    for payload in (b"one", b"two", b"three"):
        directory.write(FIRST_BROKER, TEMPS, Columns([payload]))
    directory.close()
    world = real_world()
    store = FileStore(world.files, world.clock, str(tmp_path))
    assert store.expire(RetentionRules(log_bytes_max=1300))
    store.close()
    (log,) = read_json("ls", tmp_path)["logs"]
    first = log["first_no"]
    assert first > 1
    assert log["holes"] == []
    assert [each["msg_no"] for each in dumped(tmp_path)] == list(range(first, 4))
    assert dumped(tmp_path, "--from", "1")[0]["hole"]["last_no"] == first - 1
    assert run("export", tmp_path, "--to", "-").exit_code == 0


# verify ---------------------------------------------------------------------------------------


def test_verify_finds_nothing_wrong_with_what_is_good(plant: Path) -> None:
    result = run("verify", plant)
    assert result.exit_code == 0
    assert result.stdout.startswith("3 logs, 9 messages, ")
    assert result.stdout.endswith(": all good\n")
    assert result.stderr == ""


def test_verify_finds_nothing_wrong_where_there_is_nothing(tmp_path: Path) -> None:
    DataDirectory(tmp_path).close()
    result = run("verify", tmp_path)
    assert result.exit_code == 0
    assert result.stdout.startswith("0 logs, 0 messages, 0 B ")


def test_verify_names_what_is_wrong_by_file_and_byte(damaged: Path) -> None:
    result = run("verify", damaged)
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    bucket, other = (f"logs/{broker.hex()}" for broker in (FIRST_BROKER, SECOND_BROKER))
    assert lines[:3] == [
        f"hole  0f3a9c1e {TEMPS} messages 1–3",
        "      a record whose body hash does not fit, at byte 512, 127 bytes",
        f"      {bucket}/00000001-00000000000000000001.seg",
    ]
    assert lines[3:6] == [
        "flaw  0f3a9c1e /orders/new",
        "      segment header whose hash does not fit, at byte 0, 512 bytes",
        f"      {bucket}/00000002-00000000000000000001.seg",
    ]
    assert lines[6] == f"torn  b7d24410 {TEMPS}"
    assert lines[8] == f"      {other}/00000001-00000000000000000001.seg"
    assert lines[-1].endswith(": 1 hole with 3 messages, 2 flaws")


def test_verify_calls_a_torn_tail_what_it_is(damaged: Path) -> None:
    said = run("verify", damaged).stdout
    assert "13 bytes\n" in said
    assert "behind the last good record" in said
    assert "nothing here shows that this one was acked" in said


def test_verify_tells_programs_everything(damaged: Path) -> None:
    verdict = read_json("verify", damaged)
    assert verdict["good"] is False
    assert (verdict["logs"], verdict["messages"], verdict["missing_messages"]) == (3, 6, 3)
    assert verdict["bytes"] == sum(file.stat().st_size for file in damaged.rglob("*.seg"))
    (hole,) = verdict["holes"]
    assert hole == {
        "broker_id": FIRST_BROKER.hex(),
        "topic": TEMPS,
        "first_no": 1,
        "last_no": 3,
        "path": str(segment(damaged, FIRST_BROKER, TEMPS)),
        "offset": 512,
        "length": 127,
        "reason": "a record whose body hash does not fit",
    }
    assert [flaw["kind"] for flaw in verdict["flaws"]] == ["flaw", "torn tail"]
    assert verdict["flaws"][1]["length"] == 13


def test_verify_names_files_that_do_not_tell_whose_they_are(plant: Path) -> None:
    stray = plant / "logs" / FIRST_BROKER.hex() / "00000077-00000000000000000001.seg"
    stray.write_bytes(b"\0" * 600)
    result = run("verify", plant)
    assert result.exit_code == 1
    assert "flaw  unknown log\n" in result.stdout
    verdict = read_json("verify", plant)
    assert (verdict["logs"], verdict["messages"]) == (3, 9)
    (flaw,) = verdict["flaws"]
    assert (flaw["broker_id"], flaw["path"]) == (None, str(stray))


@pytest.mark.damage
def test_verify_finds_every_flipped_byte(plant: Path) -> None:
    file = segment(plant, FIRST_BROKER, TEMPS)
    for offset in range(file.stat().st_size):
        flip(file, offset)
        assert run("verify", plant, "--json").exit_code == 1, offset
        flip(file, offset)
    assert run("verify", plant).exit_code == 0


# export ---------------------------------------------------------------------------------------


def test_export_writes_what_dump_prints(plant: Path, tmp_path: Path) -> None:
    result = run("export", plant, "--to", str(tmp_path / "out.jsonl"))
    assert result.exit_code == 0
    assert result.stdout == ""
    assert result.stderr == f"exported 9 messages of 3 logs to {tmp_path}/out.jsonl\n"
    assert (tmp_path / "out.jsonl").read_text() == run("dump", plant, "--json").stdout


def test_export_to_stdout_writes_rows_and_nothing_else(plant: Path) -> None:
    result = run("export", plant, "--to", "-")
    assert result.exit_code == 0
    assert result.stdout == run("dump", plant, "--json").stdout
    assert result.stderr == ""


@pytest.mark.parametrize(
    "options", [["--to", "out.parquet"], ["--to", "out", "--format", "parquet"]]
)
def test_export_writes_parquet(
    options: list[str], plant: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.chdir(tmp_path)
    result = run("export", plant, *options, "--topics", "/plant/*")
    assert result.exit_code == 0
    table = parquet.read_table(tmp_path / options[1])
    assert table["payload"].to_pylist()[:5] == [b"21.5", b"21.6", b"21.7", b"21.8", b"21.9"]
    assert table.num_rows == 7


def test_without_pyarrow_one_line_says_what_to_install(
    plant: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    result = run("export", plant, "--to", str(tmp_path / "out.parquet"))
    assert result.exit_code == 2
    assert result.stderr.splitlines()[0] == (
        "busnode: USAGE: Parquet needs pyarrow: pip install 'busnode[parquet]', "
        "or take --format jsonl"
    )
    assert not list(tmp_path.glob("out*"))


def test_export_does_not_overwrite_unless_forced(plant: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    target.write_text("precious")
    result = run("export", plant, "--to", str(target))
    assert result.exit_code == 2
    assert result.stderr.startswith(f"busnode: USAGE: {target} exists; --force replaces it\n")
    assert target.read_text() == "precious"
    assert run("export", plant, "--to", str(target), "--force").exit_code == 0
    assert len(target.read_text().splitlines()) == 9


def test_export_names_holes_and_exports_the_rest(damaged: Path, tmp_path: Path) -> None:
    result = run("export", damaged, "--to", str(tmp_path / "out.jsonl"))
    assert result.exit_code == 1
    hole, summary = result.stderr.splitlines()
    assert hole.startswith(f"0f3a9c1e:{TEMPS} 1–3 hole: ")
    assert summary.startswith("exported 6 messages of 3 logs")
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 6


def test_export_counts_an_unreadable_batch_as_damage(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path / "n1")
    directory.write_body(FIRST_BROKER, TEMPS, b"\xc1", 1)
    directory.close()
    result = run("export", tmp_path / "n1", "--to", "-")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "1–1 unreadable: " in result.stderr


def test_export_into_no_folder_is_an_error_and_no_traceback(plant: Path, tmp_path: Path) -> None:
    result = run("export", plant, "--to", str(tmp_path / "no" / "out.jsonl"))
    assert result.exit_code == 1
    assert result.stderr.startswith("busnode: STORAGE_FAILED: ")


# On a terminal --------------------------------------------------------------------------------


def on_a_terminal(columns: int, *arguments: str) -> tuple[int, list[str]]:
    """Exit code and lines of a real run on a pseudo-terminal of that width, without colours."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    environment = {**os.environ, "TERM": "dumb", "NO_COLOR": "1"}
    environment.pop("COLUMNS", None)
    code = "from busnode.node.cli import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=environment,
    ) as process:
        os.close(slave)
        output = b""
        while True:
            try:
                more = os.read(master, 65536)
            except OSError:  # the other side is closed
                break
            if not more:
                break
            output += more
    os.close(master)
    return process.returncode, output.decode().splitlines()


@pytest.mark.scenario
@pytest.mark.parametrize("columns", [80, 100])
@pytest.mark.parametrize(("command", "code"), [("ls", 0), ("dump", 0), ("verify", 1)])
def test_nothing_is_wider_than_the_terminal(
    columns: int, command: str, code: int, tmp_path: Path
) -> None:
    directory = DataDirectory(tmp_path / "n1")
    long = "/plant/north/hall-3/press/line-4/temperature/celsius"
    directory.write(FIRST_BROKER, long, Columns([b"x" * 300, "日本".encode() * 99]), UTC_US)
    directory.write(SECOND_BROKER, "/日本/温度", Columns(["温".encode() * 300]), UTC_US)
    directory.close()
    torn = segment(tmp_path / "n1", FIRST_BROKER, long)
    torn.write_bytes(torn.read_bytes() + b"half a record")
    ended, lines = on_a_terminal(columns, "log", command, str(tmp_path / "n1"))
    assert ended == code
    assert any(long in line for line in lines)
    assert max(map(cell_len, lines)) <= columns
