"""`busnode doctor`: does it see what is wrong?"""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .processes import Node, run, unique_cluster

pytestmark = pytest.mark.scenario


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """One that is announced by multicast on loopback."""
    started = Node(unique_cluster(), "n1", tmp_path_factory.mktemp("data"))
    yield started
    started.close()


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address at which nobody answers, and nobody else can begin to."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


def diagnosed(*arguments: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """The exit code, and the checks by name."""
    ended = run("doctor", "--json", "--timeout", "3", *arguments)
    assert ended.stderr == ""
    told = json.loads(ended.stdout)
    assert told["ok"] == (ended.returncode == 0)
    return ended.returncode, {check["check"]: check for check in told["checks"]}


def test_a_node_that_is_well_is_well(node: Node, tmp_path: Path) -> None:
    seed = ("--seed", node.peer, "--data", str(tmp_path / "later"))
    code, checks = diagnosed("--url", node.url, "--cluster-id", node.cluster_id, *seed)
    assert code == 0, checks
    assert set(checks) == {
        "node", "ready", "mesh", "discovery", "clock", "listening", "multicast", "announced",
        "seed", "files", "python", "disk",
    }  # fmt: skip
    for name in ("node", "ready", "mesh", "discovery", "clock", "multicast", "announced", "seed"):
        assert checks[name]["verdict"] == "ok", checks[name]
        assert checks[name]["advice"] is None
    assert f"1 node of cluster '{node.cluster_id}'" in checks["announced"]["seen"]
    assert checks["seed"]["seen"] == f"n1 answers at {node.peer}, of the same cluster"


def test_it_leaves_no_trace_in_the_cluster(node: Node) -> None:
    diagnosed("--url", node.url, "--seed", node.peer)
    assert node.status()["cluster"]["peers"] == []


def test_where_no_node_is_it_says_so_and_looks_on(nobody: str) -> None:
    code, checks = diagnosed("--url", f"bus://{nobody}", "--timeout", "0.5")
    assert code == 1
    assert checks["node"]["verdict"] == "failed"
    assert f"nobody answers at bus://{nobody}" in checks["node"]["seen"]
    assert "busnode start" in checks["node"]["advice"]
    assert checks["multicast"]["verdict"] == "ok"
    assert "ready" not in checks


def test_another_cluster_id_is_seen(node: Node) -> None:
    other = unique_cluster()
    code, checks = diagnosed("--url", node.url, "--cluster-id", other)
    assert code == 1
    assert checks["cluster id"]["verdict"] == "failed"
    assert checks["cluster id"]["seen"] == (
        f"the node is of cluster '{node.cluster_id}', not '{other}'"
    )
    assert checks["announced"]["verdict"] == "failed"
    assert f"none of '{other}'" in checks["announced"]["seen"]


def test_a_seed_that_nobody_listens_at_and_one_of_another_cluster_fail(
    node: Node, nobody: str
) -> None:
    other = unique_cluster()
    code, checks = diagnosed("--url", node.url, "--seed", nobody)
    assert code == 1
    assert checks["seed"]["verdict"] == "failed"
    assert checks["seed"]["seen"] == f"no node answers at {nobody}: Connection refused"
    code, checks = diagnosed("--url", node.url, "--seed", node.peer, "--cluster-id", other)
    assert code == 1
    assert f"the node at {node.peer} answers WRONG_CLUSTER" in checks["seed"]["seen"]
    assert repr(other) in checks["seed"]["seen"]


def test_a_port_for_clients_is_no_seed(node: Node) -> None:
    code, checks = diagnosed("--url", node.url, "--seed", node.ready["client"])
    assert code == 1
    assert checks["seed"]["verdict"] == "failed"


def test_a_node_on_loopback_is_none_for_others(node: Node) -> None:
    code, checks = diagnosed("--url", node.url, "--seed", "198.51.100.1:4251")
    assert code == 1
    assert checks["listening"]["verdict"] == "failed"
    assert "198.51.100.1:4251 is beyond this one" in checks["listening"]["seen"]


def test_people_get_a_line_for_each_check_and_what_to_do_below(node: Node, nobody: str) -> None:
    ended = run("doctor", "--url", node.url, "--seed", nobody)
    lines = ended.stdout.splitlines()
    assert ended.returncode == 1
    assert lines[0].startswith("ok       node        n1 of cluster ")
    place = next(place for place, line in enumerate(lines) if line.startswith("failed   seed "))
    assert lines[place + 1].startswith("                     → See whether a node runs there")
    assert " checks failed" in lines[-1]


def test_an_interface_that_is_not_there_is_wrong_usage() -> None:
    ended = run("doctor", "--interface", "nowhere0")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "there is no network interface 'nowhere0'" in ended.stderr
