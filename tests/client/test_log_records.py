"""What tools use of the client: logs as they lie, and batches under numbers of the publisher's."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import busnode
from busnode.client.log_records import LogRecords, Records
from busnode.segments.records import LogKey, Scanned, scan
from busnode.testing import BusCluster
from busnode.wire.batches import Columns
from busnode.wire.ids import LogId


@pytest.fixture
def node(tmp_path: Path) -> Iterator[BusCluster]:
    with BusCluster(tmp_path, nodes=1) as cluster:
        yield cluster


async def take(records: LogRecords, last_no: int) -> list[Records]:
    found: list[Records] = []
    while not found or found[-1].last_no < last_no:
        for each in await records.next_records():
            assert isinstance(each, Records)
            found.append(each)
    return found


async def test_records_come_byte_for_byte_and_nothing_is_passed_over(node: BusCluster) -> None:
    async with busnode.connect(node.url) as bus:
        for scope in ("global", "remote", "local"):
            async with bus.publisher("/a", persistent=True, scope=scope) as out:
                await out.send_many([b"%d" % number for number in range(100)])
        async with bus.log_records("/a", busnode.Position()) as records:
            found = await take(records, 300)
    assert found[0].first_no == 1
    for each in found:
        key = LogKey.of(LogId(*each.log))
        view = memoryview(each.data)
        good = scan(view, len(view), len(view), key, Scanned(0, each.first_no, 0))
        assert good[:2] == (len(view), each.last_no + 1)


async def test_what_is_published_again_under_its_number_is_dropped(node: BusCluster) -> None:
    batches = [Columns([b"%d" % number] * 3, None, None, [{"k": "v"}] * 3) for number in range(5)]
    receipts: list[list[int]] = []
    for _ in range(2):
        async with (
            busnode.connect(node.url, producer_id=2**63 + 1) as bus,
            bus.publisher("/a", persistent=True) as out,
        ):
            for number, columns in enumerate(batches):
                await out.send_numbered(columns, 1000 * number + 7)
            receipts.append([receipt.msg_no for receipt in await out.flush()])
    assert receipts == [[*range(1, 16)]] * 2
    async with (
        busnode.connect(node.url) as bus,
        bus.log_records("/a", busnode.Position()) as records,
    ):
        await bus.publish("/a", b"last", persistent=True)
        found = await take(records, 16)
    assert found[-1].last_no == 16


async def test_numbered_batches_take_no_other_messages(node: BusCluster) -> None:
    async with (
        busnode.connect(node.url, producer_id=5) as bus,
        bus.publisher("/a", persistent=True) as out,
    ):
        await out.send(b"before")
        await out.send_numbered(Columns([b"x", b"y"]), 1_000_000)
        await out.send(b"after")
        await out.flush()
        async with bus.subscribe("/a", start="earliest") as messages:
            sizes: list[int] = []
            async for batch in messages.batches():
                sizes.append(len(batch))
                if sum(sizes) == 4:
                    break
    assert sizes == [1, 2, 1]
