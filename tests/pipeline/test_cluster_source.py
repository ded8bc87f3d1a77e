"""Tables and streams of a running cluster: over the client protocol, while nodes die."""

from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from busnode.pipeline.cluster import Cluster, ClusterRange
from busnode.pipeline.record_rows import RecordRows, Span
from busnode.testing import BusCluster
from busnode.wire.errors import DataLost
from busnode.wire.ids import BrokerId, Pattern

pytestmark = pytest.mark.spark

COUNT = 3000


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[BusCluster]:
    with BusCluster(tmp_path, nodes=3) as nodes:
        yield nodes


def publish(nodes: BusCluster, count: int = COUNT) -> set[tuple[str, str, int, bytes]]:
    """Messages at each node; as rows."""
    rows: set[tuple[str, str, int, bytes]] = set()
    for node in nodes.nodes:
        bus = nodes.bus(node)
        for topic in ("/plant/a", "/plant/b"):
            with bus.publisher(topic, persistent=True, require="mirrored") as out:
                payloads = [b"%s %d" % (node.name.encode(), number) for number in range(count)]
                for payload in payloads:
                    out.send(payload)
                receipts = list(out.flush())
            assert {receipt.level for receipt in receipts} == {"mirrored"}
            rows |= {
                (receipt.broker_id.hex(), topic, receipt.msg_no, payload)
                for receipt, payload in zip(receipts, payloads, strict=True)
            }
    return rows


def rows_of(frame: DataFrame) -> list[tuple[str, str, int, bytes]]:
    found = frame.select("broker_id", "topic", "msg_no", "payload").collect()
    return [(row[0], row[1], row[2], bytes(row[3])) for row in found]


def test_a_running_cluster_is_read_whole_while_a_node_is_killed(
    spark: SparkSession, cluster: BusCluster
) -> None:
    expected = publish(cluster)
    victim = cluster.nodes[1]
    reader = spark.read.format("busnode").option("url", cluster.url).option("topics", "/plant/*")
    assert set(rows_of(reader.load())) == expected
    killer = Thread(target=cluster.kill, args=(victim,))
    frame = reader.load()
    killer.start()
    found = rows_of(frame)
    killer.join()
    assert len(found) == len(expected)
    assert set(found) == expected
    again = rows_of(reader.load())  # with the node gone for good
    assert len(again) == len(expected)
    assert set(again) == expected


def test_a_range_is_read_on_from_another_node_when_one_dies_in_its_middle(
    cluster: BusCluster,
) -> None:
    victim = cluster.nodes[0]
    payloads = [b"%d" % number + bytes(10_000) for number in range(2000)]  # more than is sent ahead
    with cluster.bus(victim).publisher("/plant/a", persistent=True, require="mirrored") as out:
        for payload in payloads:
            out.send(payload)
    logs = Cluster(victim.url, Pattern("/plant/a"))  # it learns of the others there
    ((log_id, extent),) = logs.extents().items()
    assert extent == (1, 2000)
    (part,) = logs.ranges(log_id, Span(1, 2000), None)
    schema = pa.schema({"msg_no": pa.int64(), "payload": pa.binary(), "holder": pa.string()})
    made = RecordRows(schema, log_id, part.span)
    stretches = logs.read(part)
    batches = list(made.add(next(stretches)))
    cluster.kill(victim, wait=False)
    for stretch in stretches:
        batches += made.add(stretch)
    batches += made.finish()
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert [row["msg_no"] for row in rows] == [*range(1, 2001)]
    assert [row["payload"] for row in rows] == payloads
    assert len({row["holder"] for row in rows}) == 2


def test_what_nobody_has_is_an_error(cluster: BusCluster) -> None:
    publish(cluster, 10)
    logs = Cluster(cluster.url, Pattern("/plant/a"))
    log_id = next(iter(logs.extents()))
    (part,) = logs.ranges(log_id, Span(8, 10), None)
    nobody = log_id._replace(broker_id=BrokerId(bytes(16)))
    unknown = ClusterRange(nobody, part.span, ())
    assert [each.first_no for each in logs.read(part)] == [8]
    with pytest.raises(DataLost, match="no node that is up has this log"):
        list(logs.read(unknown))
    with pytest.raises(DataLost, match="messages 1–3"):
        logs.ranges(nobody, Span(1, 3), None)


def test_a_stream_follows_a_running_cluster(
    spark: SparkSession, cluster: BusCluster, tmp_path: Path
) -> None:
    expected = publish(cluster, 500)
    stream = (
        spark.readStream.format("busnode")
        .option("url", cluster.url)
        .option("topics", "/plant/*")
        .option("maxRowsPerTrigger", 1100)
        .load()
    )

    def drain() -> list[tuple[str, str, int, bytes]]:
        query = (
            stream.writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .option("path", str(tmp_path / "rows"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
        return rows_of(spark.read.parquet(str(tmp_path / "rows")))

    found = drain()
    assert len(found) == len(expected)
    assert set(found) == expected
    cluster.kill(cluster.nodes[2])
    bus = cluster.bus(cluster.nodes[0])
    bus.publish("/plant/c", b"later", persistent=True)
    found = drain()
    assert len(found) == len(expected) + 1
    assert expected < set(found)


def test_a_url_that_is_none_is_refused(spark: SparkSession) -> None:
    reader = spark.read.format("busnode").option("url", "tcp://127.0.0.1:1")
    with pytest.raises(PySparkException, match="option url"):
        reader.load().count()
