"""`busnode task` as a person runs it: each command in a process of its own, against a real node."""

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from click.testing import CliRunner

from busnode.node.cli import main

from .node_process import NodeProcess, Running, wait_for
from .processes import is_running

pytestmark = pytest.mark.scenario

ID = r"[0-9a-f]{32}-[0-9]+"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    running = NodeProcess(tmp_path_factory.mktemp("data") / "n1")
    yield running
    running.stop()


def counts(node: NodeProcess, queue: str) -> dict[str, Any]:
    """What `task ls` tells of one queue."""
    rows: list[dict[str, Any]] = json.loads(node.output("task", "ls", "--json"))["queues"]
    (found,) = [row for row in rows if row["queue"] == queue]
    return found


def tasks(node: NodeProcess, queue: str, *options: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(node.output("task", "ls", queue, *options, "--json"))[
        "tasks"
    ]
    return found


def polled(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


# Enqueue and poll -----------------------------------------------------------------------------


def test_a_task_enqueued_in_one_terminal_is_worked_on_in_another(node: NodeProcess) -> None:
    with node.running("task", "poll", "hello") as worker:
        told = node.output("task", "enqueue", "hello", "to: ada")
        assert re.fullmatch(f"enqueued 1 task in hello as {ID}, acked: local\n", told)
        line = worker.stdout.readline()
        assert re.fullmatch(f"{ID} 1 to: ada\n", line)
        assert line.split()[0] in told
        wait_for(lambda: counts(node, "hello")["completed"] == 1)
        assert worker.interrupt() == (130, "")
    found = counts(node, "hello")
    assert {found[name] for name in ("ready", "leased", "settling", "dead", "failed")} == {0}


def test_lines_are_tasks_and_come_in_their_order_once(node: NodeProcess) -> None:
    lines = "".join(f"{number}\n" for number in range(10_000))
    told = node.output("task", "enqueue", "lines", "--lines", stdin=lines)
    assert told == "enqueued 10,000 tasks in lines, acked: local\n"
    came = polled(node.output("task", "poll", "lines", "--count", "9950", "--json"))
    assert [task["payload"] for task in came] == [str(number) for number in range(9950)]
    assert len({task["id"] for task in came}) == 9950
    found = counts(node, "lines")
    assert (found["completed"], found["ready"], found["leased"]) == (9950, 50, 0)


def test_json_has_all_that_a_worker_knows(node: NodeProcess) -> None:
    options = ["--header", "kind=mail", "--count", "2", "--json"]
    told = json.loads(node.output("task", "enqueue", "fields", *options, stdin="é"))
    assert (told["queue"], told["enqueued"], told["levels"]) == ("fields", 2, {"local": 2})
    first, second = polled(node.output("task", "poll", "fields", "--count", "2", "--json"))
    assert [first["id"], second["id"]] == told["ids"]
    assert (first["payload"], first["attempt"], first["headers"]) == ("é", 1, {"kind": "mail"})
    assert first["fence"] < second["fence"]
    assert re.fullmatch(r"20..-..-..T..:..:..(\.\d+)?Z", first["enqueued"])


def test_what_is_not_due_is_not_given_out_and_a_higher_priority_is_first(
    node: NodeProcess,
) -> None:
    node.output("task", "enqueue", "order", "in an hour", "--delay", "1h")
    node.output("task", "enqueue", "order", "much later", "--due", "2199-01-01T00:00")
    node.output("task", "enqueue", "order", "low")
    node.output("task", "enqueue", "order", "high", "--priority", "5")
    delayed = tasks(node, "order", "--state", "delayed")
    assert [task["payload_bytes"] for task in delayed] == [10, 10]
    assert delayed[1]["due_us"] == 7_226_582_400_000_000
    assert 3_500e6 < delayed[0]["due_us"] - delayed[0]["enqueued_us"] <= 3_600e6
    assert [task["priority"] for task in tasks(node, "order", "--state", "ready")] == [0, 5]
    came = polled(node.output("task", "poll", "order", "--count", "2", "--json"))
    assert [task["payload"] for task in came] == ["high", "low"]
    assert counts(node, "order")["delayed"] == 2


def test_a_key_that_was_there_within_its_window_is_dropped(node: NodeProcess) -> None:
    for payload in ("first", "again"):
        node.output("task", "enqueue", "keys", payload, "--key", "ada", "--window", "10m")
    (task,) = tasks(node, "keys")
    assert task["payload_bytes"] == len("first")


def test_tasks_that_nobody_could_read_any_more_are_given_back(node: NodeProcess) -> None:
    payload = "x" * 10_000
    node.output("task", "enqueue", "head", payload, "--count", "50")
    with node.running("task", "poll", "head", "--json") as worker:
        worker.stdout.read(100)
        worker.stdout.close()
        assert worker.ended() == (141, "")
    found = counts(node, "head")
    assert (found["ready"], found["failed"]) == (50, 0)


# --exec and --fail ----------------------------------------------------------------------------


def test_a_command_completes_its_task_or_fails_it_with_its_last_line(node: NodeProcess) -> None:
    node.output("task", "enqueue", "exec", "--lines", "--retry", "none", stdin="good\nbad\n")
    command = (
        "read -r word; echo $word $BUSNODE_QUEUE $BUSNODE_TASK_ID $BUSNODE_ATTEMPT; "
        'echo "one" >&2; echo "$word is no good" >&2; [ "$word" = good ]'
    )
    ended = node.run("task", "poll", "exec", "--exec", command, "--count", "2")
    assert ended.returncode == 1
    good, said, completed, bad, _, failed = ended.stdout.splitlines()
    assert re.fullmatch(f"{ID} 1 good", good)
    assert said == f"good exec {good.split()[0]} 1"
    assert re.fullmatch(r" {6}completed after .*", completed)
    assert re.fullmatch(f"{ID} 1 bad", bad)
    assert re.fullmatch(r" {6}failed after .*: bad is no good", failed)
    assert ended.stderr == "one\ngood is no good\none\nbad is no good\n"
    found = counts(node, "exec")
    assert (found["completed"], found["failed"], found["dead"]) == (1, 1, 1)


def test_json_tells_what_became_of_a_task_and_keeps_stdout_to_itself(node: NodeProcess) -> None:
    node.output("task", "enqueue", "told", "x", "--retry", "0,3600")
    ended = node.run(
        "task", "poll", "told", "--exec", "cat; exit 3", "--count", "1", "--json", "--name", "w1"
    )
    told = json.loads(ended.stdout)
    assert ended.returncode == 1
    assert (told["outcome"], told["error"], told["exit_code"]) == ("failed", "exit code 3", 3)
    assert ended.stderr == "x"
    (task,) = tasks(node, "told", "--state", "retrying")
    assert (task["attempts"], task["error"], task["worker"]) == (1, "exit code 3", "w1")


def test_a_command_may_take_longer_than_the_lease(node: NodeProcess, tmp_path: Path) -> None:
    done = tmp_path / "done"
    node.output("task", "enqueue", "long", "x")
    waiting = f"while [ ! -e {done} ]; do sleep 0.05; done"
    options = ["--exec", waiting, "--lease", "400ms", "--count", "1"]
    with node.running("task", "poll", "long", *options) as worker:
        assert worker.stdout.readline()
        enough = monotonic() + 2.5  # six leases, and two sweeps of those that ran out
        wait_for(lambda: monotonic() > enough)
        assert counts(node, "long")["leased"] == 1
        done.touch()
        assert worker.ended() == (0, "")
    found = counts(node, "long")
    assert (found["completed"], found["failed"]) == (1, 0)


def test_ctrl_c_ends_the_command_and_gives_the_task_back(node: NodeProcess, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    node.output("task", "enqueue", "back", "x")
    command = f"sleep 1000 & echo $! > {pid}.new; mv {pid}.new {pid}; wait"
    with node.running("task", "poll", "back", "--exec", command) as worker:
        wait_for(pid.exists)
        assert worker.interrupt() == (130, "")
    wait_for(lambda: not is_running(int(pid.read_text())))
    (task,) = polled(node.output("task", "poll", "back", "--count", "1", "--json"))
    assert task["attempt"] == 1
    assert counts(node, "back")["failed"] == 0


def test_what_is_failed_by_hand_waits_for_its_next_attempt_or_is_dead(node: NodeProcess) -> None:
    node.output("task", "enqueue", "fail", "x", "--count", "2")
    node.output("task", "poll", "fail", "--count", "1", "--fail", "not today")
    node.output("task", "poll", "fail", "--count", "1", "--fail", "never", "--permanent")
    found = {task["state"]: task["error"] for task in tasks(node, "fail")}
    assert found == {"retrying": "not today", "dead": "never"}


def test_a_lease_that_is_lost_ends_the_command(tmp_path: Path) -> None:
    """The node comes back, and knows nothing of the lease."""
    node = NodeProcess(tmp_path / "n1")
    try:
        node.output("task", "enqueue", "lost", "x")
        options = ["--exec", "sleep 1000", "--lease", "1s", "--count", "1", "--timeout", "60"]
        with node.running("task", "poll", "lost", *options, "--json") as worker:
            wait_for(lambda: counts(node, "lost")["leased"] == 1)
            node.kill()
            node = NodeProcess(tmp_path / "n1", node.port)
            told = json.loads(worker.stdout.readline())
            assert told["outcome"] == "lost"
            assert worker.process.wait(60) == 1
        (task,) = polled(node.output("task", "poll", "lost", "--count", "1", "--json"))
        assert (task["attempt"], task["id"]) == (1, told["id"])
    finally:
        node.stop()


# ls -------------------------------------------------------------------------------------------


def test_queues_are_listed_for_people(node: NodeProcess) -> None:
    node.output("task", "enqueue", "listed", "x", "--count", "1200")
    lines = node.output("task", "ls").splitlines()
    titles = "queue ready delayed retries in flight oldest dead done failed"
    assert lines[0].split() == titles.split()
    (row,) = [line for line in lines if line.startswith("listed ")]
    cells = re.split(r" {2,}", row)
    assert cells[:5] == ["listed", "1,200", "0", "0", "0"]
    assert cells[6:] == ["0", "0", "0"]
    assert re.search(r"\d queues?, [\d,]+ tasks", lines[-1])
    lines = node.output("task", "ls", "listed", "--limit", "2").splitlines()
    assert len(lines) == 4
    assert re.match(f"{ID}  ready", lines[1])
    assert lines[3] == "2 tasks; there may be more: --limit"


def test_more_tasks_than_a_page_are_listed_in_their_order(node: NodeProcess) -> None:
    told = json.loads(node.output("task", "enqueue", "pages", "x", "--count", "1000", "--json"))
    assert [task["id"] for task in tasks(node, "pages", "--limit", "1000")] == told["ids"]


def test_a_queue_that_nobody_knows_is_told_in_one_line(node: NodeProcess) -> None:
    ended = node.run("task", "ls", "nowhere")
    assert (ended.returncode, ended.stdout) == (1, "")
    first, _ = ended.stderr.splitlines()
    assert first == "busnode: UNKNOWN_QUEUE: no node knows a queue 'nowhere'"


def test_status_has_the_queues_of_the_node(node: NodeProcess) -> None:
    node.output("task", "enqueue", "shown", "x", "--count", "3")
    with node.running("task", "poll", "idle"):
        wait_for(lambda: node.status()["tasks"]["workers"] == 1)
        text = node.output("status")
    assert re.search(r"tasks +\d+ queues?, 1 worker here", text)
    assert re.search(r"queue idle +– +can take \d+ more$", text, re.MULTILINE)
    assert re.search(r"^shown +3 +0 +0 +0 .* +0 +0 +0$", text, re.MULTILINE)


# Wrong use ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["task", "enqueue", "a/b", "x"], "BAD_TASK: 'a/b' cannot be a queue"),
        (["task", "enqueue", "q", "x", "--delay", "-1s"], "'-1s' is no time"),
        (["task", "enqueue", "q", "x", "--delay", "30"], "'30' is no time"),
        (["task", "enqueue", "q", "x", "--due", "tomorrow"], "expected a UTC time"),
        (["task", "enqueue", "q", "x", "--due", "2026-01-31", "--delay", "1s"], "--delay or --due"),
        (["task", "enqueue", "q", "x", "--retry", "1,x"], "BAD_TASK: retry schedule '1,x'"),
        (["task", "enqueue", "q", "x", "--priority", "10"], "10 is not in the range"),
        (["task", "enqueue", "q", "x", "--header", "k"], "'k' is not K=V"),
        (["task", "enqueue", "q", "x", "--lines"], "--lines takes tasks from stdin"),
        (["task", "enqueue", "q", "x", "--key", "k", "--count", "2"], "--key is for one task"),
        (["task", "enqueue", "q", "x", "--window", "1m"], "--window is how long a --key"),
        (["task", "poll", "q", "--exec", "cat", "--fail", "x"], "take --exec or --fail"),
        (["task", "poll", "q", "--permanent"], "--permanent is for tasks that fail"),
        (["task", "poll", "q", "--lease", "13h"], "'13h' is out of bounds"),
        (["task", "ls", "--state", "ready"], "--state is for the tasks of a QUEUE"),
        (["task", "ls", "q", "--state", "happy"], "'happy' is not one of"),
        (["dlq", "requeue", "q"], "Give one ID or more, or --all"),
        (["dlq", "requeue", "q", "a-1", "--all"], "Give one ID or more, or --all"),
        (["dlq", "requeue", "q", "a-1", "--error", "x"], "--error chooses among all"),
        (["dlq", "delete", "q"], "Missing argument"),
        (["dlq", "purge", "q"], "purge asks first"),
        (["dlq", "ls", "q", "--since", "yesterday"], "'yesterday'; expected a UTC time"),
        (["dlq", "list"], "did you mean 'ls'?"),
    ],
)
def test_a_wrong_call_is_one_line_and_ends_with_code_2(arguments: list[str], told: str) -> None:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert told in result.stderr.splitlines()[0]
    assert len(result.stderr.splitlines()) == 2


def test_options_that_only_the_client_can_judge_are_told_before_anything_is_sent(
    node: NodeProcess,
) -> None:
    ended = node.run("task", "enqueue", "refused", "x", "--header", "$due_us=1")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "names that begin with $ are the queue's own" in ended.stderr.splitlines()[0]
    assert node.run("task", "ls", "refused").returncode == 1


@pytest.mark.parametrize(
    "words",
    [["task"], ["task", "enqueue"], ["task", "poll"], ["task", "ls"], ["dlq"]]
    + [["dlq", verb] for verb in ("ls", "show", "requeue", "delete", "purge")],
)
def test_help_has_an_example_and_fits_a_terminal(words: list[str]) -> None:
    result = CliRunner().invoke(main, [*words, "--help"], terminal_width=80)
    assert result.exit_code == 0
    assert f"  busnode {' '.join(words)}" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_sigterm_ends_a_worker_as_well(node: NodeProcess) -> None:
    with node.running("task", "poll", "nothing") as worker:
        assert isinstance(worker, Running)
        wait_for(lambda: node.status()["tasks"]["workers"] == 1)
        worker.process.send_signal(signal.SIGTERM)
        assert worker.ended() == (143, "")
