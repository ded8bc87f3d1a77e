"""`busnode bench`: how fast this machine is, measured against what it can do at most."""
# ruff: noqa: PLC0415 - a workload is imported when it is run

import json
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, cast

import click

from busnode.node.presentation import Column, show_table
from busnode.world.files import remove_tree

if TYPE_CHECKING:
    from busnode.node.bench_stage import Bench

Report = dict[str, Any]
Workload = Callable[["Bench"], Report]

SCRATCH: Final = ".busnode-bench"
RECOVERY_MIB: Final = 1024

WORKLOADS: Final = {
    "segments": "busnode.node.cli_bench:segments",
    "live": "busnode.node.bench_bus:bench_live",
    "fanout": "busnode.node.bench_bus:bench_fanout",
    "durable": "busnode.node.bench_bus:bench_durable",
    "replay": "busnode.node.bench_bus:bench_replay",
    "request": "busnode.node.bench_bus:bench_request",
    "cluster": "busnode.node.bench_cluster:bench_cluster",
    "mirrored": "busnode.node.bench_mirrored:bench_mirrored",
    "tls": "busnode.node.bench_tls:bench_tls",
    "tasks": "busnode.node.bench_tasks:bench_tasks",
    "memory": "busnode.node.bench_footprint:bench_memory",
    "start": "busnode.node.bench_footprint:bench_start",
    "spark": "busnode.node.cli_bench:spark",
}
"""Each by its name: where it is found."""

WHEN_NAMED: Final = {"spark"}
"""Those that take more than busnode alone, and are only run when they are named."""

SPARK_ROWS: Final = 1_000_000
SPARK_ROUNDS: Final = 7
"""At least: the best of them counts, since a JVM is at its best only after some."""


def segments(bench: "Bench") -> Report:
    from busnode.node.bench_segments import bench_segments

    recovery_mib = max(1, round(RECOVERY_MIB * bench.scale))
    return bench_segments(bench.world, bench.directory, bench.rounds, recovery_mib, bench.progress)


def spark(bench: "Bench") -> Report:
    try:
        from busnode.pipeline.bench import PAYLOAD_BYTES, bench_spark
    except ImportError as error:
        raise click.ClickException(
            f"{error.name} is not installed: pip install 'busnode[spark]'"
        ) from error
    rounds = max(bench.rounds, SPARK_ROUNDS)
    rows = bench.messages(SPARK_ROWS)
    return {
        **bench.report("spark", PAYLOAD_BYTES),
        **bench_spark(bench.world, bench.directory, rows, rounds, bench.progress),
        "rounds": rounds,
    }


def _workload(name: str) -> Workload:
    module, _, function = WORKLOADS[name].partition(":")
    return cast(Workload, getattr(import_module(module), function))


@click.command()
@click.argument("workloads", nargs=-1, type=click.Choice(list(WORKLOADS)), metavar="[WORKLOAD]...")
@click.option(
    "--rounds",
    default=3,
    show_default=True,
    type=click.IntRange(3),
    help="How often each is measured, for the median.",
)
@click.option(
    "--dir", "directory", default=".", show_default=True, help="A folder on the disk to measure."
)
@click.option(
    "--scale",
    default=1.0,
    show_default=True,
    type=click.FloatRange(0, min_open=True),
    help="How much is measured: 0.1 is a tenth, and less sure.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
def bench(
    workloads: tuple[str, ...], rounds: int, directory: str, scale: float, as_json: bool
) -> None:
    """Measure workloads (all but spark unless some are named) and print medians.

    \b
    segments  what checking, appending, scanning and recovering cost
    live      one publisher to one consumer, messages that are not persistent
    fanout    one publisher to 10 and to 100 subscribers
    durable   persistent messages, acked after they were synced to disk
    replay    a log of 1 GiB read from its beginning
    request   round trips to a provider
    cluster   the same across two nodes, in turns with one of them alone
    mirrored  acked from two disks, in turns with one, and how fast a new mirror catches up
    tasks     enqueued, given to workers and completed, also beside a million that wait
    memory    of a node, idle and with a reader that has stopped 1 GiB behind
    start     of a node until it is ready
    spark     scans of a log by Spark, in turns with Parquet; the best of 7 rather than medians

    All but the first run a node and its clients in processes of their own. Machines differ and
    are noisy: look at the ratios, which compare two things measured in turns in the same run, and
    at what each process uses of processors for a message.
    """
    from busnode.node.bench_stage import Bench
    from busnode.world.real_process import absolute
    from busnode.world.real_world import real_world

    world = real_world()
    scratch = f"{absolute(directory)}/{SCRATCH}-{world.entropy.u64():016x}"
    reports: Report = {}
    with _leaving_in_order():
        for name in workloads or [each for each in WORKLOADS if each not in WHEN_NAMED]:
            world.files.make_directory(scratch)
            given = Bench(world, scratch, rounds, scale, _Progress(name))
            try:
                reports[name] = _workload(name)(given)
            finally:
                remove_tree(world.files, scratch)
    if as_json:
        click.echo(json.dumps(reports, indent=2))
        return
    for name, report in reports.items():
        columns = [Column(name), Column("median", justify="right")]
        show_table(columns, [list(row) for row in _rows(report)])


@contextmanager
def _leaving_in_order() -> Generator[None, None, None]:
    """SIGTERM leaves as Ctrl-C does: no process and no scratch folder of ours stays behind."""
    import signal

    def leave(number: int, _: object) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Progress:
    """Says on a terminal what is being measured."""

    def __init__(self, workload: str) -> None:
        self._workload = workload

    def __call__(self, step: str) -> None:
        if sys.stderr.isatty():
            click.echo(f"{self._workload}: {step} …", err=True)


def _rows(report: Report, prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in report.items():
        label = f"{prefix}{key.replace('_', ' ')}"
        if isinstance(value, dict):
            yield from _rows(cast(Report, value), f"{label}: ")
        elif isinstance(value, str):
            yield label, value
        else:
            yield label, f"{value:,}"
