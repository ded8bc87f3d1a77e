"""`nodes`, `status` and `top` on a cluster, and what they say of a link that is missing."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from .processes import Node, run, unique_cluster, wait_for

pytestmark = pytest.mark.scenario


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Node]]:
    """Three nodes. The first lets a silent one go soon, the second holds on to it for a minute."""
    data: Path = tmp_path_factory.mktemp("data")
    cluster_id = unique_cluster()
    nodes: list[Node] = []
    try:
        for name, heartbeat in (("n1", "500ms"), ("n2", "20s"), ("n3", "1s")):
            seeds = [word for node in nodes for word in ("--seed", node.peer)]
            options = ["--mdns", "off", "--link-heartbeat", heartbeat, *seeds]
            nodes.append(Node(cluster_id, name, data, *options))
        wait_for(lambda: all(node.links() == 2 for node in nodes), "the mesh")
        yield nodes
    finally:
        for node in nodes:
            node.close()


def output(*arguments: str) -> str:
    ended = run(*arguments)
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


def n3_is_away(seen_by: Node) -> bool:
    cluster = seen_by.status()["cluster"]
    rows = {peer["name"]: peer for peer in cluster["peers"]}
    gone = rows["n3"]["link"] != "up" and not rows["n3"]["dials_us"]
    return gone and cluster["missing_links_count"] == 1


def test_nodes_has_a_row_for_each_and_the_one_that_was_asked_is_first(cluster: list[Node]) -> None:
    _, second, _ = cluster
    title, *rows, summary = output("nodes", "--url", second.url).splitlines()
    assert title.split() == "node broker clients link up since messages in bytes".split()
    assert [row.split()[:5] for row in rows] == [
        ["n2", second.ready["broker_id"][:8], second.ready["client"], "itself", rows[0].split()[4]],
        *(
            [each.ready["name"], each.ready["broker_id"][:8], each.ready["client"], "both", "ways"]
            for each in (cluster[0], cluster[2])
        ),
    ]
    assert summary == f"cluster {second.cluster_id}: 3 nodes, fully meshed"


def test_nodes_as_json_is_what_the_status_has_of_the_cluster(cluster: list[Node]) -> None:
    found = json.loads(output("nodes", "--json", "--url", cluster[0].url))
    assert found["cluster_id"] == cluster[0].cluster_id
    assert found["asked"]["name"] == "n1"
    assert found["nodes_count"] == 3
    assert [peer["name"] for peer in found["peers"]] == ["n2", "n3"]
    assert found["missing_links"] == []


def test_a_link_that_is_missing_is_named_and_one_that_is_back_is_not(cluster: list[Node]) -> None:
    first, _, third = cluster
    url = ("--url", first.url)
    third.signal(signal.SIGSTOP)
    try:
        # Each of the two links is let go in its own time.
        wait_for(lambda: n3_is_away(first), "a missing link")
        told = output("nodes", *url)
        assert "\nmissing link: n1 → n3\n" in told
        assert "\ndown: n3  " in told
        assert told.endswith(": 3 nodes, 1 link missing: n1 → n3\n")
        assert "\n  cluster   3 nodes, 1 link missing: n1 → n3\n" in output("status", *url)
        looked = json.loads(output("top", "--json", "--count", "1", *url))
        assert (looked["nodes"], looked["links_missing"]) == (3, 1)
        ended = run("doctor", "--json", *url)
        checks = {check["check"]: check for check in json.loads(ended.stdout)["checks"]}
        assert ended.returncode == 1
        assert checks["mesh"]["verdict"] == "failed"
        assert checks["mesh"]["seen"] == "3 nodes, 1 link missing: n1 → n3"
    finally:
        third.signal(signal.SIGCONT)
    wait_for(lambda: all(node.links() == 2 for node in cluster), "the mesh again")
    wait_for(lambda: not first.status()["cluster"]["missing_links_count"], "no missing link")
    assert "\n  cluster   3 nodes, fully meshed\n" in output("status", *url)


def test_the_logs_are_told_with_their_holders_whichever_node_is_asked(cluster: list[Node]) -> None:
    wait_for(
        lambda: all(node.status()["cluster"]["level"] == "mirrored" for node in cluster), "mirrors"
    )
    first = cluster[0]
    output("pub", "/held/a", "x", "--persistent", "--count", "5", "--url", first.url)
    output("pub", "/held/b", "x", "--persistent", "--url", cluster[1].url)
    reports = [
        json.loads(output("status", "--logs", "/held/*", "--json", "--url", node.url))
        for node in cluster
    ]
    for report in reports:
        assert set(report["nodes"]) == {"n1", "n2", "n3"}
        assert report["silent"] == {}
        assert report["logs"] == reports[0]["logs"]
    one, other = reports[0]["logs"]
    assert (one["topic"], one["origin"], one["broker_id"]) == (
        "/held/a", "n1", first.ready["broker_id"],
    )  # fmt: skip
    assert (one["first_no"], one["last_no"], one["level"], one["is_open"]) == (
        1,
        5,
        "mirrored",
        True,
    )
    assert [(h["role"], h["last_no"], h["lag"]) for h in one["holders"]] == [
        ("origin", 5, 0), ("mirror", 5, 0),
    ]  # fmt: skip
    assert other["origin"] == "n2"
    title, *rows, count = output("status", "--logs", "/held/+", "--url", first.url).splitlines()
    assert title.split() == "topic broker origin msgNo size level holders".split()
    mirror = one["holders"][1]["node"]
    assert " ".join(rows[0].split()[-5:]) == f"mirrored n1 origin, {mirror} mirror"
    assert (len(rows), count) == (2, "2 logs")
    told = output("status", "--url", first.url)
    assert f"mirrored  n1 origin, {mirror} mirror\n" in told
