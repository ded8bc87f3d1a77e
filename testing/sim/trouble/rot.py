"""Bits that flip at rest. All kinds but one leave a good copy of what they damage."""

from collections.abc import Callable, Iterator

from busnode.testing.sim.directory import File
from busnode.testing.sim.platter import Record
from busnode.testing.sim.stage import Skipped, Stage
from busnode.testing.sim.trouble.kind import Fault, kind
from busnode.wire.ids import BrokerId, LogId, Topic


@kind("flip_origin")
async def flip_origin(fault: Fault) -> None:
    """In a record on the disk of the node that wrote it."""
    node = fault.entry.node
    _flip_record(fault, lambda broker_id: fault.stage.wrote.get(broker_id) == node)


@kind("flip_mirror")
async def flip_mirror(fault: Fault) -> None:
    """In a record of a copy."""
    node = fault.entry.node
    _flip_record(fault, lambda broker_id: fault.stage.wrote.get(broker_id) != node)


def _flip_record(fault: Fault, of: Callable[[BrokerId], bool]) -> None:
    stage, name = fault.stage, fault.entry.node
    stage.note_incarnations()
    entropy = stage.entropy(fault.entry.number)
    spare = [each for each in _records(stage, name, of) if _is_elsewhere(stage, name, each)]
    if not spare:
        raise Skipped(f"{name} has no such record of which there is another copy")
    broker_id, path, _, record = entropy.choose(spare)
    offset = record.offset + entropy.below(record.length)
    log_id = LogId(broker_id, Topic(record.topic))
    stage.destroys(name, log_id, record.numbers)
    stage.rotten.update(((log_id, number), None) for number in record.numbers)
    stage.cluster[name].disk.flip_bit(path, offset, entropy.below(8))
    fault.begun(name, f"{log_id} {record.first_no} at {offset}")


def _records(
    stage: Stage, name: str, of: Callable[[BrokerId], bool]
) -> Iterator[tuple[BrokerId, str, File, Record]]:
    platter = stage.platters[name]
    for broker_id, path, file in platter.segments():
        if of(broker_id):
            for record in platter.records(file, broker_id):
                yield broker_id, path, file, record


def _is_elsewhere(stage: Stage, name: str, found: tuple[BrokerId, str, File, Record]) -> bool:
    broker_id, _, _, record = found
    log_id = LogId(broker_id, Topic(record.topic))
    numbers = record.numbers
    return any(
        all(other.holds(log_id, number) for number in numbers) for other in stage.others(name)
    )


@kind("flip_all_copies")
async def flip_all_copies(fault: Fault) -> None:
    """In the same record wherever it is: nobody has it any more, and consumers must hear of it."""
    stage, name = fault.stage, fault.entry.node
    stage.note_incarnations()
    entropy = stage.entropy(fault.entry.number)
    ours = [found for found in _records(stage, name, lambda _: True) if not _is_system(found)]
    if not ours:
        raise Skipped(f"{name} has no record")
    broker_id, _, _, chosen = entropy.choose(ours)
    log_id = LogId(broker_id, Topic(chosen.topic))
    copies = [
        (holder, path, record)
        for holder in stage.platters
        for _, path, _, record in _records(stage, holder, lambda each: each == broker_id)
        if record.topic == chosen.topic and record.numbers == chosen.numbers
    ]
    stage.takes([holder for holder, _, _ in copies], log_id, chosen.numbers)
    for holder, path, record in copies:
        offset = record.offset + entropy.below(record.length)
        stage.cluster[holder].disk.flip_bit(path, offset, entropy.below(8))
    holders = " ".join(holder for holder, _, _ in copies)
    fault.begun(holders, f"{log_id} {chosen.first_no} to {chosen.last_no}")


def _is_system(found: tuple[BrokerId, str, File, Record]) -> bool:
    return found[3].topic.startswith("/$")


@kind("flip_index")
async def flip_index(fault: Fault) -> None:
    _flip_file(fault, lambda path: path.endswith(".idx"))


@kind("flip_metadata")
async def flip_metadata(fault: Fault) -> None:
    _flip_file(fault, lambda path: path.endswith(".json"))


def _flip_file(fault: Fault, which: Callable[[str], bool]) -> None:
    stage, name = fault.stage, fault.entry.node
    entropy = stage.entropy(fault.entry.number)
    disk = stage.cluster[name].disk
    found = sorted(
        (path, file.contents.durable_bytes)
        for path, file in disk.durable_files()
        if which(path) and file.contents.durable_bytes
    )
    if not found:
        raise Skipped(f"{name} has no such file at rest")
    path, size_bytes = entropy.choose(found)
    offset = entropy.below(size_bytes)
    try:
        disk.flip_bit(path, offset, entropy.below(8))
    except (OSError, ValueError) as error:
        raise Skipped(f"{path} is just being replaced") from error
    fault.begun(name, f"{path} at {offset}")
