"""`busnode sim`: a simulated cluster under faults, from a seed, in virtual time."""
# ruff: noqa: PLC0415 - the help does without the simulator, trio and rich

import json
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import click

from busnode.node.presentation import Column, Lines, counted, duration, show_table, terminal
from busnode.world.real_clock import RealClock

if TYPE_CHECKING:
    from busnode.testing.sim.campaign import Report, Totals
    from busnode.testing.sim.run import Outcome
    from busnode.world.files import Files

VIOLATIONS_TOLD: Final = 5
"""Of one seed: the others are, as a rule, what follows from these."""

FAILED_TOLD: Final = 10


@click.command()
@click.option("--seed", metavar="N", type=int, help="Run this seed, or begin with it.")
@click.option(
    "--seeds", metavar="K", type=click.IntRange(1), help="Run so many seeds, one after the other."
)
@click.option(
    "--minutes", metavar="M", type=click.FloatRange(0, min_open=True), help="Run seeds for so long."
)
@click.option(
    "--processes", metavar="P", type=click.IntRange(1), help="As many as there are cores, unless."
)
@click.option("--trace", metavar="FILE", help="Write what happened, a line for each event.")
@click.option("--picture", metavar="FILE", help="Draw nodes, faults and the lost message, as SVG.")
@click.option("--shrink", is_flag=True, help="Look for the fewest faults with which it fails.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
def sim(
    seed: int | None,
    seeds: int | None,
    minutes: float | None,
    processes: int | None,
    trace: str | None,
    picture: str | None,
    shrink: bool,
    as_json: bool,
) -> None:
    """Run a cluster in one process and in virtual time, under faults, and judge every promise.

    A seed decides everything that happens: the same seed is the same run, on every machine. With
    --seeds or --minutes many seeds are run on all cores, and each that fails is named with the
    command that runs it again. A single seed may be traced, drawn and shrunk.

    The exit code is 1 when a promise was broken.
    """
    if seeds is None and minutes is None:
        failed = _run_one(seed or 0, trace, picture, shrink, as_json)
    else:
        if trace or picture or shrink:
            raise click.UsageError("--trace, --picture and --shrink are for a single seed")
        failed = _run_many(seed or 0, seeds, minutes, processes, as_json)
    if failed:
        sys.exit(1)


# One seed -----------------------------------------------------------------------------------------


def _run_one(
    seed: int, trace: str | None, picture: str | None, shrinks: bool, as_json: bool
) -> bool:
    from busnode.testing.sim.campaign import Totals, report
    from busnode.testing.sim.picture import draw
    from busnode.testing.sim.run import run_seed
    from busnode.testing.sim.shrink import shrink
    from busnode.world.real_process import absolute
    from busnode.world.real_world import real_world

    files = real_world().files
    lines: list[str] = []
    began = RealClock().monotonic()
    outcome = run_seed(seed, told=lines.append if trace else None)
    took_s = RealClock().monotonic() - began
    if shrinks and outcome.violations:
        with _bar("shrinking", len(outcome.schedule)) as left:
            outcome = shrink(outcome, left)
        if trace:
            lines.clear()
            run_seed(seed, only=outcome.schedule, told=lines.append)
    if trace:
        _write(files, absolute(trace), "".join(lines))
    if picture:
        _write(files, absolute(picture), draw(outcome))
    totals = Totals()
    totals.add(report(outcome))
    if as_json:
        click.echo(json.dumps(_told(totals, took_s)))
    else:
        if shrinks and outcome.violations:
            _show_schedule(outcome)
        _show(totals, took_s)
    return bool(outcome.violations)


def _show_schedule(outcome: "Outcome") -> None:
    kept = counted(len(outcome.schedule), "fault")
    Lines().write([[(f"{kept} with which it fails", "bold")]])
    Lines().write([[(f"  {entry}", "")] for entry in outcome.schedule])


def _write(files: "Files", path: str, text: str) -> None:
    from busnode.world.files import replace_whole

    replace_whole(files, path, text.encode(), durable=False)


# Many seeds ---------------------------------------------------------------------------------------


def _run_many(
    first: int, seeds: int | None, minutes: float | None, processes: int | None, as_json: bool
) -> bool:
    from busnode.testing.sim.campaign import Totals, run_reported
    from busnode.world.real_workers import call_in_processes, cores

    clock = RealClock()
    began = clock.monotonic()
    ends = None if minutes is None else began + 60 * minutes

    def wanted() -> Iterator[int]:
        for seed in count(first) if seeds is None else range(first, first + seeds):
            if ends is not None and clock.monotonic() >= ends:
                return
            yield seed

    totals = Totals()
    total = seeds if ends is None else None
    with _bar("seeds", total, minutes) as done:
        for run in call_in_processes(run_reported, wanted(), processes or cores()):
            totals.add(run)
            done(totals.seeds)
            if run.violations and not as_json:
                _show_failure(run)
    took_s = clock.monotonic() - began
    if as_json:
        click.echo(json.dumps(_told(totals, took_s)))
    else:
        _show(totals, took_s, failures=False)
    return bool(totals.failed)


@contextmanager
def _bar(
    title: str, total: int | None, minutes: float | None = None
) -> Generator[Callable[[int], None]]:
    """A bar on stderr, if that is a terminal; call what it gives with how much is done."""
    on = terminal(sys.stderr)
    if on is None:
        yield lambda _: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    clock = RealClock()
    began = clock.monotonic()
    with Progress(*columns, TimeElapsedColumn(), console=on, transient=True) as bar:
        task = bar.add_task(title, total=total or round(60 * (minutes or 1)))

        def told(done: int) -> None:
            if total is None:
                elapsed_s = round(clock.monotonic() - began)
                bar.update(task, completed=elapsed_s, description=f"{done} seeds; seconds")
            else:
                bar.update(task, completed=done)

        yield told


# What people see ----------------------------------------------------------------------------------


def _show(totals: "Totals", took_s: float, *, failures: bool = True) -> None:
    kinds = sorted({*totals.faults, *totals.skipped})
    columns = [
        Column("fault"), Column("struck", "right"), Column("not possible", "right"),
    ]  # fmt: skip
    rows = [[kind, f"{totals.faults[kind]:,}", f"{totals.skipped[kind] or '':}"] for kind in kinds]
    show_table(columns, rows)
    Lines().write(
        [
            [],
            [
                (counted(totals.seeds, "seed"), "bold"),
                (
                    f", {counted(sum(totals.faults.values()), 'fault')} of {len(totals.faults)} "
                    f"kinds, {totals.simulated_s / 3600:.2f} cluster-hours simulated in "
                    f"{duration(took_s)}",
                    "",
                ),
            ],
            [(f"{totals.acked:,} messages acked, {totals.delivered:,} deliveries", "")],
        ]
    )
    if failures:
        for run in totals.failed[:FAILED_TOLD]:
            _show_failure(run)
    if totals.failed:
        seeds = " ".join(str(run.seed) for run in totals.failed)
        Lines().write([[(f"{counted(len(totals.failed), 'seed')} failed: {seeds}", "bold red")]])
    else:
        Lines().write([[("no promise was broken", "bold green")]])


def _show_failure(run: "Report") -> None:
    lines = Lines()
    lines.write([[(f"seed {run.seed} broke a promise:", "bold red")]])
    for _, text in run.violations[:VIOLATIONS_TOLD]:
        lines.remark(text)
    if len(run.violations) > VIOLATIONS_TOLD:
        lines.remark(f"and {len(run.violations) - VIOLATIONS_TOLD} more")
    lines.remark(f"again: busnode sim --seed {run.seed} --shrink --trace trace --picture sim.svg")


def _told(totals: "Totals", took_s: float) -> dict[str, Any]:
    return {
        "seeds": totals.seeds,
        "faults": dict(sorted(totals.faults.items())),
        "skipped": dict(sorted(totals.skipped.items())),
        "cluster_s": round(totals.simulated_s, 3),
        "node_s": round(totals.node_s, 3),
        "acked": totals.acked,
        "delivered": totals.delivered,
        "took_s": round(took_s, 3),
        "failed": [
            {
                "seed": run.seed, "trace_hash": run.digest,
                "violations": [text for _, text in run.violations],
            }
            for run in totals.failed
        ],
    }  # fmt: skip
