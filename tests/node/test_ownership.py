"""Which incarnations are a node's own: kept, rebuilt when lost, and never a reason to lose data."""

import json

import pytest
import trio

from busnode.node.ownership import FILE, SECOND_FILE, Ownership
from busnode.segments.file_store import FileStore
from busnode.segments.memory_store import MemoryStore
from busnode.segments.store import Store
from busnode.testing.sim import SimDisk
from busnode.testing.sim.faults import DiskFault
from busnode.wire.errors import StorageFailed
from busnode.wire.ids import BrokerId, LogId, Topic
from busnode.world.files import read_whole

from ..segments.samples import StoppedClock, read_ranges, write_numbered
from .simulated_cluster import SimulatedCluster, on_cluster
from .test_mirroring import mirrored

DIRECTORY = "/data"
PATH = f"{DIRECTORY}/{FILE}"
PATHS = [PATH, f"{DIRECTORY}/{SECOND_FILE}"]
OWN, OLDER, FOREIGN = (BrokerId(bytes([n]) * 16) for n in (1, 2, 3))

WRITING = pytest.mark.parametrize(
    "fault",
    [
        DiskFault.ENTRY_ENOSPC, DiskFault.ENTRY_EIO, DiskFault.APPEND_ENOSPC, DiskFault.APPEND_EIO,
        DiskFault.SYNC_EIO,
    ],
)  # fmt: skip


def is_the_file(path: str) -> bool:
    return any(path.startswith(each) for each in PATHS)


@pytest.fixture
def disk() -> SimDisk:
    disk = SimDisk()
    disk.make_directory(DIRECTORY)
    disk.sync_directory("/")
    return disk


@pytest.fixture
def store(disk: SimDisk) -> Store:
    """With logs of three incarnations."""
    store = MemoryStore(disk, StoppedClock())
    for broker_id in (OWN, OLDER, FOREIGN):
        write_numbered(store.create(LogId(broker_id, Topic("/t"))), 3)
    return store


def kept(disk: SimDisk) -> dict[str, list[str]]:
    return json.loads(read_whole(disk, PATH, 1 << 20))  # type: ignore[no-any-return]


def overwrite(disk: SimDisk, data: bytes, paths: list[str] = PATHS) -> None:
    for path in paths:
        if disk.exists(path):
            disk.remove(path)
        file = disk.append_to(path)
        file.append(data)
        file.sync()
        file.close()


def begun(disk: SimDisk, store: Store) -> Ownership:
    """Of a node that has had two incarnations and holds a copy of a third."""
    ownership = Ownership(disk, DIRECTORY, MemoryStore(disk, StoppedClock()))
    ownership.add(OLDER)
    ownership = Ownership(disk, DIRECTORY, store)
    ownership.add(OWN)
    return ownership


def test_own_incarnations_survive_a_restart_and_copies_stay_copies(
    disk: SimDisk, store: Store
) -> None:
    begun(disk, store)
    disk.power_loss()
    again = Ownership(disk, DIRECTORY, store)
    assert OWN in again
    assert OLDER in again
    assert FOREIGN not in again


def test_an_own_incarnation_without_a_log_is_an_own_one(disk: SimDisk, store: Store) -> None:
    begun(disk, store)
    assert OWN in Ownership(disk, DIRECTORY, MemoryStore(disk, StoppedClock()))


def test_mirrors_are_kept_over_a_restart_and_a_new_incarnation(disk: SimDisk, store: Store) -> None:
    begun(disk, store).mirrored_by(["b", "c"])
    disk.power_loss()
    again = Ownership(disk, DIRECTORY, store)
    assert again.mirrors == ["b", "c"]
    again.add(FOREIGN)
    disk.power_loss()
    assert kept(disk)["mirrors"] == ["b", "c"]
    assert Ownership(disk, DIRECTORY, store).mirrors == ["b", "c"]


def test_the_same_mirrors_are_not_written_again(disk: SimDisk, store: Store) -> None:
    ownership = begun(disk, store)
    ownership.mirrored_by(["b"])
    disk.arm(DiskFault.APPEND_EIO, is_the_file)
    ownership.mirrored_by(["b"])
    with pytest.raises(StorageFailed):
        ownership.mirrored_by(["c"])


def test_where_the_file_is_missing_all_logs_are_own_ones(disk: SimDisk, store: Store) -> None:
    begun(disk, store)
    for path in PATHS:
        disk.remove(path)
    again = Ownership(disk, DIRECTORY, store)
    assert all(each in again for each in (OWN, OLDER, FOREIGN))
    assert again.mirrors == []


@pytest.mark.parametrize(
    "damage",
    [
        b"", b"{", b"null", b"[]", b"17", b'"own"', b"{}", b'{"own": null}', b'{"own": 3}',
        b'{"own": [3]}', b'{"own": ["zz"]}', b'{"own": ["00"]}', b'{"own": [[]]}', b"\xff\xfe\x00",
        b"[" * 100_000, b'{"own": {"a": 1}}', b"\0" * 200,
    ],
)  # fmt: skip
def test_where_the_file_is_damaged_all_logs_are_own_ones(
    disk: SimDisk, store: Store, damage: bytes
) -> None:
    overwrite(disk, damage)
    again = Ownership(disk, DIRECTORY, store)
    assert all(each in again for each in (OWN, OLDER, FOREIGN))
    again.add(BrokerId(bytes(16)))
    assert len(kept(disk)["own"]) == 4, "what was made of it is kept"


def test_where_the_file_is_cut_anywhere_nothing_own_is_taken_for_a_copy(
    disk: SimDisk, store: Store
) -> None:
    begun(disk, store).mirrored_by(["b"])
    whole = read_whole(disk, PATH, 1 << 20)
    for end in range(len(whole)):
        overwrite(disk, whole[:end])
        again = Ownership(disk, DIRECTORY, store)
        assert OWN in again, end
        assert OLDER in again, end


@pytest.mark.parametrize("path", PATHS)
def test_one_of_its_two_files_suffices_whatever_has_become_of_the_other(
    disk: SimDisk, store: Store, path: str
) -> None:
    begun(disk, store).mirrored_by(["b"])

    def check() -> None:
        again = Ownership(disk, DIRECTORY, store)
        assert [each in again for each in (OWN, OLDER, FOREIGN)] == [True, True, False]
        assert again.mirrors == ["b"]

    whole = read_whole(disk, path, 1 << 20)
    for place in range(len(whole)):
        for bit in range(8):
            flipped = bytearray(whole)
            flipped[place] ^= 1 << bit
            overwrite(disk, bytes(flipped), [path])
            check()
        overwrite(disk, whole[:place], [path])
        check()
    disk.remove(path)
    check()
    overwrite(disk, whole, [path])
    disk.arm(DiskFault.READ_EIO, lambda each: each == path)
    check()


def test_of_two_files_the_one_that_was_written_last_counts(disk: SimDisk, store: Store) -> None:
    ownership = begun(disk, store)
    for place in (0, 1):
        disk.arm(DiskFault.ENTRY_EIO, lambda each: each.startswith(PATH))
        with pytest.raises(StorageFailed):
            ownership.mirrored_by([f"b{place}"])
        assert Ownership(disk, DIRECTORY, store).mirrors == [f"b{place}"]


def test_a_file_that_cannot_be_read_is_not_taken_for_a_damaged_one(
    disk: SimDisk, store: Store
) -> None:
    """What it says is true and may be readable again: to begin anew would make copies own ones."""
    begun(disk, store)
    disk.arm(DiskFault.READ_EIO, is_the_file, count=2)
    with pytest.raises(StorageFailed):
        Ownership(disk, DIRECTORY, store)
    assert FOREIGN not in Ownership(disk, DIRECTORY, store)


@WRITING
def test_what_could_not_be_kept_is_an_error_and_not_remembered_as_kept(
    disk: SimDisk, store: Store, fault: DiskFault
) -> None:
    ownership = begun(disk, store)
    disk.arm(fault, is_the_file)
    with pytest.raises(StorageFailed):
        ownership.mirrored_by(["b"])
    ownership.mirrored_by(["b"])
    assert kept(disk)["mirrors"] == ["b"], "it was written the second time"
    disk.arm(fault, is_the_file)
    with pytest.raises(StorageFailed):
        ownership.add(FOREIGN)
    assert FOREIGN not in ownership


def test_when_the_name_cannot_be_made_durable_it_is_an_error(disk: SimDisk, store: Store) -> None:
    ownership = begun(disk, store)
    disk.arm(DiskFault.SYNC_EIO, lambda path: path == DIRECTORY)
    with pytest.raises(StorageFailed):
        ownership.mirrored_by(["b"])


def test_a_store_in_memory_keeps_nothing(disk: SimDisk, store: Store) -> None:
    ownership = Ownership(None, DIRECTORY, store)
    ownership.add(OWN)
    ownership.mirrored_by(["b"])
    assert not disk.exists(PATH)


# In a node ----------------------------------------------------------------------------------------


async def in_force(cluster: SimulatedCluster, name: str) -> None:
    await cluster.until(lambda: cluster[name].node.mirroring.in_force, "a mirror")


def held(disk: SimDisk) -> dict[LogId, int]:
    """What is readable on a disk: how many records of each log."""
    store = FileStore(disk, StoppedClock(), DIRECTORY)
    try:
        return {log.log_id: len(read_ranges(log).records) for log in store.logs()}
    finally:
        store.close()


@pytest.mark.parametrize("damage", [None, b"", b'{"own": ["'])
def test_a_node_without_its_file_serves_all_that_it_has(damage: bytes | None) -> None:
    @on_cluster(0, "a", "b")
    async def _(cluster: SimulatedCluster) -> None:
        await in_force(cluster, "a")
        async with cluster.client("a", name="publisher") as publisher:
            for number in range(5):
                receipt = await publisher.publish("/t", b"%d" % number, persistent=True)
                assert receipt.level == "mirrored"
        for name in "ab":
            await cluster[name].kill()
        before = {name: held(cluster[name].disk) for name in "ab"}
        disk = cluster["b"].disk
        disk.remove(PATH)
        if damage is not None:
            overwrite(disk, damage)
        await cluster["b"].start()
        async with (
            cluster.client("b", name="consumer") as consumer,
            consumer.subscribe("/t", start="earliest", on_gap="raise") as messages,
        ):
            assert [int((await anext(messages)).payload) for _ in range(5)] == list(range(5))
        await cluster["a"].start()
        await cluster.meshed()
        for name in "ab":
            await cluster[name].kill()
            after = held(cluster[name].disk)
            assert all(after[log_id] >= count for log_id, count in before[name].items())


@WRITING
def test_a_node_that_cannot_keep_its_incarnation_does_not_start(fault: DiskFault) -> None:
    @on_cluster(0, "a")
    async def _(cluster: SimulatedCluster) -> None:
        await cluster["a"].kill()
        cluster["a"].disk.arm(fault, is_the_file)
        with pytest.raises((StorageFailed, BaseExceptionGroup)) as raised:
            await cluster["a"].start()
        error = raised.value
        while isinstance(error, BaseExceptionGroup):
            (error,) = error.exceptions
        assert isinstance(error, StorageFailed)
        cluster["a"].disk.kill()
        await cluster["a"].start()


@WRITING
def test_mirrors_that_cannot_be_kept_are_not_in_force_and_harm_nobody(fault: DiskFault) -> None:
    @on_cluster(0, "a")
    async def _(cluster: SimulatedCluster) -> None:
        disk = cluster["a"].disk
        disk.arm(fault, is_the_file, count=8)
        await cluster.add("b")
        await cluster.meshed()
        async with cluster.client("a", name="publisher") as publisher:
            receipt = await publisher.publish("/t", b"0", persistent=True)
            assert receipt.level == "local", "who the mirror is was not kept"
            await in_force(cluster, "a")
            receipt = await publisher.publish("/t", b"1", persistent=True)
            assert receipt.level == "mirrored"
            assert kept(disk)["mirrors"] == ["b"]


@WRITING
def test_under_an_incarnation_that_could_not_be_kept_nothing_is_acked(fault: DiskFault) -> None:
    @on_cluster(0, "a")
    async def _(cluster: SimulatedCluster) -> None:
        disk, node = cluster["a"].disk, cluster["a"].node
        async with cluster.client("a", name="publisher") as publisher:
            await publisher.publish("/t", b"0", persistent=True)
            first = node.broker_id
            disk.arm(DiskFault.APPEND_EIO, lambda path: path.endswith(".seg"))
            disk.arm(fault, is_the_file, count=2)
            began = trio.current_time()
            await publisher.publish("/t", b"1", persistent=True)
            assert trio.current_time() - began >= 1.0, "as long as a disk that failed is let alone"
            assert node.broker_id != first
            assert kept(disk)["own"][-1] == node.broker_id.hex()
            await cluster.add("b")
            await in_force(cluster, "a")
            receipt = await publisher.publish("/t", b"2", persistent=True)
            assert receipt.level == "mirrored"
        await cluster["a"].kill()
        await cluster["a"].start()
        assert first in cluster["a"].node.ownership
        assert node.broker_id in cluster["a"].node.ownership


@pytest.mark.parametrize("seed", range(3))
def test_a_node_that_knows_nothing_of_itself_reads_on_what_another_one_writes(seed: int) -> None:
    """Its consumers took a copy for a log of its own, which does not grow."""

    @on_cluster(seed, "a", "b", "c")
    async def _(cluster: SimulatedCluster) -> None:
        await mirrored(cluster, "b")
        [stream] = cluster["b"].node.mirroring.streams.values()
        old = stream.link.name
        other = "c" if old == "a" else "a"
        async with cluster.client("b", name="p") as producer:
            for number in range(10):
                await producer.publish("/work/1", b"%d" % number, persistent=True)
            await cluster[old].kill()
            await mirrored(cluster, "b")  # at the other one, from now on
            for path in PATHS:
                cluster[old].disk.flip_bit(path, 20, 3)
            cluster.network.partition(old, "b")
            cluster.network.partition(old, other)
            await cluster[old].start()
            got: list[bytes] = []
            async with (
                cluster.client(old, name="w") as consumer,
                consumer.subscribe("/work/*", start="earliest") as messages,
                trio.open_nursery() as nursery,
            ):

                async def consume() -> None:
                    async for message in messages:
                        got.append(message.payload)

                nursery.start_soon(consume)
                await cluster.until(lambda: len(got) == 10, "what is here")
                cluster.network.heal(old, "b")
                cluster.network.heal(old, other)
                await cluster.meshed()
                for number in range(10, 20):
                    await producer.publish("/work/1", b"%d" % number, persistent=True)
                await cluster.until(lambda: len(got) == 20, "what is written now")
                nursery.cancel_scope.cancel()
            assert got == [b"%d" % number for number in range(20)]
