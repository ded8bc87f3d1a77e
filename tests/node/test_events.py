"""What happens to a node, as events: told, kept, published, and never in the way."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import trio

from busnode.client import MemoryCursorStore, Subscription
from busnode.node.event import Event, make_event, read_event
from busnode.node.event_kinds import KINDS, LINK_LOST, LOG_POISONED, REFUSED
from busnode.node.events import KEPT_MAX, Events
from busnode.node.node import RunningNode
from busnode.testing.sim import DiskFault, SimClock
from busnode.testing.sim.simulation import simulate
from busnode.wire.errors import Refused
from busnode.wire.ids import BrokerId, Topic

from .raw_client import LIVE, SimulatedMachine, real_bus
from .simulated_cluster import SimulatedCluster, on_cluster

BROKER = BrokerId(bytes(15) + b"\1")


def test_a_sentence_that_lacks_a_fact_is_told_all_the_same() -> None:
    assert make_event(0, "a", LINK_LOST, {"name": "b"}).text == "link to b lost"
    assert make_event(0, "a", LINK_LOST, {"nmae": "b"}).text == "link lost: nmae b"


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_each_kind_has_a_group_a_severity_and_a_sentence(kind: Any) -> None:
    group, _, word = kind.name.partition(".")
    assert group
    assert word
    assert kind.severity in ("info", "warning", "error")
    facts = {part.split("}")[0].split(":")[0]: 7 for part in kind.sentence.split("{")[1:]}
    assert "{" not in make_event(0, "a", kind, facts).text
    assert make_event(0, "a", kind, facts).text != f"{kind.title}: "


def test_what_json_has_of_an_event_is_the_event_again() -> None:
    one = Event(1_700_000_000_000_000, "a", "k", "info", "text", {"n": 1, "s": "x"}, 3, "ab", 7)
    assert read_event(json.loads(json.dumps(one.told()))) == one
    assert one.told()["utc"] == "2023-11-14T22:13:20.000000Z"
    with pytest.raises(Refused):
        read_event({"utc_us": 1})


def test_one_that_is_only_counted_wakes_nobody_and_is_told_in_time() -> None:
    told: list[tuple[float, int]] = []
    wakings = 0

    class Counted(Events):
        def publish(self) -> None:
            nonlocal wakings
            wakings += 1
            super().publish()

    async def main() -> None:
        clock = SimClock()

        def publish(topic: Topic, payload: bytes, utc_us: int) -> None:
            del topic, utc_us
            told.append((clock.monotonic() - began, json.loads(payload)["count"]))

        here = Counted(clock, "a", BROKER, publish)
        began = clock.monotonic()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(here.run)
            for _ in range(100):
                here.tell(LINK_LOST, name="b")
                await trio.sleep(0.05)
            await trio.sleep(10)
            nursery.cancel_scope.cancel()

    simulate(0, main)
    assert [(round(at_s), count) for at_s, count in told] == [(0, 1), (10, 99)]
    assert wakings < 6


def published(events: int) -> list[dict[str, Any]]:
    """Tell of so many different things; what was published of them."""
    out: list[dict[str, Any]] = []

    async def main() -> None:
        def publish(topic: Topic, payload: bytes, utc_us: int) -> None:
            assert topic == "/$sys/events/a"
            out.append(json.loads(payload))

        here = Events(SimClock(), "a", BROKER, publish)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(here.run)
            for number in range(events):
                here.tell(LINK_LOST, name=f"n{number}")
                await trio.sleep(11.0 / 15)
            await trio.sleep(30)
            nursery.cancel_scope.cancel()
        kept = here.answer(b"", None)
        assert [row["number"] for row in kept["events"]] == [row["number"] for row in out][-1000:]

    simulate(0, main)
    return out


def test_they_are_published_in_order_with_numbers_that_have_no_holes() -> None:
    rows = published(40)
    assert [row["text"] for row in rows] == [f"link to n{n} lost" for n in range(40)]
    assert [row["number"] for row in rows] == list(range(1, 41))


def test_no_more_are_kept_than_may_be() -> None:
    assert len(published(KEPT_MAX + 100)) == KEPT_MAX + 100


def test_telling_never_fails_and_publishing_that_does_is_no_event(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        def publish(topic: Topic, payload: bytes, utc_us: int) -> None:
            here.tell(LOG_POISONED, log="from within", error="x")
            raise OSError("no")

        class Odd:
            def __str__(self) -> str:
                raise RuntimeError("cannot be told")

        here = Events(SimClock(), "a", BROKER, publish)
        here.tell(LINK_LOST, name="b")
        here.tell(LINK_LOST, name=Odd())
        here.publish()
        assert [row["kind"] for row in here.answer(b"", None)["events"]] == [
            "link.lost",
            "log.poisoned",
        ], "one that is told while others are published is told once, and not for ever"

    with caplog.at_level(logging.CRITICAL):
        simulate(0, main)


def test_what_clients_can_bring_about_does_not_fill_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        here = Events(SimClock(), "a", BROKER, lambda topic, payload, utc_us: None)
        for _ in range(1000):
            here.tell(REFUSED, client="c", why="w")
            here.tell(LINK_LOST, name="b")

    with caplog.at_level(logging.INFO, "busnode.node.events"):
        simulate(0, main)
    titles = [record.getMessage() for record in caplog.records]
    assert titles.count("client refused") == 1
    assert titles.count("link lost") == 1000, "the log tells of the rest as it always has"


@pytest.mark.parametrize(
    "payload", [b"x", b"[]", b'{"after": "1"}', b'{"limit": 0}', b'{"x": 1}', b"[" * 100_000]
)
def test_a_question_that_makes_no_sense_is_refused(payload: bytes) -> None:
    async def main() -> None:
        here = Events(SimClock(), "a", BROKER, lambda topic, payload, utc_us: None)
        with pytest.raises(Refused):
            here.answer(payload, None)

    simulate(0, main)


def test_they_come_in_pages() -> None:
    async def main() -> None:
        here = Events(SimClock(), "a", BROKER, lambda topic, payload, utc_us: None)
        for number in range(15):
            here.tell(LINK_LOST, name=number)
        first = here.answer(b'{"limit": 10}', None)
        assert ([row["number"] for row in first["events"]], first["next"]) == (
            list(range(1, 11)), 10,
        )  # fmt: skip
        rest = here.answer(b'{"after": 10}', None)
        assert ([row["number"] for row in rest["events"]], rest["next"]) == (
            list(range(11, 16)), None,
        )  # fmt: skip

    simulate(0, main)


# In a cluster -------------------------------------------------------------------------------------


async def heard(messages: Subscription) -> Event:
    return read_event(json.loads((await anext(messages)).payload))


async def hear(messages: Any, until: str, of: str) -> list[str]:
    """The kinds that a node tells of, until it tells of one."""
    heard: list[str] = []
    with trio.fail_after(60):
        async for message in messages:
            event = read_event(json.loads(message.payload))
            assert message.topic == f"/$sys/events/{event.node}"
            if event.node == of and event.kind != "copy.begun":  # what it holds for others
                heard.append(event.kind)
                if event.kind == until:
                    return heard
    raise AssertionError


@pytest.mark.parametrize("seed", range(3))
def test_a_consumer_elsewhere_hears_in_order_how_a_mirror_is_replaced(seed: int) -> None:
    @on_cluster(seed, "a", "b", "c")
    async def _(cluster: SimulatedCluster) -> None:
        origin = cluster["a"].node
        await cluster.until(lambda: origin.mirroring.in_force, "a mirror")
        (stream,) = origin.mirroring.streams.values()
        mirror = stream.link.name
        (other,) = {"b", "c"} - {mirror}
        async with (
            cluster.client("a") as publisher,
            cluster.client(other, name="watcher") as watcher,
            watcher.subscribe("/$sys/events/*") as messages,
        ):
            await publisher.publish("/t", b"x", persistent=True)
            await cluster[mirror].kill()
            assert await hear(messages, "mirror.in-force", of="a") == [
                "link.lost",
                "mirror.let-go",
                "mirror.chosen",
                "catchup.begun",
                "catchup.done",
                "mirror.in-force",
            ]
            await cluster[mirror].start()
            assert await hear(messages, "link.made", of="a") == ["link.made"]


@pytest.mark.parametrize("seed", range(2))
def test_who_leaves_says_so_and_others_call_it_no_loss(seed: int) -> None:
    @on_cluster(seed, "a", "b")
    async def _(cluster: SimulatedCluster) -> None:
        async with (
            cluster.client("a") as watcher,
            watcher.subscribe("/$sys/events/+") as messages,
        ):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(cluster["b"].stop)
                heard = []
                with trio.fail_after(30):
                    async for message in messages:
                        event = read_event(json.loads(message.payload))
                        heard.append((event.node, event.kind))
                        if event.kind == "link.ended":
                            break
            assert heard[0] == ("b", "node.leaving")
            assert ("a", "link.ended") in heard
            assert ("a", "link.lost") not in heard


def test_a_link_that_stays_missing_is_told_and_that_it_is_back() -> None:
    @on_cluster(1, "a", "b", "c")
    async def _(cluster: SimulatedCluster) -> None:
        async with (
            cluster.client("c") as watcher,
            watcher.subscribe("/$sys/events/c") as messages,
        ):
            cluster.network.partition("a", "b")
            assert "link.missing" in await hear(messages, "link.missing", of="c")
            cluster.network.heal("a", "b")
            assert "link.healed" in await hear(messages, "link.healed", of="c")


def test_that_a_consumer_was_told_of_a_gap_is_an_event() -> None:
    @on_cluster(0, "a", "b", mirrors=0)
    async def _(cluster: SimulatedCluster) -> None:
        store = MemoryCursorStore()
        async with (
            cluster.client("a") as bus,
            bus.subscribe("/t", cursors=store, start="earliest") as messages,
        ):
            await bus.publish("/t", b"x", persistent=True)
            await anext(messages)
            messages.done()
        broker = cluster["a"].node.broker_id.hex()
        await cluster["a"].kill()
        async with (
            cluster.client("b", name="billing") as bus,
            bus.subscribe("/$sys/events/b") as events,
            bus.subscribe("/t", cursors=store),
        ):
            with trio.fail_after(30):
                while (event := await heard(events)).kind != "consumer.gap":
                    pass
            assert event.facts["log"] == f"{broker[:8]}:/t"
            assert str(event.facts["client"]).endswith("(billing)")
            assert event.facts["first_no"] == 2


async def test_a_client_that_is_turned_away_is_an_event(tmp_path: Path) -> None:
    async with real_bus(tmp_path, clients_max=1) as bus, bus.client():
        async with bus.stranger() as one_too_many:
            await one_too_many.ended()
        kept = bus.node.events.answer(b"", None)["events"]
        (refused,) = (row for row in kept if row["kind"] == "client.refused")
        assert "this node takes no more" in refused["text"]


def kinds_of(node: RunningNode) -> list[str]:
    return [row["kind"] for row in node.events.answer(b"", None)["events"]]


def test_a_disk_that_fails_is_told_with_what_follows_from_it() -> None:
    machine = SimulatedMachine(3)

    async def main() -> None:
        async with machine.bus() as bus, bus.client() as client:
            await client.publish("/a")
            await client.acked(1)
            before = bus.broker_id
            machine.disk.arm(DiskFault.SYNC_EIO, lambda path: path.endswith(".seg"))
            await client.publish("/a")
            await client.refused()
            await bus.settled(lambda: bus.broker_id != before)
            rows = {row["kind"]: row for row in bus.node.events.answer(b"", None)["events"]}
            assert [kind for kind in rows if kind != "node.ready"] == [
                "log.poisoned", "incarnation.begun",
            ]  # fmt: skip
            assert rows["log.poisoned"]["facts"]["log"] == f"{before.hex()[:8]}:/a"
            begun = rows["incarnation.begun"]
            assert begun["facts"]["broker_id"] == bus.broker_id.hex()
            assert "takes no more" in begun["facts"]["why"]
            assert begun["broker_id"] == before.hex(), "the numbers go on"

    machine.run(main)


async def test_a_client_that_breaks_the_protocol_is_told_and_who_is_slow_is_told_once(
    tmp_path: Path,
) -> None:
    async with real_bus(tmp_path) as bus:
        async with bus.client() as rude:
            await rude.send(b"\xff" * 100)
            await rude.ended()
        assert "client.refused" in kinds_of(bus.node)
        async with bus.client(1) as slow, bus.client(2) as out:
            await slow.subscribe("/a", credit_bytes=0)
            for _ in range(100):
                await out.publish("/a", [bytes(500_000)], LIVE)
            await out.barrier()
            await bus.settled(lambda: "consumer.slow" in kinds_of(bus.node))
            assert kinds_of(bus.node).count("consumer.slow") == 1


def test_a_consumer_of_another_nodes_log_that_is_too_slow_is_moved_back_and_that_is_told() -> None:
    @on_cluster(0, "a", "b", mirrors=0)
    async def _(cluster: SimulatedCluster) -> None:
        async with (
            cluster.client("a") as out,
            cluster.client("b", name="idler") as consumer,
            consumer.subscribe("/t") as messages,
        ):
            for _ in range(60):
                await out.publish("/t", bytes(1_000_000), persistent=True)
            await cluster.until(lambda: "consumer.slow" in kinds_of(cluster["b"].node), "an event")
            rows = cluster["b"].node.events.answer(b"", None)["events"]
            (slow,) = (row for row in rows if row["kind"] == "consumer.slow")
            assert slow["text"].endswith("(idler) is too slow for /t: moved back to replay")
            with trio.fail_after(60):
                for _ in range(60):
                    await anext(messages)  # nothing is lost by it
