"""What is known of the tasks of others is written down and read again."""

import pytest

from busnode.node.own_messages import PERSISTENT, OwnMessages
from busnode.node.task_facts import FACTS, RUNS_MAX, Fact, Kind, encode_fact, read_facts
from busnode.tasks.ranges import Numbers
from busnode.wire.batches import Columns
from busnode.wire.ids import BrokerId, LogId

from .raw_client import SimulatedMachine

ORIGIN = BrokerId(b"o" * 16)


def numbers_of(*runs: tuple[int, int]) -> Numbers:
    numbers = Numbers()
    for first, last in runs:
        numbers.add_run(first, last)
    return numbers


def read_back(payloads: list[bytes]) -> list[Fact]:
    machine = SimulatedMachine()
    found: list[Fact] = []

    async def main() -> None:
        async with machine.bus() as bus:
            node = bus.node
            own = OwnMessages(node.publishing)
            for payload in payloads:
                own.publish(FACTS, Columns([payload]), 0, PERSISTENT)
            await bus.settled(lambda: not node.store.dirty())
            log = node.store.get(LogId(node.broker_id, FACTS))
            assert log is not None
            found.extend(read_facts(log))

    machine.run(main)
    return found


@pytest.mark.parametrize("kind", ["finished", "elsewhere"])
def test_facts_are_read_as_they_were_written(kind: Kind) -> None:
    fact = Fact(kind, ORIGIN, "emails", numbers_of((1, 7), (9, 9), (1 << 40, (1 << 40) + 3)))
    (found,) = read_back(encode_fact(fact))
    assert (found.kind, found.origin, found.queue) == (kind, ORIGIN, "emails")
    assert list(found.numbers.runs()) == list(fact.numbers.runs())


def test_a_long_fact_is_several_and_an_empty_one_none() -> None:
    many = numbers_of(*((n, n) for n in range(1, 2 * RUNS_MAX + 3, 2)))
    payloads = encode_fact(Fact("finished", ORIGIN, "emails", many))
    assert len(payloads) == 2
    whole = Numbers()
    for fact in read_back(payloads):
        whole.add_all(fact.numbers)
    assert list(whole.runs()) == list(many.runs())
    assert encode_fact(Fact("finished", ORIGIN, "emails", Numbers())) == []


def test_what_is_no_fact_is_passed_over() -> None:
    good = encode_fact(Fact("finished", ORIGIN, "emails", numbers_of((1, 1))))
    found = read_back([b"\xc1", b"\x94\x01\x02\x03\x04", *good])
    assert [fact.queue for fact in found] == ["emails"]
