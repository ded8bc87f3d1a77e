"""`busnode pipeline traffic`, `health`, `tasks`, `audit` and `report`."""
# ruff: noqa: PLC0415 - Spark and what needs it is imported when a job is run

from typing import Any

import click

from busnode.pipeline.command_words import (
    json_option,
    master_option,
    moment_of,
    reading,
    rows_of,
    running,
    say,
    show,
    source_of,
    topics_option,
    window_of,
)
from busnode.pipeline.output import show_json, show_rows
from busnode.wire.ids import Pattern
from busnode.world.real_process import absolute


@click.command()
@reading
@topics_option()
@click.option(
    "--window", metavar="TIME", default="1 minute", show_default=True, callback=window_of,
    help="How long a window is: '30 seconds', '1 hour'.",
)  # fmt: skip
@click.option("--totals", is_flag=True, help="A row for each topic, over all of the time.")
@click.option(
    "--sent-header", default="sent_us", show_default=True,
    help="The header with the time from which latency counts, in µs since 1970.",
)  # fmt: skip
@master_option
@json_option
def traffic(
    topics: Pattern, window: str, totals: bool, sent_header: str, master: str, as_json: bool,
    **words: Any,
) -> None:  # fmt: skip
    """Rates, sizes and latencies for each topic, producer and window of time.

    Latency is the time from when a header says that something has happened, or else from the first
    message with the same id on any topic, to the message. Where a message tells neither, it has
    none.
    """
    from busnode.pipeline import traffic as job

    source = source_of(words, topics)
    with running("traffic", master) as spark:
        messages = source.load(spark, topics, job.COLUMNS)
        found = (
            job.topic_totals(messages, sent_header)
            if totals
            else job.traffic(messages, window, sent_header)
        )
        rows = rows_of(found)
    show(rows, "no message matches", as_json=as_json)


@click.command()
@reading
@topics_option("/heartbeat/*")
@click.option(
    "--unresponsive", "unresponsive_s", metavar="S", default=30.0, show_default=True,
    help="Seconds of silence after which a service is so.",
)  # fmt: skip
@click.option(
    "--dead", "dead_s", metavar="S", default=120.0, show_default=True,
    help="Seconds of silence after which it is dead.",
)  # fmt: skip
@click.option("--at", metavar="TIME", help="As of this time, and not of now.")
@click.option("--changes", is_flag=True, help="All changes, and not how it is at the end.")
@master_option
@json_option
def health(
    topics: Pattern, unresponsive_s: float, dead_s: float, at: str | None, changes: bool,
    master: str, as_json: bool, **words: Any,
) -> None:  # fmt: skip
    """Which services are healthy, unresponsive or dead, by their heartbeats.

    A heartbeat is any persistent message under --topics. The service is named by the message's
    header `service`, or else by its topic.
    """
    from busnode.pipeline import health as job
    from busnode.pipeline.pulse import Patience

    if not 0 < unresponsive_s < dead_s:
        raise click.UsageError("--unresponsive must be more than 0 and less than --dead")
    as_of = moment_of(at)
    source = source_of(words, topics)
    with running("health", master, **job.ROCKSDB) as spark:
        beats = job.heartbeats(source.load(spark, topics, job.COLUMNS))
        found = job.health(beats, as_of, Patience(unresponsive_s, dead_s))
        rows = rows_of(found.orderBy("at", "service") if changes else job.standing(found))
    show(rows, f"no heartbeat on {topics}", as_json=as_json)


@click.command()
@reading
@click.option("--dead", is_flag=True, help="Dead letters by error, and not all queues.")
@master_option
@json_option
def tasks(dead: bool, master: str, as_json: bool, **words: Any) -> None:
    """What became of tasks: attempts, time to completion, dead letters by error.

    Counts all tasks that the logs still have, those of nodes that are gone included.
    """
    from busnode.pipeline import journal_rows
    from busnode.pipeline import task_outcomes as job

    source = source_of(words)
    with running("tasks", master) as spark:
        found = job.task_outcomes(
            source.load(spark, job.TASK_LOGS, job.COLUMNS),
            journal_rows.journal_rows(source.load(spark, job.JOURNALS, journal_rows.COLUMNS)),
        )
        rows = rows_of(job.dead_letters(found) if dead else job.queue_totals(found))
    show(rows, "no dead letter" if dead else "no task", as_json=as_json)


@click.command()
@reading
@topics_option()
@click.option("--deep", is_flag=True, help="Compare every message of every copy.")
@master_option
@json_option
@click.pass_context
def audit(
    context: click.Context, /, topics: Pattern, deep: bool, master: str, as_json: bool, **words: Any
) -> None:
    """Compare all copies of all logs: holes, repeats, and differences between them.

    \b
      busnode pipeline audit busnode-data/n1 busnode-data/n2 busnode-data/n3

    First it counts the messages of each copy; what does not look alike is then read whole. Ends
    with exit code 1 when it has found something. `short` is what other copies have before or
    behind all of one: it has expired there, or is still to come.
    """
    source = source_of({**words, "tolerant": True}, topics)
    if source.is_cluster:
        raise click.UsageError("an audit compares copies on disks: name data directories")
    from busnode.pipeline.audit_job import audit as run

    with running("audit", master) as spark:
        done = run(spark, source, topics, deep=deep)
    if as_json:
        show_json(done.fields())
    else:
        show_rows(done.findings, "all copies are whole and the same")
        click.echo(
            f"{done.messages:,} messages in {done.copies:,} copies of {done.logs:,} logs; "
            f"{done.suspects:,} logs read whole; {len(done.findings):,} findings"
        )
    if done.findings:
        context.exit(1)


@click.command()
@reading
@click.option("--to", metavar="FILE", default="report.html", show_default=True, help="The page.")
@click.option("--title", default="busnode", show_default=True, help="What stands at its top.")
@click.option("--at", metavar="TIME", help="Judge services as of this time, and not of now.")
@topics_option()
@master_option
@json_option
def report(
    to: str,
    title: str,
    at: str | None,
    topics: Pattern,
    master: str,
    as_json: bool,
    **words: Any,
) -> None:
    """Draw traffic, health, tasks and the audit of copies as one page that needs nothing else.

    \b
      busnode pipeline report busnode-data/* --to report.html
    """
    from busnode.pipeline.health import ROCKSDB
    from busnode.pipeline.report import report as run
    from busnode.world.files import replace_whole
    from busnode.world.real_files import RealFiles

    moment = moment_of(at)
    source = source_of(words, topics)
    with running("report", master, **ROCKSDB) as spark:
        page, told = run(spark, source, topics, title, moment, say)
    path = absolute(to)
    replace_whole(RealFiles(), path, page.encode(), durable=False)
    if as_json:
        show_json({"file": path, **told})
    else:
        click.echo(f"{to}: {told['messages']:,} messages, {len(page.encode()):,} bytes")
