"""Cut a segment at every byte, flip every byte, spoil its index: the rest is served, and the damage
is named.

A case is an image of a data directory with something broken in it. `Case.judge` opens it in every
way there is and reads it to its end. What lies where it lay before must be served; nothing else may
be served in its place; what is missing must be named; and no segment file may change.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from zlib import crc32

import pytest
import trio

from busnode.segments import log as log_module
from busnode.segments import survey as survey_module
from busnode.segments.damage import Flaw, Hole
from busnode.segments.file_store import FileStore
from busnode.segments.log import FileLog
from busnode.segments.segment import RECORDS_AT, SegmentName, index_path
from busnode.segments.store import StoreOptions
from busnode.segments.verification import verify_directory
from busnode.testing.sim import SimDisk
from busnode.wire.frames import HEADER_BYTES
from busnode.wire.ids import LogId, MsgNo, Topic

from .samples import (
    BROKER,
    DIRECTORY,
    TEMPERATURE,
    UTC_US,
    Reading,
    StoppedClock,
    body_of,
    disk_with,
    indexes_of,
    numbered,
    read_log,
    read_ranges,
    record,
    replaced,
    segments_of,
    snapshot,
    write,
    write_numbered,
)

pytestmark = pytest.mark.damage

Image = dict[str, bytes]


@dataclass(frozen=True)
class Placed:
    """A record where it belongs."""

    path: str
    offset: int
    first_no: int
    last_no: int
    data: bytes

    @property
    def end(self) -> int:
        return self.offset + len(self.data)

    def is_in(self, image: Image) -> bool:
        return image.get(self.path, b"")[self.offset : self.end] == self.data


def layout(image: Image) -> list[Placed]:
    """All records of the one log in an image that is whole."""
    found: list[Placed] = []
    for path, contents in segments_of(image).items():
        at = RECORDS_AT
        while at < len(contents):
            length = int.from_bytes(contents[at : at + 4], "little")
            first_no = int.from_bytes(contents[at + 24 : at + 32], "little")
            count = int.from_bytes(contents[at + 48 : at + 52], "little")
            data = contents[at : at + length]
            found.append(Placed(path, at, first_no, first_no + count - 1, data))
            at += length
    return found


def build(
    fill: Callable[[FileStore], None], options: StoreOptions, *, closed: bool = True
) -> Image:
    """The files of a store that was closed, or whose process was killed."""
    disk = SimDisk(clock=StoppedClock())
    store = FileStore(disk, StoppedClock(), DIRECTORY, options)
    store.begin(BROKER)
    fill(store)
    if closed:
        store.close()
    else:
        disk.kill()
    return snapshot(disk)


def fill_temperature(store: FileStore) -> None:
    """Batches of different sizes, with a commit here and there."""
    log = store.create(TEMPERATURE)
    for place, (count, size_bytes) in enumerate([(2, 3), (1, 90), (3, 1), (1, 0), (2, 40), (1, 7)]):
        write(log, numbered(log.next_no, count, size_bytes))
        if place % 2:
            trio.run(store.commit)
    trio.run(store.commit)


@pytest.fixture(scope="module")
def dense_index() -> Iterator[None]:
    """Points every 200 bytes in place of every 256 KiB, so that a small index has several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_module, "POINT_EVERY_BYTES", 200)
        yield


@pytest.fixture(scope="module")
def one_segment(dense_index: None) -> Image:
    image = build(fill_temperature, StoreOptions())
    assert len(segments_of(image)) == 1
    assert len(next(iter(indexes_of(image).values()))) >= 3 * 48
    return image


@pytest.fixture(scope="module")
def three_segments(dense_index: None) -> Image:
    image = build(fill_temperature, StoreOptions(segment_bytes_max=RECORDS_AT + 400))
    assert len(segments_of(image)) == 3
    return image


@pytest.fixture(scope="module")
def killed(dense_index: None) -> Image:
    """A process that was killed: the index ends before the records do."""
    image = build(fill_temperature, StoreOptions(), closed=False)
    assert len(indexes_of(image)) == 1
    return image


def without_indexes(image: Image) -> Image:
    return segments_of(image)


# Judging ------------------------------------------------------------------------------------------


@dataclass
class Opened:
    """What one opening of a damaged directory gave."""

    reading: Reading
    committed_no: int
    named: list[Hole | Flaw] = field(default_factory=list[Hole | Flaw])


@dataclass
class Case:
    whole: Image
    broken: Image
    label: str
    log_id: LogId = TEMPERATURE

    def judge(self, *, silent: bool = False) -> None:
        """`silent`: nobody who looks at these files can tell that something is missing."""
        try:
            self._judge(silent=silent)
        except BaseException as error:
            error.add_note(f"damage: {self.label}")
            raise

    def _judge(self, *, silent: bool) -> None:
        placed = layout(self.whole)
        wanted = {
            each.first_no: body_of(each.data, self.log_id)
            for each in placed
            if each.is_in(self.broken)
        }
        lost = [each for each in placed if not each.is_in(self.broken)]
        disk = disk_with(self.broken)
        changed = any(self.whole[path] != data for path, data in self.broken.items())
        assert self._verify(disk) or silent or not changed
        # A third opening sees what the second has written down: in one case of four, for time.
        again = [False] if lost and crc32(self.label.encode()) % 4 == 0 else []
        for read_only in [True, False, *again]:
            opened = self._open(disk, read_only=read_only)
            assert opened.reading.records == wanted
            missing = _numbers(opened.reading.spans)
            for each in lost:
                numbers = set(range(each.first_no, each.last_no + 1))
                beyond = each.first_no > opened.committed_no
                assert numbers <= missing or (beyond and not numbers & missing)
                if beyond and not silent:
                    assert any(isinstance(named, Flaw) for named in opened.named)
            assert missing <= _numbers([(each.first_no, each.last_no) for each in lost])
            if read_only:
                assert opened.named or silent or not changed
                assert snapshot(disk) == self.broken, "neither verifying nor reading changes it"
        if again:
            assert self._verify(disk) or silent, "the index was mended, not the damage"
        assert segments_of(snapshot(disk)) == segments_of(self.broken)

    def _open(self, disk: SimDisk, *, read_only: bool) -> Opened:
        store = FileStore(disk, StoppedClock(), DIRECTORY, read_only=read_only)
        try:
            log = store.get(self.log_id)
            if log is None:
                return Opened(Reading(), 0, [*store.flaws()])
            reading = read_log(log)
            if read_only and reading.holes:
                self._read_from_everywhere(log, reading)
            known = [(hole.first_no, hole.last_no) for hole in log.holes()]
            assert reading.expired + known == reading.spans, "what is found is remembered, once"
            return Opened(reading, log.committed_no, [*reading.holes, *store.flaws()])
        finally:
            store.close()

    def _read_from_everywhere(self, log: FileLog, reading: Reading) -> None:
        """Now that the damage is known, ranges avoid it, wherever one begins."""
        missing = _numbers(reading.spans)
        whole = {each.first_no: each.data for each in layout(self.whole)}
        for after_no in (0, *(hole.first_no for hole in reading.holes), log.committed_no - 1):
            ranges = read_ranges(log, after_no)
            assert _numbers(ranges.spans) == {n for n in missing if n > after_no}
            assert ranges.records.items() <= whole.items()

    def _verify(self, disk: SimDisk) -> list[Hole | Flaw]:
        named: list[Hole | Flaw] = []
        for verified in verify_directory(disk, DIRECTORY):
            named += [*verified.holes, *verified.flaws]
        return named


def _numbers(spans: list[tuple[int, int]]) -> set[int]:
    return {number for first, last in spans for number in range(first, last + 1)}


def judge_flips(
    whole: Image, start: Image, path: str, begin: int = RECORDS_AT - 9, step: int = 1
) -> None:
    """Flip each byte of a file in turn, by a number that is drawn."""
    seed = 1
    draw = random.Random(f"{seed}/{path}")
    for at in range(begin, len(start[path]), step):
        mask = draw.randrange(1, 256)
        broken = start | {path: replaced(start[path], at, bytes([start[path][at] ^ mask]))}
        Case(whole, broken, f"seed {seed}: byte {at} of {path} xor {mask:#04x}").judge()


# At every byte ------------------------------------------------------------------------------------


def test_an_image_that_is_whole_has_no_damage(
    one_segment: Image, three_segments: Image, killed: Image
) -> None:
    for image in (one_segment, three_segments, killed):
        case = Case(image, image, "none")
        case.judge()
        disk = disk_with(image)
        assert case._verify(disk) == []
        assert case._open(disk, read_only=False).named == []
        assert case._open(disk, read_only=False).committed_no == 10


def test_a_segment_with_any_byte_flipped(one_segment: Image) -> None:
    (path,) = segments_of(one_segment)
    judge_flips(one_segment, one_segment, path, begin=0)


def test_a_segment_with_any_byte_flipped_and_no_index(one_segment: Image) -> None:
    (path,) = segments_of(one_segment)
    judge_flips(one_segment, without_indexes(one_segment), path)


def test_a_segment_of_a_killed_process_with_any_byte_flipped(killed: Image) -> None:
    (path,) = segments_of(killed)
    judge_flips(killed, killed, path)


@pytest.mark.parametrize("indexed", [True, False], ids=["with indexes", "without indexes"])
def test_each_of_three_segments_with_a_byte_flipped(three_segments: Image, indexed: bool) -> None:
    start = three_segments if indexed else without_indexes(three_segments)
    for path in segments_of(three_segments):
        judge_flips(three_segments, start, path, step=1 if indexed else 3)


def test_the_hole_of_a_flipped_record_is_exactly_that_record(one_segment: Image) -> None:
    (path,) = segments_of(one_segment)
    for indexed in (True, False):
        start = one_segment if indexed else without_indexes(one_segment)
        for each in layout(one_segment)[:-1]:
            data = one_segment[path]
            broken = start | {path: replaced(data, each.offset + 60, b"\xff\xee")}
            disk = disk_with(broken)
            opened = Case(one_segment, broken, f"{each}")._open(disk, read_only=True)
            (hole,) = opened.reading.holes
            assert (hole.first_no, hole.last_no) == (each.first_no, each.last_no)
            assert (hole.path, hole.offset, hole.length) == (path, each.offset, len(each.data))
            (hole,) = [h for v in verify_directory(disk, DIRECTORY) for h in v.holes]
            assert (hole.first_no, hole.last_no) == (each.first_no, each.last_no)
            assert (hole.path, hole.offset, hole.length) == (path, each.offset, len(each.data))


def test_a_segment_cut_at_any_byte(one_segment: Image) -> None:
    (path,) = segments_of(one_segment)
    for size in range(len(one_segment[path])):
        broken = one_segment | {path: one_segment[path][:size]}
        Case(one_segment, broken, f"cut to {size}").judge()


def test_a_segment_cut_at_any_byte_without_an_index(one_segment: Image) -> None:
    (path,) = segments_of(one_segment)
    boundaries = {RECORDS_AT} | {each.end for each in layout(one_segment)}
    for size in cuts(one_segment[path]):
        broken = {path: one_segment[path][:size]}
        # What ends with a whole record looks like a log that has no more: only a copy knows better.
        Case(one_segment, broken, f"cut to {size}").judge(silent=size in boundaries)


def cuts(data: bytes) -> Iterator[int]:
    """At every byte of the records; a header that is cut is none, wherever that is."""
    yield from (0, 1, 44, RECORDS_AT - 1)
    yield from range(RECORDS_AT, len(data))


def test_each_of_three_segments_cut_at_any_byte(three_segments: Image) -> None:
    *paths, last = segments_of(three_segments)
    for start in (three_segments, without_indexes(three_segments)):
        for path in paths:
            for size in cuts(three_segments[path]):
                broken = start | {path: three_segments[path][:size]}
                Case(three_segments, broken, f"{path} cut to {size}").judge()
    for size in cuts(three_segments[last]):
        broken = three_segments | {last: three_segments[last][:size]}
        Case(three_segments, broken, f"{last} cut to {size}").judge()


def test_a_segment_that_is_gone(three_segments: Image) -> None:
    first, middle, last = segments_of(three_segments)
    for gone in (middle, last, first):
        broken = {p: data for p, data in three_segments.items() if p != gone}
        disk = disk_with(broken)
        opened = Case(three_segments, broken, f"{gone} is gone")._open(disk, read_only=False)
        kept = {p.first_no for p in layout(three_segments) if p.path != gone}
        assert set(opened.reading.records) == kept


# The index ----------------------------------------------------------------------------------------


def index_damage(image: Image) -> Iterator[tuple[str, Image]]:
    """Indexes cut at any byte, and with any byte flipped."""
    for path, data in indexes_of(image).items():
        yield f"no {path}", {p: d for p, d in image.items() if p != path}
        for at in range(len(data)):
            yield f"{path} cut to {at}", image | {path: data[:at]}
            flipped = replaced(data, at, bytes([data[at] ^ 0x5A]))
            yield f"byte {at} of {path} flipped", image | {path: flipped}


def test_an_index_that_is_damaged_costs_nothing(one_segment: Image, three_segments: Image) -> None:
    for image in (one_segment, three_segments):
        for label, broken in index_damage(image):
            # An index that is shorter by whole entries is not damaged: it knows less.
            whole_entries = all(len(data) % 48 == 0 for data in indexes_of(broken).values())
            Case(image, broken, label).judge(
                silent=(whole_entries and "cut" in label) or label.startswith("no ")
            )
            disk = disk_with(broken)
            store = FileStore(disk, StoppedClock(), DIRECTORY)
            log = store.get(TEMPERATURE)
            assert log is not None
            assert (log.committed_no, log.holes()) == (10, [])
            store.close()
            store = FileStore(disk, StoppedClock(), DIRECTORY)
            assert store.flaws() == [], "opening has written the index anew"


def test_an_index_and_its_segment_that_are_both_damaged(one_segment: Image) -> None:
    (path,) = segments_of(one_segment)
    draw = random.Random(5)
    for label, broken in index_damage(one_segment):
        at = draw.randrange(len(one_segment[path]))
        flipped = replaced(one_segment[path], at, bytes([one_segment[path][at] ^ 0x81]))
        Case(one_segment, broken | {path: flipped}, f"{label}, and byte {at} flipped").judge()


def test_an_index_of_garbage_or_of_another_segment(three_segments: Image) -> None:
    draw = random.Random(6)
    indexes = indexes_of(three_segments)
    for path in indexes:
        for size in (1, 47, 48, 49, 1000):
            broken = three_segments | {path: draw.randbytes(size)}
            Case(three_segments, broken, f"{path} is garbage").judge()
        for other in indexes:
            if other != path:
                broken = three_segments | {path: indexes[other]}
                Case(three_segments, broken, f"{path} is {other}").judge()


# Larger damage ------------------------------------------------------------------------------------


def test_any_two_records_that_are_damaged(one_segment: Image) -> None:
    """In a row, or with a good one between them."""
    (path,) = segments_of(one_segment)
    placed = layout(one_segment)
    for one in placed:
        for other in placed:
            for header in (3, 30, 50, HEADER_BYTES + 4):
                data = replaced(one_segment[path], one.offset + header, b"\xa5\x5a")
                data = replaced(data, other.offset + header, b"\x5a\xa5")
                for start in (one_segment, without_indexes(one_segment)):
                    Case(one_segment, start | {path: data}, f"{one.first_no} and {other.first_no}"
                    ).judge()  # fmt: skip


def test_any_stretch_that_is_zeros_or_garbage(one_segment: Image) -> None:
    (path,) = segments_of(one_segment)
    whole = one_segment[path]
    for seed in range(200):
        draw = random.Random(seed)
        at = draw.randrange(len(whole))
        length = min(draw.choice([2, 16, 100, 512]), len(whole) - at)
        new = bytes(length) if seed % 2 else draw.randbytes(length)
        start = one_segment if seed % 4 < 2 else without_indexes(one_segment)
        Case(one_segment, start | {path: replaced(whole, at, new)}, f"seed {seed}").judge()


def test_zeros_or_garbage_behind_the_end(one_segment: Image, killed: Image) -> None:
    for image in (one_segment, killed):
        (path,) = segments_of(image)
        for tail in (b"\0", bytes(79), bytes(80), bytes(5000), random.Random(7).randbytes(700)):
            for start in (image, without_indexes(image)):
                broken = start | {path: image[path] + tail}
                Case(image, broken, f"{len(tail)} bytes at the end").judge()


def spliced(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at:]


@pytest.mark.parametrize("indexed", [True, False], ids=["with index", "without index"])
def test_garbage_between_records_costs_no_message(one_segment: Image, indexed: bool) -> None:
    (path,) = segments_of(one_segment)
    start = one_segment if indexed else without_indexes(one_segment)
    draw = random.Random(8)
    for each in layout(one_segment):
        for length in (1, 80, 300):
            for garbage in (bytes(length), draw.randbytes(length)):
                judge_extra(one_segment, start, path, spliced(start[path], each.offset, garbage))


@pytest.mark.parametrize("indexed", [True, False], ids=["with index", "without index"])
def test_a_record_that_stands_twice_is_served_once(one_segment: Image, indexed: bool) -> None:
    (path,) = segments_of(one_segment)
    start = one_segment if indexed else without_indexes(one_segment)
    placed = layout(one_segment)
    for each in placed:
        for other in placed:
            if other.offset >= each.offset:
                judge_extra(one_segment, start, path, spliced(start[path], other.end, each.data))


def judge_extra(whole: Image, start: Image, path: str, data: bytes) -> None:
    """All records are there, and something beside them: all are served, and it is named."""
    disk = disk_with(start | {path: data})
    wanted = {each.first_no: body_of(each.data) for each in layout(whole)}
    assert any(v.flaws or v.holes for v in verify_directory(disk, DIRECTORY))
    for read_only in (True, False, False):
        store = FileStore(disk, StoppedClock(), DIRECTORY, read_only=read_only)
        log = store.get(TEMPERATURE)
        assert log is not None
        assert read_log(log).records == wanted
        assert read_ranges(log).records.keys() == wanted.keys()
        assert log.holes() == []
        store.close()
        assert snapshot(disk)[path] == data


def test_a_record_taken_out_of_the_middle_is_a_hole(one_segment: Image) -> None:
    (path,) = segments_of(one_segment)
    for start in (one_segment, without_indexes(one_segment)):
        for gone in layout(one_segment)[:-1]:
            data = one_segment[path][: gone.offset] + one_segment[path][gone.end :]
            disk = disk_with(start | {path: data})
            for _ in range(2):
                store = FileStore(disk, StoppedClock(), DIRECTORY)
                log = store.get(TEMPERATURE)
                assert log is not None
                reading = read_log(log)
                kept = {p.first_no for p in layout(one_segment) if p != gone}
                assert set(reading.records) == kept
                assert reading.spans == [(gone.first_no, gone.last_no)]
                store.close()


def test_damage_that_grows_is_found_each_time(one_segment: Image) -> None:
    """Bytes rot one after the other while the store knows of the first ones."""
    (path,) = segments_of(one_segment)
    placed = layout(one_segment)
    for order in range(12):
        draw = random.Random(order)
        disk = disk_with(one_segment)
        broken = dict(one_segment)
        for victim in draw.sample(placed, len(placed)):
            at = victim.offset + draw.randrange(len(victim.data))
            disk.flip_bit(path, at, 3)
            broken[path] = snapshot(disk)[path]
            store = FileStore(disk, StoppedClock(), DIRECTORY)
            log = store.get(TEMPERATURE)
            assert log is not None
            after_no = draw.randrange(10)
            intact = {p.first_no for p in placed if p.is_in(broken) and p.last_no > after_no}
            assert set(read_log(log, after_no).records) == intact, f"seed {order}"
            store.close()
            if draw.random() < 0.5:
                Case(one_segment, snapshot(disk) | broken, f"seed {order}").judge()


def test_damage_that_comes_while_a_store_is_open(one_segment: Image) -> None:
    (path,) = segments_of(one_segment)
    placed = layout(one_segment)
    for order in range(12):
        draw = random.Random(order)
        disk = disk_with(one_segment)
        store = FileStore(disk, StoppedClock(), DIRECTORY)
        log = store.get(TEMPERATURE)
        assert log is not None
        for victim in draw.sample(placed, len(placed)):
            disk.flip_bit(path, victim.offset + draw.randrange(len(victim.data)), 5)
            image = snapshot(disk)
            intact = {p.first_no for p in placed if p.is_in(image)}
            assert set(read_log(log).records) == intact, f"seed {order}"
            assert set(read_ranges(log).records) == intact, f"seed {order}"
        missing = _numbers([(hole.first_no, hole.last_no) for hole in log.holes()])
        assert missing == set(range(1, 11))
        store.close()


def test_a_log_goes_on_behind_damage(one_segment: Image) -> None:
    """A copy that is damaged takes more from its origin, and keeps what it had."""
    (path,) = segments_of(one_segment)
    for start in (one_segment, without_indexes(one_segment)):
        for at in range(RECORDS_AT, len(one_segment[path]), 7):
            data = replaced(one_segment[path], at, bytes([one_segment[path][at] ^ 0x10]))
            disk = disk_with(start | {path: data})
            store = FileStore(disk, StoppedClock(), DIRECTORY)
            log = store.create(TEMPERATURE)
            before = read_log(log)
            made = write_numbered(log, 2)
            trio.run(store.commit)
            first_no = log.committed_no - 1
            wanted = before.records | {first_no: body_of(made[0])}
            assert read_log(log).records == wanted
            store.close()
            store = FileStore(disk, StoppedClock(), DIRECTORY)
            assert read_log(store.create(TEMPERATURE)).records == wanted
            assert snapshot(disk)[path] == data


# What tells whose a segment is --------------------------------------------------------------------


def test_a_log_is_known_by_any_good_record(one_segment: Image) -> None:
    """The first sector of a file is gone, and with it its header and the first record."""
    (path,) = segments_of(one_segment)
    first, second, *_ = layout(one_segment)
    for start in (one_segment, without_indexes(one_segment)):
        for end in (first.offset + 10, first.end - 1, second.end - 1):
            broken = start | {path: bytes(end) + one_segment[path][end:]}
            Case(one_segment, broken, f"zeros up to {end}").judge()


def test_a_damaged_topic_is_not_taken_for_another(one_segment: Image) -> None:
    (path,) = segments_of(one_segment)
    data = replaced(one_segment[path], 20, b"?")
    topic_at = RECORDS_AT + HEADER_BYTES + len("/plant/")
    for new in (b"s", b"\xff", b"/", b"+"):
        broken = one_segment | {path: replaced(data, topic_at, new)}
        Case(one_segment, broken, f"topic with {new!r}").judge()
        store = FileStore(disk_with(broken), StoppedClock(), DIRECTORY)
        assert [log.log_id for log in store.logs()] == [TEMPERATURE]


def test_a_segment_that_nobody_knows_is_left_alone_and_named(one_segment: Image) -> None:
    (path,) = segments_of(one_segment)
    broken = one_segment | {path: bytes(len(one_segment[path]))}
    disk = disk_with(broken)
    (verified,) = verify_directory(disk, DIRECTORY)
    assert verified.log_id is None
    assert [flaw.path for flaw in verified.flaws] == [path]
    store = FileStore(disk, StoppedClock(), DIRECTORY)
    assert list(store.logs()) == []
    assert [flaw.path for flaw in store.flaws()] == [path]
    made = write_numbered(store.create(TEMPERATURE), 2)
    trio.run(store.commit)
    assert snapshot(disk)[path] == broken[path]
    store.close()
    store = FileStore(disk, StoppedClock(), DIRECTORY)
    assert read_log(store.create(TEMPERATURE)).records == {1: body_of(made[0])}


def test_a_page_of_a_sister_log_is_not_served(dense_index: None) -> None:
    """A write that went astray: whole good records, with the right numbers, of another topic."""
    sister = TEMPERATURE._replace(topic=Topic("/plant/south/temp"))

    def fill(store: FileStore) -> None:
        for log_id in (TEMPERATURE, sister):
            write_numbered(store.create(log_id), 1, 2, 3, 1)

    image = build(fill, StoreOptions())
    one, other = segments_of(image)
    whole = {path: data for path, data in image.items() if path[:-4] == one[:-4]}
    for each in layout(whole):
        astray = image[other][each.offset : each.end]
        for start in (whole, without_indexes(whole)):
            broken = start | {one: replaced(image[one], each.offset, astray)}
            Case(whole, broken, f"{each.first_no} of the sister").judge()


# Bytes that look like a record --------------------------------------------------------------------


def forgery(claimed_no: int, *, count: int = 1) -> bytes:
    """A record of this log that nobody has written: anybody can make one who knows the brokerId."""
    return record(TEMPERATURE, claimed_no, [b"forged"] * count)


@dataclass(frozen=True)
class Forged:
    image: Image
    outer: Placed
    inner: bytes


def forged_image(claimed_no: int, padding: tuple[int, int], *, last: bool = False) -> Forged:
    """A log whose third batch, messages 4 and 5, carries a forgery in its payload."""
    inner = forgery(claimed_no)
    payload = b"<" * padding[0] + inner + b">" * padding[1]

    def fill(store: FileStore) -> None:
        log = store.create(TEMPERATURE)
        write_numbered(log, 2, 1)
        write(log, [b"outer", payload])
        if not last:
            write_numbered(log, 1, 3)

    image = build(fill, StoreOptions())
    return Forged(image, layout(image)[2], inner)


FORGERIES = [(4, (5, 5)), (5, (5, 0)), (5, (0, 3)), (6, (5, 5)), (6, (9, 0)), (7, (0, 0)),
             (10**12, (5, 0)), (10**12, (3, 300))]  # fmt: skip


@pytest.mark.parametrize("last", [False, True], ids=["in the middle", "at the end"])
@pytest.mark.parametrize(("claimed_no", "padding"), FORGERIES)
def test_a_forged_record_in_a_damaged_one_is_not_served(
    claimed_no: int, padding: tuple[int, int], last: bool
) -> None:
    """Whichever byte of the outer record is flipped, as long as the inner one is whole."""
    forged = forged_image(claimed_no, padding, last=last)
    outer = forged.outer
    (path,) = segments_of(forged.image)
    inner_at = outer.data.index(forged.inner)
    places = [*range(0, inner_at), *range(inner_at + len(forged.inner), len(outer.data))]
    for at in places:
        # All bits of the length, which no hash covers.
        for mask in [1 << bit for bit in range(8)] if at < 4 else [0x01 if at % 2 else 0x80]:
            byte = bytes([outer.data[at] ^ mask])
            data = replaced(forged.image[path], outer.offset + at, byte)
            start = forged.image if at % 4 < 2 else without_indexes(forged.image)
            Case(forged.image, start | {path: data}, f"byte {at} of the outer one").judge()


def test_a_forged_record_in_a_torn_one_is_not_served() -> None:
    for claimed_no in (4, 5, 6, 10**12):
        forged = forged_image(claimed_no, (5, 300), last=True)
        (path,) = segments_of(forged.image)
        for size in range(forged.outer.end - 290, forged.outer.end, 5):
            broken = {path: forged.image[path][:size]}
            Case(forged.image, broken, f"{claimed_no}, cut to {size}").judge()


def test_a_length_that_points_to_a_later_record_hides_none() -> None:
    """Flipping one bit of a length can make it reach just to the end of the record behind."""
    head = len(record(TEMPERATURE, 1, [b""]))
    for sizes in ([0x0181, 0x0200], [0x0181, 0x0200, 0x00A0]):

        def fill(store: FileStore, sizes: list[int] = sizes) -> None:
            log = store.create(TEMPERATURE)
            for size_bytes in sizes:
                write(log, [b"x" * (size_bytes - head - (size_bytes > 0x100))])

        image = build(fill, StoreOptions())
        (path,) = segments_of(image)
        assert [len(each.data) for each in layout(image)] == sizes
        for bit in range(32):
            at = RECORDS_AT + bit // 8
            data = replaced(image[path], at, bytes([image[path][at] ^ 1 << bit % 8]))
            for start in (image, without_indexes(image)):
                Case(image, start | {path: data}, f"bit {bit} of the length").judge()


# Windows ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window_bytes", [100, 128, 200, 333])
def test_damage_at_the_edge_of_a_window(
    one_segment: Image, monkeypatch: pytest.MonkeyPatch, window_bytes: int
) -> None:
    monkeypatch.setattr(survey_module, "WINDOW_BYTES", window_bytes)
    start = without_indexes(one_segment)
    (path,) = start
    data = start[path]
    for at in range(RECORDS_AT, len(data), 3):
        broken = {path: replaced(data, at, bytes([data[at] ^ 0x40]))}
        Case(one_segment, broken, f"byte {at}, windows of {window_bytes}").judge()


@pytest.fixture(scope="module")
def large() -> Image:
    """Records that are larger than a window, and points in between."""

    def fill(store: FileStore) -> None:
        log = store.create(TEMPERATURE)
        for size_bytes in (700_000, 10, 2 << 20, 10, 350_000, 10):
            write(log, [b"%d" % log.next_no * (size_bytes // 2)])
            trio.run(store.commit)

    return build(fill, StoreOptions())


def test_a_record_that_is_larger_than_a_window(large: Image) -> None:
    (path,) = segments_of(large)
    for start in (large, without_indexes(large)):
        Case(large, start, "none").judge(silent=True)
        for each in layout(large):
            for at in (2, 9, len(each.data) // 2):
                byte = large[path][each.offset + at] ^ 0x04
                data = replaced(large[path], each.offset + at, bytes([byte]))
                Case(large, start | {path: data}, f"byte {at} of {each.first_no}").judge()


def test_damage_far_behind_a_point_is_found_by_who_begins_there() -> None:
    """A walk from header to header moves its window on; meeting damage it goes back."""

    def fill(store: FileStore) -> None:
        log = store.create(TEMPERATURE)
        for _ in range(40):
            write(log, [b"%d" % log.next_no * 2000])

    image = build(fill, StoreOptions())
    (path,) = segments_of(image)
    placed = layout(image)
    victim = placed[30]
    data = replaced(image[path], victim.offset + 9, b"!!")
    for after_no in (0, 29, 30, 31, 35):
        store = FileStore(disk_with(image | {path: data}), StoppedClock(), DIRECTORY)
        log = store.get(TEMPERATURE)
        assert log is not None
        wanted = {p.first_no for p in placed if p.is_in({path: data}) and p.first_no > after_no}
        assert set(read_log(log, after_no).records) == wanted
        assert log.first_at(0) == 1


def test_reading_from_a_moment_begins_no_later_than_damage_that_may_hold_it() -> None:
    """What the damaged record held may be just what was asked for: it must arrive as a hole."""

    def fill(store: FileStore) -> None:
        log = store.create(TEMPERATURE)
        for hour in range(6):
            write_numbered(log, 2, utc_us=1000 * (hour + 1))

    image = build(fill, StoreOptions())
    (path,) = segments_of(image)
    victim = layout(image)[2]
    data = replaced(image[path], victim.offset + 30, b"!!")
    for start in (image, without_indexes(image)):
        store = FileStore(disk_with(start | {path: data}), StoppedClock(), DIRECTORY)
        log = store.get(TEMPERATURE)
        assert log is not None
        assert log.first_at(2000) == 3
        assert log.first_at(2500) == 5
        assert log.first_at(3000) == 5
        assert log.first_at(4000) == 5, "nobody knows that the damaged ones were older"
        assert log.first_at(4001) == 9


def test_a_moment_may_lie_in_damage_at_the_end_of_a_segment(three_segments: Image) -> None:
    first, _, last = segments_of(three_segments)
    for path in (first, last):
        victim = [each for each in layout(three_segments) if each.path == path][-1]
        data = replaced(three_segments[path], victim.offset + 30, b"!!")
        for start in (three_segments, without_indexes(three_segments)):
            if path == last and start is not three_segments:
                continue  # then it is a torn tail, and not known to have been there
            store = FileStore(disk_with(start | {path: data}), StoppedClock(), DIRECTORY)
            log = store.get(TEMPERATURE)
            assert log is not None
            read_log(log)
            assert log.first_at(0) == 1
            assert log.first_at(UTC_US + 1) == (victim.first_no if path == last else 11)


def test_the_newest_message_of_all_may_be_the_damaged_one() -> None:
    """The index still tells that something as new was there."""

    def fill(store: FileStore) -> None:
        log = store.create(TEMPERATURE)
        for utc_us in (1, 2, 100, 3, 4):
            write_numbered(log, 1, utc_us=utc_us)

    image = build(fill, StoreOptions())
    (path,) = segments_of(image)
    data = replaced(image[path], layout(image)[2].offset + 30, b"!!")
    store = FileStore(disk_with(image | {path: data}), StoppedClock(), DIRECTORY)
    log = store.get(TEMPERATURE)
    assert log is not None
    for _ in range(2):
        assert log.first_at(50) == 3
        read_log(log)


def test_names_of_segments_are_read_as_they_are_written() -> None:
    name = SegmentName(7, MsgNo(12345))
    assert SegmentName.parse(str(name)) == name
    assert index_path(f"/x/{name}") == "/x/00000007-00000000000000012345.idx"
    for wrong in ("", "00000007-12345.seg", f"{name}.torn", str(name)[:-4] + ".idx", f"x{name}"):
        assert SegmentName.parse(wrong) is None
