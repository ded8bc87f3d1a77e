"""Metrics for Prometheus, read from the node's own counters when somebody asks for them.

Nothing is counted for the sake of this: a message costs no more because it is measured. What must
be added up over all logs and subscriptions is added up in slices, with others having their turn
between them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import trio
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from busnode import __version__
from busnode.node.peers import Peers
from busnode.node.status import unready
from busnode.node.task_metrics import QueueSums, add_up_queues, task_metrics
from busnode.node.traffic import Traffic

if TYPE_CHECKING:
    from busnode.node.node import RunningNode

SLICE: Final = 2000
"""Logs, or places in them, that are added up before others have their turn: 2 ms."""


@dataclass(slots=True)
class Sums:
    """What must be added up."""

    logs: int = 0
    stored_bytes: int = 0
    holes: int = 0
    copies: int = 0
    """Logs that other nodes have written."""
    subscriptions: int = 0
    behind: int = 0
    traffic: Traffic = field(default_factory=Traffic)
    queues: QueueSums = field(default_factory=QueueSums)


async def render(node: "RunningNode") -> tuple[bytes, str]:
    """The text for one scrape, and its content type."""
    registry = CollectorRegistry()
    registry.register(NodeCollector(node, await add_up(node)))
    ProcessCollector(registry=registry)
    return generate_latest(registry), CONTENT_TYPE_PLAIN_0_0_4


async def add_up(node: "RunningNode") -> Sums:
    sums = Sums()
    for sums.logs, log in enumerate(node.store.logs(), start=1):
        sums.stored_bytes += log.size_bytes
        sums.holes += len(log.holes())
        sums.copies += log.log_id.broker_id not in node.ownership
        if sums.logs % SLICE == 0:
            await trio.lowlevel.checkpoint()
    places = 0
    gone = node.departed
    sums.traffic.add(gone.received_bytes, gone.sent_bytes, gone.dropped)
    for session in list(node.sessions.values()):
        mine = list(node.subscriptions.of(session).values())
        dropped = sum(subscription.dropped_total for subscription in mine)
        sums.traffic.add(session.received_bytes, session.outgoing.sent_bytes, dropped)
        for subscription in mine:
            sums.subscriptions += 1
            sums.behind += subscription.behind
            reading = node.subscriptions.readings.get(subscription)
            if reading is not None:
                sums.behind += reading.behind
                places += len(reading.cursors)
            places += 1 + len(subscription.cursors)
            if places >= SLICE:
                places = 0
                await trio.lowlevel.checkpoint()
    sums.queues = await add_up_queues(node.task_queues)
    return sums


class NodeCollector(Collector):
    """One node's counters, as they are now."""

    def __init__(self, node: "RunningNode", sums: Sums) -> None:
        self._node = node
        self._sums = sums

    def collect(self) -> Iterator[Metric]:
        node, sums = self._node, self._sums
        yield self._about()
        yield self._events()
        yield _gauge("ready", "1 while clients should come here.", unready(node) is None)
        yield _gauge("draining", "1 while the node is leaving.", node.draining)
        uptime_s = node.world.clock.monotonic() - node.started_at
        yield _gauge("uptime_seconds", "Time since the node began.", uptime_s)
        yield _counter("incarnations", "BrokerIds used since the start.", node.incarnations.count)

        yield _gauge("clients", "Clients connected now.", len(node.sessions))
        yield _gauge("subscriptions", "Subscriptions of all clients.", sums.subscriptions)
        yield _gauge("behind_messages", "Committed messages that await sending.", sums.behind)
        yield _counter("received_bytes", "Bytes from clients.", sums.traffic.received_bytes)
        yield _counter("sent_bytes", "Bytes to clients.", sums.traffic.sent_bytes)
        dropped = "Messages that were not persistent, dropped for slow subscribers."
        yield _counter("dropped_messages", dropped, sums.traffic.dropped)

        messages = CounterMetricFamily(
            "busnode_messages", "Messages published here.", labels=["kind"]
        )
        messages.add_metric(["live"], node.publishing.messages_live)
        messages.add_metric(["persistent"], node.publishing.messages_persistent)
        yield messages
        repeats = "Messages that were stored before and came again."
        yield _counter("repeated_messages", repeats, node.publishing.repeats)
        yield _counter("commits", "Group commits.", node.committer.commits)

        yield _gauge("logs", "Logs held.", sums.logs)
        yield _gauge("stored_bytes", "Size of all logs.", sums.stored_bytes)
        yield _gauge("holes", "Ranges that this copy is known not to have.", sums.holes)
        yield _gauge("flaws", "Faults found that cost no message.", len(node.store.flaws()))
        mending = node.peers.mending
        yield _counter("mended_messages", "Damaged or missing, and there again.", mending.mended)
        yield _counter("examined_segments", "Looked at after a complaint.", mending.examined)
        comparing = node.peers.comparing
        same = "Found to be the same in two copies."
        yield _counter("compared_messages", same, comparing.compared)
        rotten = "Ranges found to be damaged here when they were compared."
        yield _counter("compared_damaged", rotten, comparing.damaged)
        differ = "Ranges that are good in two copies, and not the same."
        yield _counter("compared_different", differ, comparing.different)
        poisoned = "Logs that take no more since a write or sync failed."
        yield _counter("poisoned_logs", poisoned, len(node.committer.poisoned))

        yield from self._doors()
        yield from self._cluster()
        now_us = node.world.clock.utc_us()
        yield from task_metrics(sums.queues, node.task_home.workers, now_us)
        yield _gauge("requests_under_way", "Requests without an end.", len(node.bidding.requests))
        yield _gauge("providers", "Topics provided.", node.bidding.requests.providers)
        yield _gauge("durable_subscriptions", "Positions kept by name.", len(node.durable))

    def _doors(self) -> Iterator[Metric]:
        doors = self._node.doors
        refused = CounterMetricFamily(
            "busnode_connections_refused", "Refused by a limit.", labels=["door"]
        )
        pushed_out = CounterMetricFamily(
            "busnode_connections_pushed_out",
            "Let go before they had greeted, for newer ones.", labels=["door"],
        )  # fmt: skip
        half_open = GaugeMetricFamily(
            "busnode_half_open", "Connections that have not greeted yet.", labels=["door"]
        )
        for door in (doors.clients, doors.peers, doors.http):
            refused.add_metric([door.name], door.refused)
            pushed_out.add_metric([door.name], door.pushed_out)
            half_open.add_metric([door.name], door.half_open)
        yield from (refused, pushed_out, half_open)
        yield _gauge("addresses_known", "Addresses counted now.", len(doors.arrivals))
        yield _gauge("kept_bytes", "Kept in memory for others.", doors.budget.used_bytes)
        full = "Times that more was kept for others than may be."
        yield _counter("memory_full", full, doors.budget.times_full)

    def _cluster(self) -> Iterator[Metric]:
        peers, publishing = self._node.peers, self._node.publishing
        yield _gauge("links_up", "Nodes that this one has a link to.", len(peers.links))
        yield _gauge("peers_up", "Nodes that have a link to this one.", len(peers.sessions))
        missing = "Links between any two nodes that should be there."
        yield _gauge("links_missing", missing, len(peers.missing_links()))
        yield _counter("links_made", "Links made since the start.", peers.links_made)
        yield _counter("links_lost", "Links lost since the start.", peers.links_lost)
        forwarded = "Messages, not persistent, sent on to other nodes, once for each."
        yield _counter("forwarded_messages", forwarded, publishing.messages_forwarded)
        received = "Messages from other nodes."
        yield _counter("peer_messages", received, publishing.messages_from_peers)
        dropped = sum(session.dropped for session in peers.sessions.values())
        slow = "Messages, not persistent, dropped for other nodes that are linked now."
        yield _gauge("dropped_for_peers", slow, dropped)
        yield from _of_mirrors(peers)
        streams = peers.mirroring.streams.values()
        in_force = sum(stream.progress.in_force for stream in streams)
        yield _gauge("mirrors_in_force", "Mirrors whose word an ack waits for.", in_force)
        sent = sum(stream.sent_bytes for stream in streams)
        yield _gauge("mirror_sent_bytes", "Bytes sent to the mirrors that there are now.", sent)
        held = "Logs held here that other nodes have written."
        yield _gauge("copies_held", held, self._sums.copies)
        copied = "Messages written here as a mirror of other nodes."
        yield _counter("copied_messages", copied, peers.copies.messages)
        yield _gauge("interests", "Patterns that other nodes are told of.", len(peers.interests))
        wanted = sum(session.interests for session in peers.sessions.values())
        yield _gauge("peer_interests", "Patterns that other nodes want.", wanted)
        yield _gauge(
            "remote_logs", "Logs of other nodes that clients here read.", len(peers.sources.logs)
        )
        candidates = "Nodes that there may be, linked or not."
        yield _gauge("candidates", candidates, len(peers.membership.candidates))
        hints = CounterMetricFamily(
            "busnode_discovery_hints", "What became of hints at other nodes.", labels=["result"]
        )
        counts = peers.membership.counts
        for result in ("taken", "own", "other_cluster", "other_protocol", "table_full"):
            hints.add_metric([result], getattr(counts, result))
        yield hints
        found = self._node.world.discovery.statistics()
        yield _counter("discovery_events", "Announcements and the like.", found.events)
        yield _counter("discovery_dropped", "Of these, too many at once.", found.dropped)
        yield _counter("discovery_malformed", "Of these, without a sense.", found.malformed)

    def _events(self) -> Metric:
        events = CounterMetricFamily("busnode_events", "Events told.", labels=["severity"])
        for severity, count in self._node.events.counts.items():
            events.add_metric([severity], count)
        return events

    def _about(self) -> Metric:
        node = self._node
        labels = {
            "version": __version__,
            "name": node.name,
            "cluster_id": node.config.cluster_id,
            "broker_id": node.broker_id.hex(),
        }
        about = GaugeMetricFamily("busnode_info", "Who this node is.", labels=list(labels))
        about.add_metric(list(labels.values()), 1)
        return about


def _of_mirrors(peers: Peers) -> Iterator[Metric]:
    """Of each mirror and each repair that there is now."""
    lags = {
        "mirror_lag_messages": "Messages appended here that a mirror has not synced.",
        "mirror_lag_bytes": "The same in bytes, as far as messages of one log are alike.",
        "mirror_waiting_seconds": "For how long a mirror has not answered what it was sent.",
    }
    metrics = [
        GaugeMetricFamily(f"busnode_{name}", help_, labels=["mirror"])
        for name, help_ in lags.items()
    ]
    mirrors, repairs = peers.mirroring.streams.values(), peers.repairing.streams.values()
    for stream in mirrors:
        for metric, value in zip(metrics, stream.lag(), strict=True):
            metric.add_metric([stream.link.name], value)
    yield from metrics
    kinds = {"mirror": mirrors, "repair": repairs}
    messages = GaugeMetricFamily(
        "busnode_catchup_remaining_messages",
        "Messages that mirrors and new copies have yet to catch up with.", labels=["kind"],
    )  # fmt: skip
    size_bytes = GaugeMetricFamily(
        "busnode_catchup_remaining_bytes",
        "The same in bytes, as far as messages of one log are alike.", labels=["kind"],
    )  # fmt: skip
    for kind, streams in kinds.items():
        messages.add_metric([kind], sum(stream.progress.behind for stream in streams))
        size_bytes.add_metric([kind], sum(stream.progress.behind_bytes for stream in streams))
    yield from (messages, size_bytes)
    yield _gauge("repairs_under_way", "Copies that this node makes at others now.", len(repairs))
    done = peers.repairing.repaired
    yield _counter("repairs_done", "Copies that this node has made at others.", done)


def _gauge(name: str, help_: str, value: float) -> Metric:
    return GaugeMetricFamily(f"busnode_{name}", help_, value)


def _counter(name: str, help_: str, value: float) -> Metric:
    return CounterMetricFamily(f"busnode_{name}", help_, value)
