"""The commands that talk to a node, as a new user runs them: each in a process of its own."""

import json
import os
import pty
import re
import select
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from time import monotonic

import pytest
from click.testing import CliRunner

from busnode.client import Position
from busnode.node.cli import main
from busnode.node.cli_top import rates
from busnode.wire.ids import BrokerId, MsgNo, Topic

from .node_process import COMMAND, PATIENCE_S, NodeProcess, Running, Status, environment, wait_for

pytestmark = pytest.mark.scenario


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    running = NodeProcess(tmp_path_factory.mktemp("data") / "n1")
    yield running
    running.stop()


@pytest.fixture
def lonely(tmp_path: Path) -> Iterator[list[NodeProcess]]:
    """A node that the test may kill and start again: whatever is in the list at the end goes."""
    nodes = [NodeProcess(tmp_path / "n1")]
    yield nodes
    for each in nodes:
        each.stop()


# The quick start ------------------------------------------------------------------------------


def test_a_message_published_in_one_terminal_arrives_in_another(node: NodeProcess) -> None:
    with node.subscriber("/greetings/*") as terminal:
        assert node.output("pub", "/greetings/en", "hello") == (
            "published 1 message to /greetings/en\n"
        )
        assert terminal.stdout.readline() == "/greetings/en - hello\n"
        told = node.output("pub", "/greetings/de", "--persistent", stdin="hallo")
        assert told == "published 1 message to /greetings/de, acked: local\n"
        assert terminal.stdout.readline() == "/greetings/de 1 hallo\n"
        assert terminal.interrupt() == (130, "")


def test_a_consumer_that_was_away_gets_exactly_what_it_missed(
    node: NodeProcess, tmp_path: Path
) -> None:
    options = ["--cursors", str(tmp_path / "orders.cursors")]
    with node.subscriber("/missed", *options) as consumer:
        node.output("pub", "/missed", "before", "--persistent")
        assert consumer.stdout.readline() == "/missed 1 before\n"
        assert consumer.interrupt() == (130, "")
    lines = "".join(f"{number}\n" for number in range(10_000))
    told = node.output("pub", "/missed", "--lines", "--persistent", stdin=lines)
    assert told == "published 10,000 messages to /missed, acked: local\n"
    came = node.output("sub", "/missed", *options, "--count", "10000")
    assert came == "".join(f"/missed {number + 2} {number}\n" for number in range(10_000))
    with node.subscriber("/missed", *options) as consumer:
        node.output("pub", "/missed", "after", "--persistent")
        assert consumer.stdout.readline() == "/missed 10002 after\n"


class Feeder(Thread):
    """Publishes without a pause until it is told that the node is gone, and then some more."""

    def __init__(self, publisher: Running, killed: Event) -> None:
        super().__init__()
        self.count = 0
        self._publisher = publisher
        self._killed = killed

    def run(self) -> None:
        after = 20
        while after:
            self._publisher.feed(range(self.count, self.count + 1000))
            self.count += 1000
            after -= self._killed.is_set()
        self._publisher.stdin.close()


def test_a_node_killed_in_the_middle_of_publishing_keeps_all_that_was_acked_and_none_twice(
    lonely: list[NodeProcess],
) -> None:
    options = ["--lines", "--persistent", "--json", "--timeout", str(PATIENCE_S)]
    first = lonely.pop()
    killed = Event()
    with first.running("pub", "/killed", *options) as publisher:
        feeder = Feeder(publisher, killed)
        feeder.start()
        wait_for(lambda: first.status()["counters"]["messages_persistent"] > 0)
        first.kill()
        killed.set()
        second = NodeProcess(first.data, first.port)
        lonely.append(second)
        report = json.loads(publisher.stdout.read())
        feeder.join()
        assert publisher.ended() == (0, "")
    count = feeder.count
    assert report["messages"] == report["acked"] == report["levels"]["local"] == count
    came = second.output("sub", "/killed", "--from", "earliest", "--count", str(count), "--json")
    rows = [json.loads(line) for line in came.splitlines()]
    assert sorted(int(row["payload"]) for row in rows) == list(range(count))
    broker_ids = {row["broker_id"] for row in rows}
    assert len(broker_ids) == 2
    for broker_id in broker_ids:
        numbers = [row["msg_no"] for row in rows if row["broker_id"] == broker_id]
        payloads = [int(row["payload"]) for row in rows if row["broker_id"] == broker_id]
        assert numbers == sorted(numbers)
        assert payloads == sorted(payloads)


def test_a_publisher_whose_node_stays_away_says_how_far_it_came(
    lonely: list[NodeProcess],
) -> None:
    only = lonely.pop()
    options = ["--lines", "--persistent", "--json", "--timeout", "0.5"]
    with only.running("pub", "/away", *options) as publisher:
        publisher.feed(range(10))
        wait_for(lambda: [log["last_no"] for log in only.status()["logs"]] == [10])
        only.kill()
        publisher.feed(range(10, 20))
        publisher.stdin.close()
        report = json.loads(publisher.stdout.read())
        code, told = publisher.ended()
    assert code == 1
    assert (report["messages"], report["acked"]) == (20, 10)
    assert "DISCONNECTED" in told
    assert "Traceback" not in told


# pub ------------------------------------------------------------------------------------------


def test_what_is_published_has_its_id_and_headers(node: NodeProcess) -> None:
    options = ["--persistent", "--header", "kind=book", "--header", "to=a=b", "--id", "order-1"]
    node.output("pub", "/pub/fields", "naïve", *options)
    came = node.output("sub", "/pub/fields", "--from", "earliest", "--count", "1", "--json")
    row = json.loads(came)
    assert set(row) == {"broker_id", "topic", "msg_no", "utc", "id", "headers", "payload"}
    assert row["topic"] == "/pub/fields"
    assert row["msg_no"] == 1
    assert row["id"] == "order-1"
    assert row["headers"] == {"kind": "book", "to": "a=b"}
    assert row["payload"] == "naïve"


def test_lines_keep_their_bytes_and_the_last_needs_no_end(node: NodeProcess) -> None:
    node.output("pub", "/pub/lines", "--lines", "--persistent", stdin="a\n\n b \nlast")
    came = node.output("sub", "/pub/lines", "--from", "earliest", "--count", "4", "--json")
    assert [json.loads(line)["payload"] for line in came.splitlines()] == ["a", "", " b ", "last"]


def test_lines_are_on_their_way_before_stdin_ends(node: NodeProcess) -> None:
    with (
        node.subscriber("/pub/flow") as consumer,
        node.running("pub", "/pub/flow", "--lines") as publisher,
    ):
        for number in range(3):
            publisher.feed(range(number, number + 1))
            assert consumer.stdout.readline() == f"/pub/flow - {number}\n"
        assert publisher.interrupt() == (130, "")
        assert publisher.stdout.read() == "published 3 messages to /pub/flow\n"


def test_the_same_message_is_published_as_often_as_asked(node: NodeProcess) -> None:
    told = node.output("pub", "/pub/same", "x", "--count", "3000", "--persistent", "--json")
    assert json.loads(told) == {
        "topic": "/pub/same",
        "persistent": True,
        "messages": 3000,
        "sent": 3000,
        "acked": 3000,
        "levels": {"local": 3000},
    }


# sub ------------------------------------------------------------------------------------------


def test_a_reader_that_leaves_is_no_error(node: NodeProcess) -> None:
    node.output("pub", "/sub/head", "x", "--count", "50000", "--persistent")
    with node.running("sub", "/sub/head", "--from", "earliest") as consumer:
        assert consumer.stdout.readline() == "/sub/head 1 x\n"
        consumer.stdout.close()
        assert consumer.ended() == (141, "")


def test_a_count_ends_in_the_middle_of_a_batch_and_the_rest_comes_next_time(
    node: NodeProcess, tmp_path: Path
) -> None:
    lines = "".join(f"{number}\n" for number in range(100))
    node.output("pub", "/sub/count", "--lines", "--persistent", stdin=lines)
    options = ["--from", "earliest", "--cursors", str(tmp_path / "count.cursors")]
    came = [node.output("sub", "/sub/count", *options, "--count", count) for count in ("30", "70")]
    numbers = [int(line.split()[2]) for line in "".join(came).splitlines()]
    assert numbers == list(range(100))


def test_a_durable_subscription_goes_on_where_it_was(node: NodeProcess) -> None:
    node.output("pub", "/sub/durable", "--lines", "--persistent", stdin="a\nb\nc\n")
    options = ["--durable", "keeper", "--from", "earliest", "--count"]
    assert node.output("sub", "/sub/durable", *options, "2").endswith(" 2 b\n")
    assert node.output("sub", "/sub/durable", *options, "1") == "/sub/durable 3 c\n"


def test_members_of_a_queue_share_the_messages(node: NodeProcess) -> None:
    with (
        node.running("sub", "/sub/queue", "--queue", "crew") as one,
        node.running("sub", "/sub/queue", "--queue", "crew") as other,
    ):
        wait_for(lambda: node.subscribed().count("/sub/queue") == 2)
        told = node.output("pub", "/sub/queue", "x", "--count", "1")
        assert told.startswith("published 1 message")
        readable, _, _ = select.select([one.stdout, other.stdout], [], [], PATIENCE_S)
        assert len(readable) == 1
        assert readable[0].readline() == "/sub/queue - x\n"


def test_a_payload_cannot_move_the_cursor_of_who_looks_at_it(node: NodeProcess) -> None:
    node.output("pub", "/sub/escape", "--persistent", stdin="\x1b[31mred\nline")
    came = node.output("sub", "/sub/escape", "--from", "1h", "--count", "1")
    assert came == "/sub/escape 1 \\x1b[31mred\\nline\n"


# request and reply ----------------------------------------------------------------------------


@contextmanager
def providing(node: NodeProcess, *arguments: str) -> Iterator[Running]:
    with node.running("reply", *arguments) as provider:
        assert provider.stderr.readline().startswith("answering on ")
        yield provider


def test_a_request_is_answered_by_echo(node: NodeProcess) -> None:
    with providing(node, "/ask/echo", "--echo") as provider:
        assert node.output("request", "/ask/echo", "42") == "42"
        assert provider.stdout.readline() == "/ask/echo 2 B → 2 B\n"
        assert json.loads(node.output("request", "/ask/echo", "--json", stdin="x")) == {
            "headers": {},
            "payload": "x",
        }
        assert provider.interrupt() == (130, "")


def test_a_request_is_answered_by_a_command(node: NodeProcess) -> None:
    with providing(node, "/ask/exec/*", "--exec", "tr a-z A-Z; printf %s $BUSNODE_TOPIC"):
        assert node.output("request", "/ask/exec/up", "loud ") == "LOUD /ask/exec/up"


def test_a_command_that_fails_is_an_error_for_who_asked(node: NodeProcess) -> None:
    with providing(
        node, "/ask/fail", "--exec", "echo no paper >&2; exit 3", "--count", "1"
    ) as fails:
        ended = node.run("request", "/ask/fail", "print")
        assert ended.returncode == 1
        assert ended.stdout == ""
        line, advice = ended.stderr.splitlines()
        assert line.startswith("busnode: REQUEST_FAILED: ")
        assert line.endswith("exit code 3: no paper")
        assert advice.startswith("  → ")
        assert fails.ended()[0] == 0


def test_many_are_asked_and_all_answer(node: NodeProcess) -> None:
    with (
        providing(node, "/ask/many", "--exec", "echo one"),
        providing(node, "/ask/many", "--exec", "echo two"),
        providing(node, "/ask/many", "--exec", "exit 1"),
    ):
        ended = node.run("request", "/ask/many", "", "--many", "--json")
    answers = [json.loads(line) for line in ended.stdout.splitlines()]
    assert ended.returncode == 1
    assert {answer.get("payload") for answer in answers} == {"one\n", "two\n", None}
    assert {answer.get("error") for answer in answers} == {"REQUEST_FAILED", None}


def test_a_request_that_nobody_answers_says_so(node: NodeProcess) -> None:
    ended = node.run("request", "/ask/nobody", "hello")
    assert ended.returncode == 1
    assert ended.stderr.startswith("busnode: NO_PROVIDER: ")


# status, topics and top -----------------------------------------------------------------------


def test_the_status_tells_of_clients_and_why_each_is_idle(node: NodeProcess) -> None:
    node.output("pub", "/status/log", "x", "--persistent")
    with node.subscriber("/status/*"):
        told = node.output("status")
        assert re.search(r"^node \S+ of cluster test$", told, re.MULTILINE)
        assert re.search(r"busnode sub +\S+ +/status/\* +0 +caught up$", told, re.MULTILINE)
        assert re.search(r"busnode status +\S+ +– +– +no subscription$", told, re.MULTILINE)
        assert re.search(
            r"/status/log +\w{8} +\S+ +1–1 +\d+ B +local +\S+ origin$", told, re.MULTILINE
        )
        fields = json.loads(node.output("status", "--json"))
        assert fields["cluster_id"] == "test"
        assert fields["ready"] is True


def test_topics_are_listed_by_pattern(node: NodeProcess) -> None:
    node.output("pub", "/topics/b", "x", "--persistent", "--count", "2")
    node.output("pub", "/topics/a", "x", "--persistent")
    told = node.output("topics", "/topics/*")
    assert [line.split()[:2] for line in told.splitlines()] == [
        ["topic", "messages"],
        ["/topics/a", "1"],
        ["/topics/b", "2"],
        ["2", "topics"],
    ]
    rows = json.loads(node.output("topics", "/topics/*", "--json"))["topics"]
    assert [(row["topic"], row["messages"], row["logs"]) for row in rows] == [
        ("/topics/a", 1, 1),
        ("/topics/b", 2, 1),
    ]


def test_top_prints_an_object_a_look_where_json_is_asked_for(node: NodeProcess) -> None:
    (row,) = map(json.loads, node.output("top", "--json", "--count", "1").splitlines())
    assert row["clients"] >= 1
    assert row["messages_in"] >= 0


def test_top_draws_until_q_is_pressed(node: NodeProcess) -> None:
    outside, inside = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "top"],
        env={**environment(node.url), "TERM": "xterm", "COLUMNS": "80", "LINES": "24"},
        stdin=inside,
        stdout=inside,
        stderr=inside,
    )
    os.close(inside)
    with process:
        drawn = b""
        while b"msgs/s" not in drawn:
            assert select.select([outside], [], [], PATIENCE_S)[0]
            drawn += os.read(outside, 65536)
        os.write(outside, b"q")
        while process.poll() is None:
            if select.select([outside], [], [], 0.05)[0]:
                try:
                    os.read(outside, 65536)
                except OSError:  # the other side is closed
                    break
        assert process.wait(PATIENCE_S) == 0
    os.close(outside)
    assert b"of cluster test" in drawn


def look(uptime_s: float, messages: int, last_no: int, sent_bytes: int) -> Status:
    queues = [{"queue": "emails", "completed": messages, "failed": last_no}]
    return {
        "uptime_s": uptime_s,
        "broker_id": "aa",
        "counters": {"messages_live": 5, "messages_persistent": messages, "commits": messages},
        "clients": [{"client_no": 1, "received_bytes": 10, "sent_bytes": sent_bytes}],
        "logs": [{"broker_id": "aa", "topic": "/a", "last_no": last_no}],
        "tasks": {"queues": queues, "other_queues": {"completed": 70, "failed": 0}},
    }


def test_rates_are_what_counters_grew_by_in_a_second() -> None:
    found = rates(look(10.0, 100, 40, 1000), look(12.0, 300, 60, 5000))
    assert found.messages_in == found.persistent_in == found.commits == 100
    assert (found.bytes_in, found.bytes_out) == (0, 2000)
    assert found.logs == {("aa", "/a"): 10}
    assert (found.tasks_completed, found.attempts_failed) == (100, 10)


def test_a_node_that_was_started_anew_has_no_rates_yet() -> None:
    again = {**look(1.0, 7, 7, 7), "broker_id": "bb"}
    found = rates(look(10.0, 100, 40, 1000), again)
    assert found.messages_in == 0
    assert found.logs == {}


# cursor ---------------------------------------------------------------------------------------

ONE = BrokerId(b"\x01" * 16)
TWO = BrokerId(b"\x02" * 16)


@pytest.fixture
def cursors(tmp_path: Path) -> Path:
    path = tmp_path / "x.cursors"
    logs = {
        (ONE, Topic("/a")): MsgNo(7),
        (ONE, Topic("/b")): MsgNo(8),
        (TWO, Topic("/a")): MsgNo(9),
    }
    path.write_text(Position(logs).encode())
    return path


def numbers(path: Path) -> list[int]:
    position = Position.decode(path.read_text())
    return [position[log] for log in sorted(position)]


def cursor(*arguments: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, ["cursor", *map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


def test_cursors_are_shown_and_exported(cursors: Path) -> None:
    _, shown, _ = cursor("show", cursors)
    assert shown.splitlines()[1:] == [
        "01010101  /a              7",
        "02020202  /a              9",
        "01010101  /b              8",
        "3 cursors",
    ]
    _, exported, _ = cursor("export", cursors)
    rows = [json.loads(line) for line in exported.splitlines()]
    assert rows == json.loads(cursor("show", cursors, "--json")[1])["cursors"]
    assert rows[0] == {"broker_id": ONE.hex(), "topic": "/a", "msg_no": 7}


def test_cursors_move_to_the_beginning_all_or_some(cursors: Path) -> None:
    assert cursor("seek", cursors, "--to", "earliest", "--topic", "/a", "--broker", "02")[0] == 0
    assert numbers(cursors) == [7, 8, 0]
    assert cursor("seek", cursors, "--to", "earliest")[1].startswith("moved 3 cursors in ")
    assert numbers(cursors) == [0, 0, 0]


def test_a_cursor_moves_so_that_a_message_comes_next(cursors: Path) -> None:
    assert cursor("seek", cursors, "--to", "5", "--topic", "/b")[0] == 0
    assert numbers(cursors) == [7, 4, 9]


@pytest.mark.parametrize(
    "options",
    [
        ["--to", "5"],
        ["--to", "5", "--topic", "/a"],
        ["--to", "5", "--topic", "/c"],
        ["--to", "soon"],
        ["--to", "-1"],
        ["--to", "1", "--broker", "xyz"],
        ["--to", "1" * 30, "--topic", "/b"],
    ],
)
def test_a_move_that_is_not_clear_moves_nothing(cursors: Path, options: list[str]) -> None:
    code, _, told = cursor("seek", cursors, *options)
    assert code == 2
    assert told.startswith("busnode: USAGE: ")
    assert numbers(cursors) == [7, 8, 9]


def test_cursors_move_to_the_end_by_what_a_node_says(node: NodeProcess, tmp_path: Path) -> None:
    path = str(tmp_path / "end.cursors")
    node.output("pub", "/cursor/end", "old", "--persistent", "--count", "5")
    node.output("sub", "/cursor/end", "--from", "earliest", "--cursors", path, "--count", "1")
    node.output("cursor", "seek", path, "--to", "latest")
    node.output("pub", "/cursor/end", "new", "--persistent")
    came = node.output("sub", "/cursor/end", "--cursors", path, "--count", "1")
    assert came == "/cursor/end 6 new\n"
    node.output("cursor", "seek", path, "--to", "earliest")
    came = node.output("sub", "/cursor/end", "--cursors", path, "--count", "1")
    assert came == "/cursor/end 1 old\n"


# What goes wrong ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [["pub", "/a", "x"], ["sub", "/a"], ["request", "/a", ""], ["status"], ["topics"]],
)
def test_without_a_node_it_says_where_it_looked_and_what_to_do(arguments: list[str]) -> None:
    began = monotonic()
    options = ["--url", "127.0.0.1:1", "--timeout", "0.2"]
    result = CliRunner().invoke(main, [*arguments, *options])
    assert monotonic() - began < PATIENCE_S
    assert result.exit_code == 1
    assert result.stdout == ""
    line, advice = result.stderr.splitlines()
    assert line.startswith("busnode: DISCONNECTED: no node for 0.2 s: 127.0.0.1:1: ")
    assert advice.startswith("  → Start a node with `busnode start ")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["pub", "/a", "x", "--lines"], "--lines takes messages from stdin"),
        (["pub", "/a", "--lines", "--count", "2"], "--lines takes messages from stdin"),
        (["pub", "/a", "x", "--id", "1", "--count", "2"], "--id is for one message"),
        (["pub", "/a", "x", "--header", "kind"], "'kind' is not K=V"),
        (["pub", "a", "x"], "does not begin with /"),
        (["pub", "/a/*", "x"], "/a/*"),
        (["sub", "/a/*/b"], "/a/*/b"),
        (["sub", "/a", "--from", "yesterday"], "'yesterday'; expected latest, earliest"),
        (["sub", "/a", "--count", "0"], "0 is not in the range"),
        (["request", "/a", "x", "--timeout", "0"], "0.0 is not in the range"),
        (["reply", "/a"], "Give one of --echo and --exec CMD"),
        (["reply", "/a", "--echo", "--exec", "cat"], "Give one of --echo and --exec CMD"),
        (["top"], "top draws on a terminal"),
        (["cursor", "show", "/nowhere"], "does not exist"),
    ],
)
def test_a_wrong_call_is_one_line_and_ends_with_code_2(arguments: list[str], told: str) -> None:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert told in result.stderr.splitlines()[0]
    assert len(result.stderr.splitlines()) == 2
