"""What flows between nodes, and how fast."""

from typing import Any

import pytest

from busnode.node.flows import WINDOW_S, Changes, Flow, Speeds, flows

ROW: dict[str, Any] = {
    "name": "b", "state": "catching up", "behind": 60, "behind_bytes": 600, "total": 100,
    "total_bytes": 1000, "since_s": 2.0, "lag": 60, "lag_bytes": 600, "waiting_s": 0.0,
    "sent_bytes": 0,
}  # fmt: skip


def status(name: str, mirrors: list[Any], repairs: list[Any] | None = None) -> dict[str, Any]:
    return {"name": name, "cluster": {"mirrors": mirrors, "repairs": repairs or []}}


def flow(done_bytes: int = 400, state: str = "catching up", total_bytes: int = 1000) -> Flow:
    row = {**ROW, "state": state, "total_bytes": total_bytes}
    row["behind_bytes"] = total_bytes - done_bytes
    (found,) = flows([status("a", [row])])
    return found


def test_they_are_put_together_from_all_nodes_those_under_way_first() -> None:
    repair = {**ROW, "name": "c", "of": "ab" * 16, "of_name": None}
    in_force = {**ROW, "state": "in force", "behind": 0, "behind_bytes": 0}
    found = flows([status("z", [ROW]), status("a", [in_force], [repair])])
    assert [(f.title, f.kind, f.is_under_way) for f in found] == [
        ("a → c (logs of abababab)", "repair", True),
        ("z → b", "mirror", True),
        ("a → b", "mirror", False),
    ]
    assert (found[1].done, found[1].total, found[1].done_bytes, found[1].share) == (
        40, 100, 400, 0.4,
    )  # fmt: skip


def test_one_with_nothing_to_do_is_all_done_when_it_is_in_force_and_not_before() -> None:
    row = {**ROW, "total": 0, "total_bytes": 0, "behind": 0, "behind_bytes": 0}
    (asked,) = flows([status("a", [{**row, "state": "asked"}])])
    (done,) = flows([status("a", [{**row, "state": "in force"}])])
    assert (asked.share, done.share) == (0.0, 1.0)


def test_at_the_first_look_the_speed_is_that_since_it_began() -> None:
    one = flow(done_bytes=400)
    speed = Speeds().look([one], now=100.0)[one.key]
    assert speed == (200.0, 3.0)


def test_later_it_is_that_of_the_last_seconds() -> None:
    speeds = Speeds()
    way = [*range(0, 500, 10), *range(500, 5500, 100)]
    ones = [flow(done_bytes, total_bytes=10**6) for done_bytes in way]
    looks = [speeds.look([one], 1000.0 + second) for second, one in enumerate(ones)]
    speed = looks[-1][flow().key]
    assert speed.bytes_per_s == pytest.approx(100.0)
    assert speed.left_s == pytest.approx((10**6 - 5400) / 100)


def test_one_that_stands_still_is_not_said_to_end() -> None:
    speeds = Speeds()
    looks = [speeds.look([flow()], float(second)) for second in range(int(2 * WINDOW_S))]
    assert looks[-1][flow().key] == (0.0, None)


def test_one_that_begins_anew_is_measured_anew() -> None:
    speeds = Speeds()
    speeds.look([flow(done_bytes=900)], 0.0)
    found = speeds.look([flow(done_bytes=100)], 1.0)
    assert found[flow().key].bytes_per_s == 50.0, "by its own word: 100 bytes in 2 seconds"


def test_a_line_is_due_for_a_new_state_and_for_each_tenth() -> None:
    changes = Changes()
    due = []
    for done_bytes in range(0, 1001, 5):
        changed, gone = changes.look([flow(done_bytes)])
        due += changed
        assert gone == []
    assert [round(each.share, 3) for each in due] == [n / 10 for n in range(11)]
    changed, _ = changes.look([flow(1000, "in force")])
    assert [each.state for each in changed] == ["in force"]
    assert changes.look([]) == ([], [flow().key])
    assert changes.look([]) == ([], [])
