"""What a node and its clients do in a second: each workload conducts players against a node.

All of them are separate processes that talk over loopback. Numbers are medians of some rounds on
one node; what is compared with the machine itself takes turns with it in the same run.
"""

from typing import Final

from busnode.node.bench_segments import PAYLOAD_BYTES, Stopwatch, batch
from busnode.node.bench_stage import Bench, Effort, Player, Report, Stage, middle
from busnode.wire.ids import Topic
from busnode.wire.limits import MIB

TOPIC: Final = "/bench/north/temp"

LIVE_MESSAGES: Final = 2_000_000
PLAIN_MESSAGES: Final = 500_000
"""About a second each on a small machine."""

FANOUT_DELIVERIES: Final = 2_000_000
FANOUT_PROCESSES: Final = 2

DURABLE_MESSAGES: Final = 1_000_000
CONCURRENT: Final = 100
CONCURRENT_MESSAGES: Final = 50_000
ALONE_MESSAGES: Final = 100
ALONE_TURNS: Final = 5
"""Short turns: a disk that others use is fast now and slow a moment later."""

REPLAY_MESSAGES: Final = 8_100_000
"""With them a log is a little larger than 1 GiB."""
BARE_BYTES: Final = 256 * MIB
"""Of the file that stands in for a log: too large for any processor's cache."""
FILL_MESSAGES: Final = 500_000
"""Published in one go while a log is filled."""

ROUND_TRIPS: Final = 2_000
WARM_UP: Final = 0.05


# Live -----------------------------------------------------------------------------------------


def bench_live(bench: Bench) -> Report:
    """One publisher, one consumer, messages that are not persistent."""
    report = bench.report("live", PAYLOAD_BYTES)
    ways = [
        ("publisher_to_batches", "send", "batches", LIVE_MESSAGES),
        ("publisher_send_many_to_batches", "send_many", "batches", LIVE_MESSAGES),
        ("publish_to_async_for", "publish", "messages", PLAIN_MESSAGES),
    ]
    with Stage(bench.directory) as stage:
        publisher = stage.player("publisher")
        consumers = [stage.player("consumer", topic=TOPIC, connections=1)]
        for name, sent_by, taken_by, full in ways:
            flow = Flow(bench, stage, publisher, consumers, 1)
            report[name] = flow.report(name, sent_by, taken_by, bench.messages(full))
    return report


def bench_fanout(bench: Bench) -> Report:
    """One publisher, many subscribers with a connection each, in two processes."""
    report = bench.report("fanout", PAYLOAD_BYTES)
    for receivers in (10, 100):
        with Stage(f"{bench.directory}/{receivers}") as stage:
            publisher = stage.player("publisher")
            connections = receivers // FANOUT_PROCESSES
            consumers = [
                stage.player("consumer", topic=TOPIC, connections=connections)
                for _ in range(FANOUT_PROCESSES)
            ]
            flow = Flow(bench, stage, publisher, consumers, receivers)
            messages = bench.messages(FANOUT_DELIVERIES // receivers)
            report[f"1_to_{receivers}"] = flow.report(
                f"1 to {receivers}", "send", "batches", messages
            )
    return report


class Flow:
    """From one publisher through the node to consumers. What counts is what they have received;
    what the node had to drop because somebody was slow stands beside it."""

    def __init__(
        self,
        bench: Bench,
        stage: Stage,
        publisher: Player,
        consumers: list[Player],
        receivers: int,
        topic: str = TOPIC,
    ) -> None:
        self._topic = topic
        self._bench = bench
        self._stage = stage
        self._publisher = publisher
        self._consumers = consumers
        self._receivers = receivers

    def report(self, name: str, sent_by: str, taken_by: str, messages: int) -> Report:
        self.run(sent_by, taken_by, max(100, round(messages * WARM_UP)))
        effort = Effort(self._stage)
        received: list[float] = []
        published: list[float] = []
        dropped: list[float] = []
        for number in range(self._bench.rounds):
            self._bench.progress(f"{name.replace('_', ' ')}, round {number + 1}")
            sent_s, received_s, came, lost = self.run(sent_by, taken_by, messages)
            received.append(came / received_s)
            published.append(messages / sent_s)
            dropped.append(lost / (messages * self._receivers))
            effort.add(messages)
        return {
            "messages": messages,
            "received_per_s": middle(received),
            "published_per_s": middle(published),
            "dropped_share": middle(dropped, 4),
            "processor_us_per_published_message": effort.report(),
        }

    def run(
        self, sent_by: str, taken_by: str, messages: int, *, persistent: bool = False
    ) -> tuple[float, float, int, int]:
        """One round: seconds until all was sent and until all was received, and how many messages
        were received and dropped."""
        for consumer in self._consumers:
            consumer.ask(way=taken_by, messages=messages)
        sent = self._publisher.ask(
            way=sent_by, topic=self._topic, messages=messages, persistent=persistent
        )
        answers = [consumer.hear() for consumer in self._consumers]
        came = sum(answer["received"] for answer in answers)
        lost = sum(answer["dropped"] for answer in answers)
        return sent["seconds"], max(answer["seconds"] for answer in answers), came, lost


# Durable --------------------------------------------------------------------------------------


def bench_durable(bench: Bench) -> Report:
    """Persistent messages, each acked after it was synced to disk."""
    report = bench.report("durable", PAYLOAD_BYTES)
    with Stage(bench.directory) as stage:
        publisher = stage.player("publisher")
        for name, way, full in (
            ("pipelined", "send", DURABLE_MESSAGES),
            ("pipelined_send_many", "send_many", DURABLE_MESSAGES),
            (f"{CONCURRENT}_at_once", "publish_at_once", CONCURRENT_MESSAGES),
        ):
            messages = bench.messages(full)
            _publish(publisher, way, max(CONCURRENT, round(messages * WARM_UP)))
            effort = Effort(stage)
            rates: list[float] = []
            for number in range(bench.rounds):
                bench.progress(f"{name.replace('_', ' ')}, round {number + 1}")
                rates.append(messages / _publish(publisher, way, messages))
                effort.add(messages)
            report[name] = {
                "messages": messages,
                "acked_per_s": middle(rates),
                "processor_us_per_message": effort.report(),
            }
        report["one_at_a_time"] = _one_at_a_time(bench, stage, publisher)
    return report


def _publish(publisher: Player, way: str, messages: int) -> float:
    answer = publisher.ask(
        way=way, topic=TOPIC, messages=messages, persistent=True, tasks=CONCURRENT
    )
    seconds: float = answer["seconds"]
    return seconds


def _one_at_a_time(bench: Bench, stage: Stage, publisher: Player) -> Report:
    """One task awaits each publish, in turns with the disk: the same bytes, written and synced."""
    messages = bench.messages(ALONE_MESSAGES)
    frame = batch(bench.world, Topic(TOPIC), 1)
    ours: list[float] = []
    disk: list[float] = []
    effort = Effort(stage)
    for number in range(bench.rounds):
        bench.progress(f"one at a time, round {number + 1}")
        disk_s = ours_s = 0.0
        for _ in range(ALONE_TURNS):
            disk_s += write_and_sync(bench, frame, messages)
            ours_s += _publish(publisher, "publish", messages)
        disk.append(messages * ALONE_TURNS / disk_s)
        ours.append(messages * ALONE_TURNS / ours_s)
        effort.add(messages * ALONE_TURNS)
    return {
        "messages": messages * ALONE_TURNS,
        "acked_per_s": middle(ours),
        "disk_syncs_per_s": middle(disk),
        "of_disk": middle([a / b for a, b in zip(ours, disk, strict=True)], 3),
        "above_disk_us": middle([(1 / a - 1 / b) * 1e6 for a, b in zip(ours, disk, strict=True)]),
        "processor_us_per_message": effort.report(),
    }


def write_and_sync(bench: Bench, frame: bytes, times: int) -> float:
    path = f"{bench.directory}/bare"
    file = bench.world.files.append_to(path)

    def work() -> None:
        for _ in range(times):
            file.append(frame)
            file.sync()

    try:
        return Stopwatch(bench.world).time(work)
    finally:
        file.close()
        bench.world.files.remove(path)


# Replay ---------------------------------------------------------------------------------------


def bench_replay(bench: Bench) -> Report:
    """A log read from its beginning: decoded, and as bytes that nobody looks at. The latter takes
    turns with a file that is sent over loopback and nothing else."""
    report = bench.report("replay", PAYLOAD_BYTES)
    messages = bench.messages(REPLAY_MESSAGES)
    size_bytes = messages * PAYLOAD_BYTES  # the log is a little larger
    rates: dict[str, list[float]] = {"batches": [], "messages": [], "raw": [], "bare": []}
    efforts: dict[str, list[Report]] = {"batches": [], "messages": []}
    with Stage(bench.directory) as stage:
        fill(bench, stage, messages)
        reader = stage.player("reader")
        raw = stage.player("raw")
        sender = stage.player("sender", path=scratch_file(bench, min(size_bytes, BARE_BYTES)))
        for number in range(bench.rounds):
            for way in ("batches", "messages"):
                bench.progress(f"{messages:,} messages as {way}, round {number + 1}")
                effort = Effort(stage)
                answer = reader.ask(topic=TOPIC, way=way, messages=messages)
                effort.add(messages)
                efforts[way].append(effort.report())
                rates[way].append(answer["received"] / answer["seconds"])
            bench.progress(f"raw, round {number + 1}")
            rates["raw"].append(_read_raw(raw, size_bytes, do="open", topic=TOPIC))
            address = sender.ready["address"]
            rates["bare"].append(_read_raw(raw, size_bytes, do="dial", address=address))
    report["messages"] = messages
    report["payload_bytes_in_all"] = size_bytes
    for way in ("batches", "messages"):
        report[f"decoded_{way}"] = {
            "received_per_s": middle(rates[way]),
            "processor_us_per_message": {
                name: middle([effort[name] for effort in efforts[way]], 3)
                for name in ("node", "reader")
            },
        }
    report["raw_gb_per_s"] = middle([rate / 1e9 for rate in rates["raw"]], 2)
    report["bare_sendfile_gb_per_s"] = middle([rate / 1e9 for rate in rates["bare"]], 2)
    ratios = [a / b for a, b in zip(rates["raw"], rates["bare"], strict=True)]
    report["raw_of_bare_sendfile"] = middle(ratios, 2)
    return report


def _read_raw(raw: Player, size_bytes: int, **opening: str) -> float:
    """Bytes a second."""
    opened = raw.ask(**opening)
    read = raw.ask(do="read", bytes=size_bytes)
    rate: float = read["received_bytes"] / (opened["seconds"] + read["seconds"])
    return rate


def scratch_file(bench: Bench, size_bytes: int) -> str:
    """A file that stands in for a log."""
    path = f"{bench.directory}/bare"
    file = bench.world.files.append_to(path)
    piece = batch(bench.world, Topic(TOPIC), 4000)
    while file.size_bytes < size_bytes:
        file.append(piece)
    file.close()
    return path


def fill(bench: Bench, stage: Stage, messages: int) -> None:
    """Publish so many persistent messages."""
    publisher = stage.player("publisher")
    for done in range(0, messages, FILL_MESSAGES):
        bench.progress(f"filling a log: {done:,} of {messages:,}")
        _publish(publisher, "send_many", min(FILL_MESSAGES, messages - done))
    stage.dismiss(publisher)


# Requests -------------------------------------------------------------------------------------


def bench_request(bench: Bench) -> Report:
    """Round trips through the node to a provider, in turns with a bare echo between two processes.

    A request takes two of the ways that an echo takes one of: to the node, and on to the provider,
    which answers everything and need not be asked whether it will. So it takes turns, too, with an
    echo behind a relay, which is a node that only passes bytes on.
    """
    report = bench.report("request", PAYLOAD_BYTES)
    times = bench.messages(ROUND_TRIPS)
    ours: list[Report] = []
    bare: list[Report] = []
    relayed: list[Report] = []
    with Stage(bench.directory) as stage:
        stage.player("provider", topic=TOPIC)
        requester = stage.player("requester", topic=TOPIC)
        pinger = stage.player("pinger", address=stage.player("echo").ready["address"])
        relay = stage.player("relay", to=stage.player("echo").ready["address"])
        far_pinger = stage.player("pinger", address=relay.ready["address"])
        requester.ask(messages=max(100, times // 10))
        effort = Effort(stage)
        for number in range(bench.rounds):
            bench.progress(f"{times:,} round trips, round {number + 1}")
            bare.append(pinger.ask(messages=times))
            relayed.append(far_pinger.ask(messages=times))
            ours.append(requester.ask(messages=times))
            effort.add(times)
        used = effort.report()
    for name, answers in (("request", ours), ("bare_echo", bare), ("relayed_echo", relayed)):
        report[name] = {
            quantile: middle([answer[quantile] for answer in answers], 1)
            for quantile in ("p50_us", "p99_us")
        }
    for name, answers in (("bare_echo", bare), ("relayed_echo", relayed)):
        ratios = [a["p50_us"] / b["p50_us"] for a, b in zip(ours, answers, strict=True)]
        report[f"p50_of_{name}"] = middle(ratios, 2)
    report["processor_us_per_round_trip"] = used
    return report
