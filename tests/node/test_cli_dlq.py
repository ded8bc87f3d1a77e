"""`busnode dlq` as a person runs it, on one real node and on a cluster of some."""

import json
import os
import pty
import re
import select
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from .node_process import COMMAND, PATIENCE_S, NodeProcess, environment
from .processes import Node, run, unique_cluster, wait_for

pytestmark = pytest.mark.scenario

ID = r"[0-9a-f]{32}-[0-9]+"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    running = NodeProcess(tmp_path_factory.mktemp("data") / "n1")
    yield running
    running.stop()


def bury(node: NodeProcess, queue: str, *payloads: str, error: str = "broken") -> list[str]:
    """Tasks that have failed for good: their ids."""
    lines = "".join(f"{payload}\n" for payload in payloads)
    told = json.loads(node.output("task", "enqueue", queue, "--lines", "--json", stdin=lines))
    count = str(len(payloads))
    node.output("task", "poll", queue, "--count", count, "--fail", error, "--permanent")
    ids: list[str] = told["ids"]
    return ids


def dead(node: NodeProcess, queue: str, *options: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(node.output("dlq", "ls", queue, *options, "--json"))[
        "dead"
    ]
    return rows


# Looking --------------------------------------------------------------------------------------


def test_dead_letters_are_listed_with_what_has_killed_them(node: NodeProcess) -> None:
    (first,) = bury(node, "listed", "one", error="disk full")
    (second,) = bury(node, "listed", "three", error="no such address\x1b[2J")
    titles, one, two, total = node.output("dlq", "ls", "listed").splitlines()
    assert titles.split() == "id died attempts size worker node last error".split()
    found = re.fullmatch(
        rf"({ID})  20..-..-.. ..:..:.. +1 +3 B  busnode task poll  \S+ +disk full", one
    )
    assert found
    assert found[1] == first
    assert two.startswith(second)
    assert two.endswith(r"no such address\x1b[2J")
    assert total == "2 dead letters"


def test_lists_are_narrowed_by_error_by_time_and_by_number(node: NodeProcess) -> None:
    (first,) = bury(node, "narrow", "one", error="disk full")
    (second,) = bury(node, "narrow", "two", error="no such address")
    assert [row["id"] for row in dead(node, "narrow", "--error", "address")] == [second]
    assert [row["id"] for row in dead(node, "narrow", "--since", "1h")] == [first, second]
    assert dead(node, "narrow", "--until", "1h") == []
    between = dead(node, "narrow")[1]["died"]
    assert [row["id"] for row in dead(node, "narrow", "--since", between)] == [second]
    assert [row["id"] for row in dead(node, "narrow", "--limit", "1")] == [first]
    lines = node.output("dlq", "ls", "narrow", "--limit", "1").splitlines()
    assert lines[-1] == "1 dead letter; there may be more: --limit"


def test_one_is_shown_with_every_attempt_and_its_payload(node: NodeProcess) -> None:
    options = ["--retry", "0,0", "--header", "kind=mail"]
    node.output("task", "enqueue", "shown", "to: ada\nhello", *options)
    node.output("task", "poll", "shown", "--count", "1", "--fail", "no route", "--name", "w1")
    node.output("task", "poll", "shown", "--count", "1", "--fail", "no such user", "--name", "w2")
    (letter,) = dead(node, "shown")
    text = node.output("dlq", "show", "shown", letter["id"])
    assert text.splitlines()[0] == f"dead letter {letter['id']}"
    assert re.search(r"^  attempts +2$", text, re.MULTILINE)
    assert re.search(r"^  headers +.*kind=mail", text, re.MULTILINE)
    assert re.search(r"^ +1  20..-..-.. ..:..:..  w1 +no route$", text, re.MULTILINE)
    assert re.search(r"^ +2  20..-..-.. ..:..:..  w2 +no such user$", text, re.MULTILINE)
    assert text.endswith("\n\nto: ada\nhello\n")
    told = json.loads(node.output("dlq", "show", "shown", letter["id"], "--json"))
    assert told["payload"] == "to: ada\nhello"
    assert told["headers"]["kind"] == "mail"
    attempts = [(each["attempt"], each["worker"], each["error"]) for each in told["history"]]
    assert attempts == [(1, "w1", "no route"), (2, "w2", "no such user")]


def test_a_payload_that_is_no_text_is_shown_in_hex(node: NodeProcess) -> None:
    enqueued = subprocess.run(
        [*COMMAND, "task", "enqueue", "hex", "--retry", "none"], check=True,
        input=b"\xff\x00" * 9, env=environment(node.url), capture_output=True, timeout=PATIENCE_S,
    )  # fmt: skip
    assert enqueued.stderr == b""
    node.output("task", "poll", "hex", "--count", "1", "--fail", "x")
    (letter,) = dead(node, "hex")
    lines = node.output("dlq", "show", "hex", letter["id"]).splitlines()
    assert lines[-2:] == [f"00000000  {'ff 00 ' * 8}".rstrip(), "00000010  ff 00"]
    told = json.loads(node.output("dlq", "show", "hex", letter["id"], "--json"))
    assert told["payload_base64"] == "/wD/AP8A/wD/AP8A/wD/AP8A"


def test_what_is_not_there_is_told(node: NodeProcess) -> None:
    bury(node, "some", "x")
    ended = node.run("dlq", "show", "some", "00-1")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == "busnode: queue some has no dead letter 00-1\n"
    for verb in (["ls"], ["show", "00-1"], ["requeue", "--all"], ["delete", "00-1"], ["purge"]):
        more = ["--yes"] if verb == ["purge"] else []
        ended = node.run("dlq", verb[0], "nowhere", *verb[1:], *more)
        assert (ended.returncode, ended.stdout) == (1, "")
        unknown = "busnode: UNKNOWN_QUEUE: no node knows a queue 'nowhere'"
        assert ended.stderr.splitlines()[0] == unknown


# Acting ---------------------------------------------------------------------------------------


def test_letters_are_requeued_as_they_were_or_changed(node: NodeProcess) -> None:
    first, second, third = bury(node, "again", "one", "two", "three")
    told = node.output("dlq", "requeue", "again", first)
    assert told == "requeued 1 dead letter of again\n"
    ended = node.run("dlq", "requeue", "again", second, first, "--payload", "better")
    assert (ended.returncode, ended.stdout) == (1, "requeued 1 dead letter of again\n")
    assert ended.stderr == f"busnode: {first} is no dead letter of again\n"
    came = node.output("task", "poll", "again", "--count", "2", "--json").splitlines()
    tasks = {task["id"]: (task["payload"], task["attempt"]) for task in map(json.loads, came)}
    assert tasks == {first: ("one", 1), second: ("better", 1)}
    assert [row["id"] for row in dead(node, "again")] == [third]


def test_all_are_requeued_or_those_with_an_error(node: NodeProcess) -> None:
    bury(node, "all", *map(str, range(500)), error="connection refused")
    bury(node, "all", "x", "y", error="no such address")
    told = node.output("dlq", "requeue", "all", "--all", "--error", "refused")
    assert told == "requeued 500 dead letters of all\n"
    assert [row["error"] for row in dead(node, "all")] == ["no such address"] * 2
    report = json.loads(node.output("dlq", "requeue", "all", "--all", "--json"))
    assert (len(report["requeued"]), report["not_found"], report["silent"]) == (2, [], {})
    assert dead(node, "all") == []
    came = node.output("task", "poll", "all", "--count", "502", "--json").splitlines()
    assert len({json.loads(line)["id"] for line in came}) == 502
    assert node.output("dlq", "requeue", "all", "--all") == "requeued 0 dead letters of all\n"


def test_letters_are_deleted_one_by_one_or_all(node: NodeProcess) -> None:
    first, *_ = bury(node, "gone", "one", "two", "three")
    ended = node.run("dlq", "delete", "gone", first, "00-1")
    assert (ended.returncode, ended.stdout) == (1, "deleted 1 dead letter of gone\n")
    assert ended.stderr == "busnode: 00-1 is no dead letter of gone\n"
    told = json.loads(node.output("dlq", "purge", "gone", "--yes", "--json"))
    assert told == {"queue": "gone", "deleted": 2, "silent": {}}
    assert node.output("dlq", "ls", "gone") == "0 dead letters\n"


def at_a_terminal(node: NodeProcess, *arguments: str, answer: str) -> tuple[int, str]:
    """The exit code of a command that asks, and all that is on its screen."""
    outside, inside = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        env=environment(node.url),
        stdin=inside,
        stdout=inside,
        stderr=inside,
    )
    os.close(inside)
    drawn = b""
    answered = False
    give_up_at = monotonic() + PATIENCE_S
    while monotonic() < give_up_at:
        readable, _, _ = select.select([outside], [], [], PATIENCE_S)
        assert readable
        try:
            drawn += os.read(outside, 4096)
        except OSError:  # it has ended
            break
        if not answered and b"? [y/N] " in drawn:
            os.write(outside, f"{answer}\n".encode())
            answered = True
    os.close(outside)
    return process.wait(PATIENCE_S), drawn.decode().replace("\r\n", "\n")


def test_a_purge_asks_first(node: NodeProcess) -> None:
    bury(node, "asked", "one", "two")
    question = "delete 2 dead letters of asked for good? [y/N] "
    code, screen = at_a_terminal(node, "dlq", "purge", "asked", answer="n")
    assert (code, screen) == (1, f"{question}n\nnothing was deleted\n")
    assert len(dead(node, "asked")) == 2
    code, screen = at_a_terminal(node, "dlq", "purge", "asked", answer="y")
    assert (code, screen) == (0, f"{question}y\ndeleted 2 dead letters of asked\n")
    assert dead(node, "asked") == []


# A cluster ------------------------------------------------------------------------------------


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[Node]]:
    """Two nodes that are linked."""
    started: list[Node] = []
    cluster_id = unique_cluster()
    try:
        for name in ("n1", "n2"):
            seeds = [word for node in started for word in ("--seed", node.peer)]
            # Nobody goes on with the tasks of a node that does not answer for a while.
            started.append(Node(cluster_id, name, tmp_path, "--adopt-after", "1h", *seeds))
        wait_for(lambda: [node.links() for node in started] == [1, 1], "links")
        yield started
    finally:
        for node in started:
            node.close()


def told_json(*arguments: str) -> dict[str, Any]:
    ended = run(*arguments, "--json")
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def test_all_nodes_are_asked_and_who_is_silent_is_named(nodes: list[Node]) -> None:
    one, two = nodes
    ids: list[str] = []
    for node in nodes:
        ids += told_json("task", "enqueue", "q", "x", "--retry", "none", "--url", node.url)["ids"]
    fail = ["--fail", "no", "--count", "2"]
    assert run("task", "poll", "q", *fail, "--url", one.url).returncode == 0
    events = run("events", "--kind", "task.dead", "--url", one.url).stdout.splitlines()
    assert sorted(line.split()[2] for line in events) == ["n1", "n2"]
    assert all(line.endswith("dead letters in queue q: 1 more") for line in events)
    (row,) = told_json("task", "ls", "--url", two.url)["queues"]
    assert (row["dead"], row["failed"], sorted(row["nodes"])) == (2, 2, ["n1", "n2"])
    found = told_json("dlq", "ls", "q", "--url", two.url)
    assert {(row["id"], row["node"]) for row in found["dead"]} == set(
        zip(ids, ("n1", "n2"), strict=True)
    )
    shown = told_json("dlq", "show", "q", ids[0], "--url", two.url)
    assert shown["history"][0]["error"] == "no"
    # The first one is deleted by way of the other, which is then lost.
    assert run("dlq", "delete", "q", ids[0], "--url", two.url).returncode == 0
    two.signal(signal.SIGSTOP)
    ended = run("dlq", "ls", "q", "--url", one.url)
    assert ended.returncode == 0
    count, silent = ended.stdout.splitlines()
    assert count == "0 dead letters"
    assert silent.startswith("no answer from n2: ")
    ended = run("dlq", "purge", "q", "--yes", "--url", one.url)
    assert (ended.returncode, ended.stdout.splitlines()[0]) == (1, "deleted 0 dead letters of q")
    ended = run("dlq", "ls", "nowhere", "--url", one.url)
    unknown = "busnode: UNKNOWN_QUEUE: no node that has answered knows a queue 'nowhere'; "
    assert ended.stderr.splitlines()[0] == f"{unknown}no answer from n2"
    two.signal(signal.SIGCONT)
    wait_for(lambda: run("dlq", "delete", "q", ids[1], "--url", one.url).returncode == 0, "n2")
