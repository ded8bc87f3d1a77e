"""`busnode events` and `busnode status --watch` on a cluster of processes."""

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .processes import Node, process, run, unique_cluster, wait_for

pytestmark = pytest.mark.scenario


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[list[Node]]:
    """Two nodes. A test may add to them."""
    cluster_id = unique_cluster()
    nodes: list[Node] = []
    try:
        for name in ("n1", "n2"):
            join(nodes, cluster_id, name, tmp_path)
        wait_for(lambda: all(node.links() == 1 for node in nodes), "the mesh")
        wait_for(
            lambda: all(node.status()["cluster"]["level"] == "mirrored" for node in nodes),
            "mirrors",
        )
        yield nodes
    finally:
        for node in nodes:
            node.close()


def join(nodes: list[Node], cluster_id: str, name: str, data: Path, *options: str) -> Node:
    seeds = [word for node in nodes for word in ("--seed", node.peer)]
    nodes.append(Node(cluster_id, name, data, "--mdns", "off", *seeds, *options))
    return nodes[-1]


def told(*arguments: str) -> list[dict[str, Any]]:
    ended = run("events", "--json", *arguments)
    assert (ended.returncode, ended.stderr) == (0, "")
    return [json.loads(line) for line in ended.stdout.splitlines()]


def test_those_of_all_nodes_are_shown_by_time_and_can_be_chosen(cluster: list[Node]) -> None:
    url = ("--url", cluster[0].url)
    rows = told(*url)
    assert {row["node"] for row in rows} == {"n1", "n2"}
    assert [row["utc_us"] for row in rows] == sorted(row["utc_us"] for row in rows)
    for node in ("n1", "n2"):
        kinds = [row["kind"] for row in rows if row["node"] == node]
        for kind in ("node.ready", "link.made", "mirror.chosen", "mirror.in-force"):
            assert kind in kinds
        assert kinds.index("link.made") < kinds.index("mirror.chosen")
    assert {row["node"] for row in told(*url, "--node", "n2")} == {"n2"}
    chosen = told(*url, "--kind", "mirror", "--kind", "node.ready")
    assert {row["kind"].split(".")[0] for row in chosen} == {"mirror", "node"}
    assert told(*url, "--severity", "error") == []
    assert told(*url, "--count", "2") == rows[-2:]
    lines = run("events", *url, "--kind", "link.made").stdout.splitlines()
    assert [line.split()[2:5] for line in lines] == [
        [row["node"], "info", "link.made"] for row in rows if row["kind"] == "link.made"
    ]
    assert {line.partition("link.made")[2].split()[:3][2] for line in lines} == {"n1", "n2"}


def test_a_kind_that_there_is_not_is_refused_with_those_that_there_are() -> None:
    ended = run("events", "--kind", "miror")
    assert ended.returncode == 2
    assert "mirror.chosen" in ended.stderr


def test_who_follows_hears_of_a_node_that_comes_and_of_one_that_dies(
    cluster: list[Node], tmp_path: Path
) -> None:
    first = cluster[0]
    with process("events", "--follow", "--json", "--url", first.url, "--count", "1") as follower:
        follower.hear()  # the last of those that were: from here on it listens
        third = join(cluster, first.cluster_id, "n3", tmp_path)
        heard: list[tuple[str, str]] = []

        def hear_until(node: str, kind: str) -> None:
            while (node, kind) not in heard:
                row = follower.hear()
                heard.append((row["node"], row["kind"]))

        hear_until("n1", "link.made")
        hear_until("n3", "mirror.in-force")
        assert ("n3", "node.ready") in heard, "though nobody was linked to it yet"
        third.signal(signal.SIGKILL)
        hear_until("n1", "link.lost")
        hear_until("n2", "link.lost")
        assert heard.count(("n3", "node.ready")) == 1
        code, errors = follower.end(signal.SIGINT)
        assert code == 130
        assert "Traceback" not in errors


def test_who_follows_goes_on_with_another_node_when_the_one_that_was_named_is_gone(
    cluster: list[Node],
) -> None:
    first, _ = cluster
    with process("events", "--follow", "--json", "--url", first.url, "--count", "1") as follower:
        follower.hear()
        first.signal(signal.SIGKILL)
        heard = follower.hear()
        while (heard["node"], heard["kind"]) != ("n2", "link.lost"):
            heard = follower.hear()
        assert heard["facts"]["name"] == "n1"


def test_who_watches_the_status_sees_a_mirror_catch_up_line_by_line(
    cluster: list[Node], tmp_path: Path
) -> None:
    """In a pipe: a line for each change, and an end with Ctrl-C."""
    first = join([], unique_cluster(), "w1", tmp_path, "--catchup-rate", "2MB")
    cluster.append(first)
    payload = "x" * 1000
    ended = run("pub", "/w", payload, "--persistent", "--count", "6000", "--url", first.url)
    assert ended.returncode == 0
    with process("status", "--watch", "--url", first.url) as watcher:
        assert "w1: acks are local" in watcher.hear_line()
        cluster.append(
            Node(first.cluster_id, "w2", tmp_path, "--mdns", "off", "--seed", first.peer)
        )
        lines: list[str] = []
        while not any("w1 → w2 mirror in force" in line for line in lines):
            lines.append(watcher.hear_line())
        assert any(
            re.search(
                r"w1 → w2 mirror catching up, \d+%: [\d,]+ of 6,000 messages, .+ of 6\.", line
            )
            for line in lines
        )
        assert any("w1: acks are mirrored" in line for line in lines)
        code, errors = watcher.end(signal.SIGINT)
        assert code == 130
        assert "Traceback" not in errors
    with process("status", "--watch", "--json", "--url", first.url) as watcher:
        found = watcher.hear()
        while set(found["nodes"]) != {"w1", "w2"}:
            found = watcher.hear()
        assert found["nodes"]["w1"] == {"ready": True, "level": "mirrored"}
        assert {(flow["source"], flow["target"]) for flow in found["flows"]} == {
            ("w1", "w2"), ("w2", "w1"),
        }  # fmt: skip
        first.signal(signal.SIGKILL)  # it goes on with the other one
        while set(found["nodes"]) != {"w2"} or found["flows"]:
            found = watcher.hear()
        assert found["nodes"]["w2"]["level"] == "local"


def test_to_look_once_and_on_and_on_at_the_same_time_is_wrong() -> None:
    ended = run("status", "--watch", "--logs")
    assert ended.returncode == 2
    assert "--logs or --watch" in ended.stderr
