"""The audit log: what was refused and what was done, kept, and bounded."""

import json
from pathlib import Path
from typing import Any

import pytest
import trio

from busnode.node.audit import DISTINCT_MAX, Audit
from busnode.node.event_kinds import ACCESS_REFUSED, ADMIN_ACTED, Kind
from busnode.testing.sim.clock import SimClock
from busnode.wire.batches import Columns
from busnode.wire.errors import StorageFailed
from busnode.wire.frames import Flags
from busnode.wire.ids import Topic

from .raw_client import real_bus


class Kept:
    """What would be published."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []
        self.flushed = 0
        self.fails = False

    def publish(self, topic: Topic, columns: Columns, utc_us: int, flags: Flags) -> None:
        del utc_us
        if self.fails:
            raise StorageFailed("no room")
        assert topic == "/$sys/audit/n1"
        assert flags & Flags.PERSISTENT
        self.entries += [json.loads(payload) for payload in columns.payloads]

    def flush(self) -> None:
        self.flushed = len(self.entries)


class Told:
    def __init__(self) -> None:
        self.kinds: list[str] = []

    def __call__(self, kind: Kind, **facts: object) -> None:
        del facts
        self.kinds.append(kind.name)


def audit() -> tuple[Audit, Kept, Told]:
    kept, told = Kept(), Told()
    own: Any = kept
    return Audit(SimClock(), "n1", own, told), kept, told


async def test_refusals_are_kept_and_told_and_sent_at_once(autojump_clock: object) -> None:
    del autojump_clock
    found, kept, told = audit()
    found.refused(ACCESS_REFUSED, who="eve", address="1.2.3.4:5", why="no")
    assert [each["facts"]["who"] for each in kept.entries] == ["eve"]
    assert kept.flushed == 1, "it does not wait for somebody else's message"
    assert told.kinds == [ACCESS_REFUSED.name]
    assert found.refusals == 1


async def test_a_storm_of_refusals_is_folded_and_acts_never_are(autojump_clock: object) -> None:
    del autojump_clock
    found, kept, _ = audit()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(found.run)
        for n in range(5000):
            found.refused(ACCESS_REFUSED, who="eve", address="a", why="the same")
            found.refused(ACCESS_REFUSED, who=f"eve{n}", address="a", why="another")
        assert len(kept.entries) <= DISTINCT_MAX + 2
        for n in range(500):
            found.acted(who="root", act="dlq purge", target=f"q{n}")
        acts = [each for each in kept.entries if each["kind"] == ADMIN_ACTED.name]
        assert len(acts) == 500
        await trio.sleep(60)
        counted = sum(each["count"] for each in kept.entries if each["kind"] == ACCESS_REFUSED.name)
        assert counted == 10_000, "each is counted"
        assert found.refusals == 10_000
        assert kept.flushed == len(kept.entries)
        nursery.cancel_scope.cancel()


async def test_a_disk_that_fails_ends_nothing(
    autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    del autojump_clock
    found, kept, told = audit()
    kept.fails = True
    found.refused(ACCESS_REFUSED, who="eve", address="a", why="no")
    found.acted(who="root", act="x", target="y")
    assert not kept.entries
    assert len(told.kinds) == 2
    assert "could not be kept" in caplog.text


@pytest.mark.parametrize("name", ["n1", "a.b-c_d", "x" * 63])
async def test_a_nodes_name_of_any_kind_leaves_an_audit_log(tmp_path: Path, name: str) -> None:
    async with real_bus(tmp_path / "data", name=name) as bus:
        bus.node.audit.acted(who="root", act="x", target="y")
        await bus.committed()
        topics = [log.log_id.topic for log in bus.node.store.logs()]
        assert [each for each in topics if each.startswith("/$sys/audit")], topics
    assert {each.name for each in tmp_path.iterdir()} == {"data"}
