"""Logs of a made-up plant, small, with something for every chart of a report."""

import math
import random
import shutil
from pathlib import Path

from busnode.tasks import journal
from busnode.tasks.rows import DEAD
from busnode.wire.ids import BrokerId, LogId, Topic
from tests.segments.samples import UTC_US

from .written_logs import Row, drop, flip, segments, write_log

S = 1_000_000
N1, N2 = BrokerId(bytes(range(16))), BrokerId(bytes(range(100, 116)))
HOSTILE = "/plant/</script><b>x"
ERRORS = ("SMTP 451: try later", "no such recipient", "template 'welcome' is missing a field")


def write_plant(folder: Path, seconds: int = 1800, seed: int = 1) -> list[Path]:
    """The data directories of two nodes, each with a copy of the other's logs; one has a hole."""
    numbers = random.Random(seed)
    first = folder / "n1"
    _write_traffic(first, numbers, seconds)
    _write_beats(first, seconds)
    _write_tasks(first, numbers)
    second = folder / "n2"
    shutil.copytree(first, second)
    flip(segments(second, N1)[1], 700)
    drop(next(path for path in segments(second, N2) if path.name.startswith("00000002")))
    return [first, second]


def _write_traffic(directory: Path, numbers: random.Random, seconds: int) -> None:
    shape = {
        (N1, "/plant/north/temperature"): (6, 90),
        (N1, "/plant/north/pressure"): (4, 140),
        (N1, "/orders/new"): (3, 420),
        (N1, HOSTILE): (0.5, 20),
        (N2, "/orders/shipped"): (2, 180),
        (N2, "/plant/south/temperature"): (5, 95),
        (N2, "/audit/logins"): (0.4, 60),
    }
    for (broker_id, topic), (rate, size) in shape.items():
        rows: list[Row] = []
        for second in range(0, seconds, 10):
            wave = 1 + 0.5 * math.sin(second / 240 + size) + 0.2 * numbers.random()
            outage = 0.1 if topic.startswith("/orders") and 900 < second < 1080 else 1.0
            for _ in range(round(10 * rate * wave * outage * 0.2)):
                at = UTC_US + second * S + numbers.randrange(10 * S)
                late = round(numbers.lognormvariate(3, 0.7) * 1000)
                headers = {"sent_us": str(at - late)} if topic.startswith("/orders") else None
                payload = bytes(max(1, round(numbers.lognormvariate(math.log(size), 0.3))))
                rows.append(Row(len(rows) + 1, payload, at, None, headers))
        batches = [rows[at : at + 50] for at in range(0, len(rows), 50)]
        write_log(directory, LogId(broker_id, Topic(topic)), batches, 4)


def _write_beats(directory: Path, seconds: int) -> None:
    silent = {"billing": (0, 0), "mail": (600, 660), "search": (1000, 2000), "stock": (1400, 1480)}
    for service, (begin, end) in silent.items():
        times = [at for at in range(0, seconds, 10) if not begin <= at < end]
        rows = [
            Row(place, b"", UTC_US + at * S, headers={"service": service})
            for place, at in enumerate(times, 1)
        ]
        write_log(directory, LogId(N1, Topic(f"/heartbeat/{service}")), [rows])


def _write_tasks(directory: Path, numbers: random.Random) -> None:
    for queue, count in {"mail": 240, "invoices": 90, "thumbnails": 400}.items():
        tasks = [Row(n, b"{}", UTC_US + n * S) for n in range(1, count + 1)]
        write_log(directory, LogId(N1, Topic(f"/$task/{queue}")), [tasks])
        records: list[list[Row]] = []

        def told(what: journal.JournalRecord, at_us: int, to: list[list[Row]] = records) -> None:
            to.append([Row(len(to) + 1, journal.encode_record(what), at_us)])

        for task in tasks[:-5]:
            at = task.utc_us + round(numbers.lognormvariate(1, 1.2) * S)
            if numbers.random() < 0.06:
                error = numbers.choices(ERRORS, (6, 3, 1))[0]
                told(journal.Failed([task.msg_no], [5], [DEAD], at, "w1", error), at)
                continue
            if numbers.random() < 0.2:
                told(journal.Failed([task.msg_no], [1], [at], at, "w1", ERRORS[0]), at)
            told(journal.Finished("completed", ((task.msg_no, task.msg_no),)), at + S)
        write_log(directory, LogId(N1, Topic(f"/$sys/task/journal/{queue}")), records)
