"""Requests over the wire: who is asked, who answers, what happens when somebody dies."""

import json
from pathlib import Path

import pytest
import trio

from busnode.node import outgoing
from busnode.node.requests import END
from busnode.wire import limits
from busnode.wire.control import (
    Ask,
    Bid,
    Goodbye,
    Provide,
    Reply,
    Request,
    Unprovide,
    encode_control,
)
from busnode.wire.frames import FrameType

from .raw_client import LoopWatch, RawClient, SimulatedMachine, real_bus
from .test_session import unharmed

TOPIC = "/dtc/read"


def request(
    number: int = 1,
    *,
    payload: bytes = b"42",
    many: bool = False,
    timeout_s: float = 5.0,
    headers: dict[str, str] | None = None,
    topic: str = TOPIC,
) -> Request:
    return Request(number, 0, topic, headers or {}, payload, many, timeout_s)


async def provide(client: RawClient, topic: str = TOPIC, number: int = 1) -> None:
    await client.send(Provide(number, topic))
    assert await client.barrier() == []


async def accept(client: RawClient) -> Request:
    """Say yes to the next ASK and take the request."""
    ask = await client.expect(Ask)
    await client.send(Bid(ask.request, True))
    return await client.expect(Request, lambda message: message.request == ask.request)


async def answer(client: RawClient, payload: bytes = b"answer") -> None:
    taken = await accept(client)
    await client.send(Reply(taken.request, None, {"from": "provider"}, payload, True))


async def test_a_request_is_asked_accepted_and_answered(tmp_path: Path) -> None:
    async with real_bus(tmp_path) as bus, bus.client(1) as asker, bus.client(2) as provider:
        await provide(provider, "/dtc/+", number=9)
        await asker.send(request(33, headers={"trace": "1f"}))
        ask = await provider.expect(Ask)
        assert (ask.provider, ask.topic, ask.headers) == (9, TOPIC, {"trace": "1f"})
        await provider.send(Bid(ask.request, True))
        sent = await provider.expect(Request)
        assert (sent.request, sent.provider, sent.topic) == (ask.request, 9, TOPIC)
        assert (sent.headers, sent.payload, sent.many) == ({"trace": "1f"}, b"42", False)
        assert 4 < sent.timeout_s <= 5
        await provider.send(Reply(sent.request, None, {"k": "v"}, b"answer", True))
        assert await asker.expect(Reply) == Reply(33, None, {"k": "v"}, b"answer", True)
        assert len(bus.node.bidding.requests) == 0


async def test_an_error_of_the_provider_reaches_the_requester(tmp_path: Path) -> None:
    async with real_bus(tmp_path) as bus, bus.client(1) as asker, bus.client(2) as provider:
        await provide(provider)
        await asker.send(request())
        taken = await accept(provider)
        await provider.send(Reply(taken.request, "REQUEST_FAILED", {}, b"no such code", True))
        reply = await asker.expect(Reply)
        assert (reply.code, reply.payload, reply.last) == ("REQUEST_FAILED", b"no such code", True)


async def test_without_a_provider_the_answer_comes_at_once(tmp_path: Path) -> None:
    async with real_bus(tmp_path) as bus, bus.client(1) as asker, bus.client(2) as provider:
        await asker.send(request(1), request(2, many=True))
        assert (await asker.expect(Reply)).code == "NO_PROVIDER"
        assert (await asker.expect(Reply)).code == END
        await provide(provider)
        await provider.send(Unprovide(1), Unprovide(77))
        await provider.barrier()
        await asker.send(request(3))
        assert (await asker.expect(Reply)).code == "NO_PROVIDER"


async def test_many_replies_come_as_they_are_and_the_last_is_marked(tmp_path: Path) -> None:
    async with (
        real_bus(tmp_path) as bus,
        bus.client(1) as asker,
        bus.client(2) as one,
        bus.client(3) as other,
        bus.client(4) as unwilling,
    ):
        for client in (one, other, unwilling):
            await provide(client)
        await asker.send(request(5, many=True))
        await answer(one, b"one")
        assert await asker.expect(Reply) == Reply(5, None, {"from": "provider"}, b"one", False)
        ask = await unwilling.expect(Ask)
        await unwilling.send(Bid(ask.request, False))
        await unwilling.barrier()
        await answer(other, b"other")
        assert await asker.expect(Reply) == Reply(5, None, {"from": "provider"}, b"other", True)


async def test_when_a_provider_dies_in_the_middle_the_next_one_answers(tmp_path: Path) -> None:
    async with real_bus(tmp_path) as bus, bus.client(1) as asker, bus.client(3) as second:
        async with bus.client(2) as first:
            await provide(first)
            await provide(second)
            await asker.send(request(5))
            await accept(first)
            ask = await second.expect(Ask)
            await second.send(Bid(ask.request, True))
            assert await second.barrier() == []
        taken = await second.expect(Request)
        await second.send(Reply(taken.request, None, {}, b"second", True))
        assert (await asker.expect(Reply)).payload == b"second"


async def test_when_the_only_provider_dies_the_requester_hears_of_it(tmp_path: Path) -> None:
    async with real_bus(tmp_path) as bus, bus.client(1) as asker:
        async with bus.client(2) as provider:
            await provide(provider)
            await asker.send(request(5), request(6, many=True))
            await accept(provider)
        replies = [await asker.expect(Reply) for _ in range(2)]
        assert {reply.request: reply.code for reply in replies} == {5: "NO_PROVIDER", 6: END}


def test_a_silent_provider_gives_way_and_the_deadline_ends_it() -> None:
    machine = SimulatedMachine(1)

    async def main() -> None:
        async with (
            machine.bus() as bus,
            bus.client(1) as asker,
            bus.client(2) as silent,
            bus.client(3) as second,
        ):
            await provide(silent)
            await asker.send(request(1, timeout_s=4.0))
            began = trio.current_time()
            await accept(silent)
            assert (await asker.expect(Reply)).code == "TIMED_OUT"
            assert 3.9 < trio.current_time() - began < 4.1

            await provide(second)
            await asker.send(request(2, timeout_s=4.0))
            began = trio.current_time()
            await accept(silent)
            await answer(second)
            assert (await asker.expect(Reply)).payload == b"answer"
            assert 1.9 < trio.current_time() - began < 2.1

    machine.run(main)


def test_deadlines_are_kept_whatever_comes_after() -> None:
    """Many with deadlines of their own, the longest first: each ends at its time."""
    machine = SimulatedMachine(2)

    async def main() -> None:
        async with machine.bus() as bus, bus.client(1) as asker, bus.client(2) as silent:
            await provide(silent)
            began = trio.current_time()
            for number in range(9, 0, -1):
                await asker.send(request(number, timeout_s=number * 0.7))
            for number in range(1, 10):
                reply = await asker.expect(Reply)
                assert (reply.request, reply.code) == (number, "TIMED_OUT")
                assert trio.current_time() - began == pytest.approx(number * 0.7, abs=0.05)
            steps = 0

            class Steps(trio.abc.Instrument):
                def before_task_step(self, task: trio.lowlevel.Task) -> None:
                    nonlocal steps
                    steps += task.name.endswith("Bidding.run")

            trio.lowlevel.add_instrument(Steps())
            await trio.sleep(1)
            assert steps < 3, "it spins although there is nothing to do"

    machine.run(main)


async def test_a_requester_that_goes_leaves_nothing_behind(tmp_path: Path) -> None:
    async with real_bus(tmp_path) as bus, bus.client(2) as provider:
        await provide(provider)
        async with bus.client(1) as asker:
            await asker.send(request(), request(2, many=True))
            taken = await accept(provider)
        await bus.settled(lambda: len(bus.node.sessions) == 1)
        assert len(bus.node.bidding.requests) == 0
        await provider.send(Reply(taken.request, None, {}, b"late", True), Bid(2, True))
        await provider.expect(Ask)
        assert await provider.barrier() == []


async def test_two_providers_of_one_client_answer_each_for_itself(tmp_path: Path) -> None:
    async with real_bus(tmp_path) as bus, bus.client(1) as asker, bus.client(2) as client:
        await provide(client, "/dtc/*", number=1)
        await provide(client, TOPIC, number=2)
        await asker.send(request(many=True))
        for _ in range(2):
            taken = await accept(client)
            await client.send(Reply(taken.request, None, {}, b"%d" % taken.provider, True))
        replies = [await asker.expect(Reply) for _ in range(2)]
        assert sorted(reply.payload for reply in replies) == [b"1", b"2"]
        assert [reply.last for reply in replies] == [False, True]


async def test_bids_and_replies_that_nobody_asked_for_do_nothing(tmp_path: Path) -> None:
    async with (
        real_bus(tmp_path) as bus,
        unharmed(bus),
        bus.client(1) as asker,
        bus.client(2) as provider,
        bus.client(3) as liar,
    ):
        await provide(provider)
        await provide(liar, "/another")
        await asker.send(request(5))
        ask = await provider.expect(Ask)
        await liar.send(Bid(ask.request, True), Reply(ask.request, None, {}, b"a lie", True))
        assert await liar.barrier() == []
        await provider.send(Bid(ask.request, True))
        taken = await provider.expect(Request)
        await liar.send(Reply(ask.request, None, {}, b"a lie", True))
        await liar.barrier()
        await provider.send(Reply(taken.request, None, {}, b"the truth", True))
        assert (await asker.expect(Reply)).payload == b"the truth"
        assert await asker.barrier() == []


# Sizes --------------------------------------------------------------------------------------------


async def test_the_largest_request_that_fits_is_carried_and_a_larger_one_harms_nobody(
    tmp_path: Path,
) -> None:
    """On its way it gets other numbers, which may be longer than its own."""
    async with real_bus(tmp_path) as bus, bus.client(1) as asker, bus.client(2) as provider:
        await provide(provider, number=2**63)
        overhead = len(encode_control(request(payload=b""))) + 3  # a longer payload's own length
        for spare in (0, 1, 8, 15):
            payload = bytes(limits.REQUEST_BYTES_MAX - overhead - spare)
            await asker.send(request(spare, payload=payload))
            error = await asker.refused()
            assert (error.code, error.refused) == ("LIMIT_REACHED", FrameType.REQUEST)
            assert error.about == spare
        assert await provider.barrier() == [], "it is not even asked"
        await asker.send(request(payload=bytes(limits.REQUEST_BYTES_MAX - overhead - 16)))
        await answer(provider, b"taken")
        assert (await asker.expect(Reply)).payload == b"taken"


async def test_headers_that_fit_no_ask_are_refused(tmp_path: Path) -> None:
    async with real_bus(tmp_path) as bus, bus.client(1) as asker, bus.client(2) as provider:
        await provide(provider)
        await asker.send(request(8, headers={f"{n:02}": "x" * 2000 for n in range(60)}))
        error = await asker.refused()
        assert (error.code, error.about) == ("LIMIT_REACHED", 8)
        await asker.send(request(9, headers={f"{n:02}": "x" * 200 for n in range(60)}))
        await answer(provider)
        assert (await asker.expect(Reply)).request == 9


async def test_a_reply_that_does_not_fit_is_an_error_and_others_still_come(tmp_path: Path) -> None:
    async with (
        real_bus(tmp_path) as bus,
        bus.client(1) as asker,
        bus.client(2) as one,
        bus.client(3) as other,
    ):
        await provide(one)
        await provide(other)
        overhead = len(encode_control(Reply(1, None, {}, b"", True))) + 4
        await asker.send(request(2**63, many=True))
        taken = await accept(one)
        payload = bytes(limits.REQUEST_BYTES_MAX - overhead)
        await one.send(Reply(taken.request, None, {}, payload, True))
        reply = await asker.expect(Reply)
        assert (reply.code, reply.last) == ("FRAME_TOO_LARGE", False)
        await answer(other)
        reply = await asker.expect(Reply)
        assert (reply.payload, reply.last) == (b"answer", True)


def test_a_provider_that_reads_slowly_is_passed_over_and_not_let_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its clients may ask faster than it reads: that is no reason to end its session."""
    monkeypatch.setattr(outgoing, "CONTROL_BYTES_MAX", 100_000)
    machine = SimulatedMachine(3)

    async def main() -> None:
        async with machine.bus() as bus, bus.client(1) as asker, bus.client(2) as provider:
            await provide(provider)
            await asker.send(*(request(n, headers={"k": "x" * 1000}) for n in range(300)))
            replies = [await asker.expect(Reply) for _ in range(100)]
            assert {reply.code for reply in replies} == {"NO_PROVIDER"}
            await answer(provider)
            reply = await asker.expect(Reply, lambda reply: reply.code is None)
            assert reply.payload == b"answer"
            assert len(bus.node.sessions) == 2

    machine.run(main)


# The system's own ---------------------------------------------------------------------------------


async def test_the_system_answers_its_own_topics(tmp_path: Path) -> None:
    async with real_bus(tmp_path) as bus, bus.client() as client:
        await client.send(
            request(1, topic="/$sys/status", payload=b""), request(2, topic="/$sys/nothing")
        )
        reply = await client.expect(Reply)
        assert (reply.request, reply.code, reply.last) == (1, None, True)
        assert json.loads(reply.payload)["broker_id"] == bus.broker_id.hex()
        reply = await client.expect(Reply)
        assert (reply.request, reply.code) == (2, "NO_PROVIDER")


async def test_a_thousand_requests_under_way_are_not_gone_through_for_each(tmp_path: Path) -> None:
    async with real_bus(tmp_path) as bus, bus.client(1) as asker, bus.client(2) as provider:
        await provide(provider)
        with LoopWatch.over("5,000 requests under way"):
            await asker.send(*(request(n, timeout_s=30.0) for n in range(5000)))
            asks = [await provider.expect(Ask) for _ in range(5000)]
            await provider.send(*(Bid(ask.request, True) for ask in asks))
            await provider.until(lambda e: len(e) == 5000)
            await provider.send(*(Reply(ask.request, None, {}, b"", True) for ask in asks))
            await asker.until(lambda e: len(e) == 5000)
        assert len(bus.node.bidding.requests) == 0


async def test_a_client_that_says_goodbye_provides_no_more(tmp_path: Path) -> None:
    async with real_bus(tmp_path) as bus, bus.client(1) as asker, bus.client(2) as provider:
        await provide(provider)
        await provider.send(Goodbye("done", []))
        await provider.ended()
        await bus.settled(lambda: len(bus.node.sessions) == 1)
        await asker.send(request())
        assert (await asker.expect(Reply)).code == "NO_PROVIDER"
