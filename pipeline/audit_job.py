"""The two stages of an audit, one after the other."""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from busnode.pipeline.audit import EXTENT_COLUMNS, LOG, copy_extents, findings, suspects
from busnode.pipeline.origins import origins, origins_frame
from busnode.pipeline.sources import Source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Audited:
    """What an audit has looked at, and found."""

    logs: int
    copies: int
    messages: int
    suspects: int
    extents: tuple[dict[str, Any], ...]
    findings: tuple[dict[str, Any], ...]

    def fields(self) -> dict[str, Any]:
        return asdict(self)


def audit(spark: "SparkSession", source: Source, topics: str, *, deep: bool = False) -> Audited:
    """Count the messages of all copies, and read those logs whole that do not look alike."""
    headers = source.load(spark, topics, EXTENT_COLUMNS, copies="all", failOnDataLoss="false")
    extents = copy_extents(headers).drop("mark") if deep else copy_extents(headers)
    kept = extents.orderBy(*LOG, "holder").cache()
    rows = [row.asDict() for row in kept.collect()]
    chosen = kept.select(*LOG).distinct() if deep else suspects(kept)
    named = [row.asDict() for row in chosen.collect()]
    found: list[dict[str, Any]] = []
    if named:
        copies = source.load(spark, topics, copies="all", failOnDataLoss="false")
        names: Any = chosen
        told: Any = origins_frame(spark, source.names)
        found = [row.asDict() for row in findings(copies, names, told).collect()]
    kept.unpersist()
    written_by = origins(source.names)
    for row in rows:
        row.pop("mark", None)
        row["origin"] = written_by.get(row["broker_id"])
    return Audited(
        len({(row["broker_id"], row["topic"]) for row in rows}),
        len(rows),
        sum(row["messages"] for row in rows),
        len(named),
        tuple(rows),
        tuple(found),
    )
