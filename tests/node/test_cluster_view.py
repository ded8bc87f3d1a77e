"""The cluster as people see it: what a node's status becomes."""

from typing import Any

import pytest

from busnode.node.cluster_view import ClusterView

NOW_US = 1_700_000_000_000_000
"""2023-11-14 22:13:20"""

Status = dict[str, Any]


def peer(name: str | None, **more: Any) -> Status:
    return {
        "name": name,
        "broker_id": None if name is None else f"{name:0>2.2}" * 16,
        "addresses": [f"{name or 'seed'}:4251"],
        "source": "mdns",
        "link": "waiting",
        "error": None,
        "dials_us": False,
        **more,
    }


def up(name: str, **more: Any) -> Status:
    linked = {
        "link": "up", "dials_us": True, "link_s": 60.0, "messages": 1200,
        "received_bytes": 15_000, "clients_at": [f"{name}:4250"],
    }  # fmt: skip
    return peer(name, **{**linked, **more})


def status(*peers: Status, missing: tuple[tuple[str, str], ...] = (), **more: Any) -> Status:
    return {
        "name": "n1",
        "broker_id": "n1" * 16,
        "addresses": {"client": "127.0.0.1:4250", "peer": "127.0.0.1:4251"},
        "uptime_s": 90_000.0,
        "utc_us": NOW_US,
        "counters": {"messages_live": 1, "messages_persistent": 2, "received_bytes": 812},
        "cluster": {
            "peers": list(peers),
            "missing_links": [{"dialler": one, "listener": other} for one, other in missing],
            "missing_links_count": len(missing),
            "discovery": {"failure": None},
        },
        **more,
    }


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (status(), "1 node: no other is linked"),
        (status(addresses={}), "1 node: it stays alone (--peer-port off)"),
        (status(up("n2"), up("n3")), "3 nodes, fully meshed"),
        (
            status(up("n2"), up("n3"), missing=(("n2", "n3"),)),
            "3 nodes, 1 link missing: n2 → n3",
        ),
        (
            status(up("n2"), peer("n3"), missing=(("n1", "n3"),)),
            "3 nodes, 1 link missing: n1 → n3",
        ),
        (
            status(up("n2"), missing=tuple(("n2", f"n{number}") for number in range(3, 8))),
            "7 nodes, 5 links missing: n2 → n3, n2 → n4, n2 → n5 and 2 more",
        ),
        (status(up("n2"), up("n3", link="dialling")), "3 nodes, linking: n3 dials us only"),
        (status(up("n2"), up("n3", dials_us=False)), "3 nodes, linking: n3 we dial only"),
        (
            status(up("n2"), peer("n3"), peer(None)),
            "2 nodes, fully meshed; 2 more do not answer: n3, seed:4251",
        ),
        (status(peer(None)), "1 node: no other is linked; 1 more does not answer: seed:4251"),
    ],
)
def test_the_mesh_is_one_line(found: Status, text: str) -> None:
    assert ClusterView(found).summary() == text


def test_a_node_is_a_row_and_what_is_wrong_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    found = status(
        up("n2"),
        peer("n3", error="n3:4251: no answer in time"),
        peer(None, error="seed:4251: Connection refused"),
        missing=(("n2", "n3"),),
    )
    ClusterView(found).show(itself=True)
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        "node broker clients link up since messages in bytes".split(),
        "n1 n1n1n1n1 127.0.0.1:4250 itself 11-13 21:13 3 812 B".split(),
        "n2 n2n2n2n2 n2:4250 both ways 22:12:20 1,200 15.0 kB".split(),
        "n3 n3n3n3n3 – down – – –".split(),
        "missing link: n2 → n3".split(),
        "down: n3 n3:4251: no answer in time".split(),
        "may be there: seed:4251: Connection refused".split(),
    ]


def test_a_stranger_cannot_move_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    evil = "\x1b[2J"
    view = ClusterView(
        status(up(evil, broker_id="0" * 32), peer(None, error=evil), missing=((evil, evil),))
    )
    view.show(itself=True)
    assert "\x1b" not in capsys.readouterr().out + view.summary()
    assert view.nodes_count == 2
