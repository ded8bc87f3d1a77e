"""`busnode dev`: a cluster comes up, is broken, heals, and leaves nothing behind."""

import json
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from busnode.node.dev_node import FIRST_S, MOST_S, STEADY_S, Restarts

from .processes import Process, is_running, process, run, wait_for

Ready = dict[str, Any]


@contextmanager
def dev(*options: str) -> Iterator[tuple[Process, Ready]]:
    """It and what it tells once all are meshed."""
    with process("dev", "--json", *options) as started:
        yield started, started.hear_of("ready")


def pids(ready: Ready) -> list[int]:
    return [node["pid"] for node in ready["nodes"]]


def places(ready: Ready) -> set[tuple[str, str]]:
    return {(node["name"], node["client"]) for node in ready["nodes"]}


def seen(ready: Ready) -> set[tuple[str, str]]:
    """Names and addresses of all nodes, as the first that answers tells."""
    ended = run("nodes", "--json", "--url", ready["url"])
    assert (ended.returncode, ended.stderr) == (0, "")
    found = json.loads(ended.stdout)
    assert (found["cluster_id"], found["missing_links"]) == (ready["cluster_id"], [])
    asked = (found["asked"]["name"], found["asked"]["addresses"]["client"])
    # The incarnation that died may still be listed: it is dialled once more before it is forgotten.
    linked = [peer for peer in found["peers"] if peer["link"] == "up"]
    return {asked, *((peer["name"], peer["clients_at"][0]) for peer in linked)}


@pytest.mark.scenario
def test_three_nodes_come_up_meshed_and_end_cleanly() -> None:
    with dev() as (running, ready):
        assert [node["name"] for node in ready["nodes"]] == ["n1", "n2", "n3"]
        assert ready["cluster_id"].startswith("dev-")
        assert seen(ready) == places(ready)
        assert all(map(is_running, pids(ready)))
        assert Path(ready["data"], "n1.log").is_file()
        assert running.end(signal.SIGINT) == (0, "")
        assert not any(map(is_running, pids(ready)))
        assert not Path(ready["data"]).exists()


@pytest.mark.scenario
def test_data_that_was_asked_for_is_kept_and_so_are_messages(tmp_path: Path) -> None:
    data = tmp_path / "cluster"
    options = ("-n", "1", "--data", str(data), "--cluster-id", f"test-{os.urandom(6).hex()}")
    with dev(*options) as (running, ready):
        assert ready["data"] == str(data)
        ended = run("pub", "/kept", "hello", "--persistent", "--url", ready["url"])
        assert ended.returncode == 0
        assert running.end(signal.SIGTERM) == (0, "")
    with dev(*options) as (running, ready):
        came = run("sub", "/kept", "--from", "earliest", "--count", "1", "--url", ready["url"])
        assert came.stdout.endswith(" hello\n")
        assert running.end(signal.SIGTERM) == (0, "")
    assert (data / "n1" / "logs").is_dir()


@pytest.mark.scenario
def test_a_node_is_killed_now_and_then_and_comes_back_to_its_place() -> None:
    with dev("--kill-every", "1s") as (running, ready):
        for _ in range(2):
            killed = running.hear_of("killed")
            restarted = running.hear_of("restarted")
            assert restarted["node"] == killed["node"]
            assert (restarted["node"], restarted["client"]) in places(ready)
            assert running.hear_of("meshed")["again"]
        assert running.end(signal.SIGTERM) == (0, "")


@pytest.mark.scenario
def test_a_node_that_dies_by_itself_is_told_and_started_again_at_its_place() -> None:
    with dev("-n", "2") as (running, ready):
        os.kill(pids(ready)[1], signal.SIGKILL)
        died = running.hear_of("died")
        assert (died["node"], died["reason"]) == ("n2", "n2 was ended by signal 9")
        assert running.hear_of("restarted")["node"] == "n2"
        running.hear_of("meshed")
        assert seen(ready) == places(ready)
        assert running.end(signal.SIGTERM) == (0, "")


@pytest.mark.scenario
def test_a_node_that_is_silent_is_told() -> None:
    with dev("-n", "2") as (running, ready):
        os.kill(pids(ready)[1], signal.SIGSTOP)
        assert running.hear_of("torn")["silent"] == ["n2"]
        os.kill(pids(ready)[1], signal.SIGCONT)
        running.hear_of("meshed")
        assert running.end(signal.SIGTERM) == (0, "")


@pytest.mark.scenario
def test_no_process_stays_behind_when_it_is_killed(tmp_path: Path) -> None:
    with dev("--data", str(tmp_path)) as (running, ready):
        running.process.kill()
        wait_for(lambda: not any(map(is_running, pids(ready))), "the end of all nodes")
        os.kill(running.pid, 0)  # it is there, as a zombie: not even its parent had to act


@pytest.mark.scenario
def test_no_process_stays_behind_when_it_is_killed_while_nodes_start(tmp_path: Path) -> None:
    with process("dev", "--json", "-n", "4", "--data", str(tmp_path)) as running:
        running.hear_of("started")
        children = Path(f"/proc/{running.pid}/task/{running.pid}/children")
        wait_for(lambda: len(children.read_text().split()) == 4, "four processes")
        nodes = [int(pid) for pid in children.read_text().split()]
        running.process.kill()
        wait_for(lambda: not any(map(is_running, nodes)), "the end of all nodes")


@pytest.mark.scenario
def test_a_port_that_is_taken_is_one_clear_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ended = run("dev", "-n", "1", "--port", str(port))
    assert (ended.returncode, ended.stdout) == (2, "")
    first, *_ = ended.stderr.splitlines()
    assert first.startswith("busnode: USAGE: n1 ended with exit code 2: ")
    assert f"127.0.0.1:{port}" in first


@pytest.mark.scenario
@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["-n", "0"], "'-n'"),
        (["-n", "3", "--port", "65520"], "ports up to 65542"),
        (["--kill-every", "10"], "is no time"),
        (["--kill-every", "10ms"], "is out of bounds"),
        (["--cluster-id", ""], "is no text"),
    ],
)
def test_what_cannot_be_is_refused(options: list[str], text: str) -> None:
    ended = run("dev", *options)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert text in ended.stderr


def test_a_node_that_cannot_live_is_started_less_and_less_often() -> None:
    restarts = Restarts()
    pauses = [restarts.pause_s(0.1) for _ in range(40)]
    assert pauses[0] == FIRST_S
    assert pauses == sorted(pauses)
    assert pauses[-1] == MOST_S
    assert restarts.pause_s(STEADY_S) == FIRST_S
