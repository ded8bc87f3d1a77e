"""A node under a flood of connections, beside a client that publishes and consumes all the while.

Calm and flood come in turns in the same run, so that their latencies can be compared. Run by
`scripts/flood`, and in short by the tests, which look at everything but the time.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any, Final

import trio

from busnode.client import Bus, Subscription, connect

from .process_cluster import PATIENCE_S, Node, logged_failure

Flooder = subprocess.Popen[str]

ROOT: Final = Path(__file__).parents[2]
REQUEST: Final = "GET {} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
MIB: Final = 1024 * 1024
PACE_S: Final = 0.005
TOPICS: Final = {"live": False, "persistent": True}
PHASES: Final = ("calm", "flood")


@dataclass
class Report:
    latencies: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    """By phase and kind, in seconds."""
    floods: list[dict[str, int]] = field(default_factory=list)
    flood_s: float = 0.0
    resident_bytes: list[int] = field(default_factory=list)
    """When all is set up, and at the end of each flood."""
    processor_s: dict[str, float] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for kind in TOPICS:
            for phase in PHASES:
                times = sorted(self.latencies[phase, kind])
                found[f"{kind}_{phase}_p50_us"] = round(1e6 * median(times))
                found[f"{kind}_{phase}_p99_us"] = round(1e6 * times[len(times) * 99 // 100])
                found[f"{kind}_{phase}_messages"] = len(times)
            ratio = found[f"{kind}_flood_p99_us"] / found[f"{kind}_calm_p99_us"]
            found[f"{kind}_p99_flood_to_calm"] = round(ratio, 2)
        for word in ("connected", "ended"):
            total = sum(each[word] for each in self.floods)
            found[f"flood_{word}_per_s"] = round(total / self.flood_s)
        found["flood_open"] = [each["open"] for each in self.floods]
        found["resident_mib"] = [round(each / MIB, 1) for each in self.resident_bytes]
        found["node_processor_share"] = {k: round(v, 2) for k, v in self.processor_s.items()}
        return found


class Flooding:
    """One run against one node."""

    def __init__(
        self, node: Node, half_open: int, garbage: int, rounds: int, phase_s: float, seed: int
    ) -> None:
        self.report = Report()
        self._node = node
        self._order = {"half_open": half_open, "garbage": garbage, "seed": seed}
        self._rounds = rounds
        self._phase_s = phase_s
        self._phase: str | None = None

    async def run(self, progress: Callable[[str], None]) -> Report:
        flooder = subprocess.Popen(
            [sys.executable, "-m", "tests.node.flooder", self._node.address,
             self._node.told["peer"]],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        with flooder:  # closes its pipes and waits for it
            try:
                async with trio.open_nursery() as nursery:
                    stop = trio.Event()
                    for kind in TOPICS:
                        await nursery.start(self._behave, kind, stop)
                    await self._turns(flooder, progress)
                    stop.set()
            finally:
                flooder.kill()
        return self.report

    async def _turns(self, flooder: Flooder, progress: Callable[[str], None]) -> None:
        report = self.report
        await trio.sleep(1)
        report.resident_bytes.append(self._resident_bytes())
        for number in range(self._rounds):
            await self._measure("calm")
            await self._tell(flooder)
            await trio.sleep(1)  # until all have come
            began = time.monotonic()
            await self._measure("flood")
            await self._check_health()
            report.resident_bytes.append(self._resident_bytes())
            report.floods.append(await self._tell(flooder))
            report.flood_s += time.monotonic() - began + 1
            await self._all_gone()
            progress(f"round {number + 1}: {report.floods[-1]}")

    async def _measure(self, phase: str) -> None:
        cpu, began = self._processor_s(), time.monotonic()
        self._phase = phase
        await trio.sleep(self._phase_s)
        self._phase = None
        share = (self._processor_s() - cpu) / (time.monotonic() - began)
        self.report.processor_s[phase] = max(share, self.report.processor_s.get(phase, 0.0))

    async def _tell(self, flooder: Flooder) -> Any:
        def tell() -> str:
            assert flooder.stdin is not None
            assert flooder.stdout is not None
            flooder.stdin.write(json.dumps(self._order) + "\n")
            flooder.stdin.flush()
            return flooder.stdout.readline()

        return json.loads(await trio.to_thread.run_sync(tell))

    async def _all_gone(self) -> None:
        """Nothing of a flood may stay behind."""
        clients = waiting = 0.0
        with trio.move_on_after(PATIENCE_S) as patience:
            while True:
                metrics = await self._get("/metrics")
                clients = value(metrics, "busnode_clients ")
                waiting = value(metrics, 'busnode_half_open{door="clients"} ')
                waiting += value(metrics, 'busnode_half_open{door="nodes"} ')
                if clients == 2 * len(TOPICS) and not waiting:
                    return
                await trio.sleep(0.1)
        assert patience.cancelled_caught
        self.report.wrong.append(f"{clients} clients and {waiting} strangers stay behind")

    async def _check_health(self) -> None:
        found = await self._get("/health/ready")
        if not found.startswith("HTTP/1.1 200"):
            self.report.wrong.append(f"under the flood it says of its health: {found[:200]}")

    async def _get(self, path: str) -> str:
        host, _, port = self._node.told["http"].rpartition(":")
        with trio.fail_after(PATIENCE_S):
            async with await trio.open_tcp_stream(host, int(port)) as stream:
                await stream.send_all(REQUEST.format(path).encode())
                return b"".join([part async for part in stream]).decode()

    def _resident_bytes(self) -> int:
        pages = int(Path(f"/proc/{self._node.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def _processor_s(self) -> float:
        words = Path(f"/proc/{self._node.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    # The well-behaved client ----------------------------------------------------------------------

    async def _behave(
        self, kind: str, stop: trio.Event, task_status: trio.TaskStatus[None]
    ) -> None:
        sent: dict[bytes, tuple[float, str | None]] = {}
        url = self._node.url
        async with (
            connect(url, name=f"{kind} publisher", deadline_s=PATIENCE_S) as out,
            connect(url, name=f"{kind} consumer", deadline_s=PATIENCE_S) as back,
            back.subscribe(f"/good/{kind}", on_gap="raise") as messages,
        ):
            task_status.started()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._publish, out, kind, sent, stop)
                try:
                    await self._consume(messages, kind, sent)
                except trio.TooSlowError:
                    self.report.wrong.append(f"a {kind} message never came")
                    nursery.cancel_scope.cancel()
            connections = out.statistics().connections, back.statistics().connections
            if connections != (1, 1):
                self.report.wrong.append(f"the good client had to connect again: {connections}")

    async def _publish(
        self, out: Bus, kind: str, sent: dict[bytes, tuple[float, str | None]], stop: trio.Event
    ) -> None:
        for number in count():
            payload = b"end" if stop.is_set() else b"%d" % number
            sent[payload] = time.perf_counter(), self._phase
            await out.publish(f"/good/{kind}", payload, persistent=TOPICS[kind])
            if payload == b"end":
                break
            await trio.sleep(PACE_S)

    async def _consume(
        self, messages: Subscription, kind: str, sent: dict[bytes, tuple[float, str | None]]
    ) -> None:
        for number in count():
            with trio.fail_after(PATIENCE_S):
                message = await anext(messages)
            if message.payload == b"end":
                break
            if message.payload != b"%d" % number:
                self.report.wrong.append(f"{message.payload!r} came in place of {number}")
            at, phase = sent.pop(message.payload)
            if phase is not None:
                took_s = time.perf_counter() - at
                self.report.latencies.setdefault((phase, kind), []).append(took_s)


def value(metrics: str, name: str) -> int:
    (line,) = [line for line in metrics.splitlines() if line.startswith(name)]
    return int(float(line.rpartition(" ")[2]))


async def flood(
    folder: Path, half_open: int, garbage: int, rounds: int, phase_s: float, seed: int,
    progress: Callable[[str], None], **options: str,
) -> Report:  # fmt: skip
    """Everything from starting a node to its end."""
    node = Node(
        f"flood-{os.urandom(6).hex()}", "n1", folder, log_level="info", mdns="off",
        http_port="0", **options,
    )  # fmt: skip
    await trio.to_thread.run_sync(node.start)
    try:
        report = await Flooding(node, half_open, garbage, rounds, phase_s, seed).run(progress)
    finally:
        node.end()
    log = (folder / "n1.log").read_text()
    if failure := logged_failure(log):
        report.wrong.append(f"the node has logged a failure: {failure}")
    if len(log) > MIB:
        report.wrong.append(f"the node has logged {len(log)} bytes")
    return report


def main() -> None:
    words = argparse.ArgumentParser("scripts/flood", description=__doc__)
    words.add_argument("--half-open", type=int, default=5000)
    words.add_argument("--garbage", type=int, default=1000)
    words.add_argument("--rounds", type=int, default=3)
    words.add_argument("--seconds", type=float, default=8.0)
    words.add_argument("--seed", type=int, default=1)
    given = words.parse_args()
    with tempfile.TemporaryDirectory(prefix=".busnode-flood-", dir=".") as folder:

        def progress(line: str) -> None:
            print(line, file=sys.stderr, flush=True)

        report = trio.run(
            flood, Path(folder), given.half_open, given.garbage, given.rounds, given.seconds,
            given.seed, progress,
        )  # fmt: skip
    print(json.dumps(report.as_json(), indent=2))
    for sentence in report.wrong:
        print(sentence)
    sys.exit(bool(report.wrong))


if __name__ == "__main__":
    main()
