"""The cluster as one node sees it, as plain values that JSON can carry."""

from typing import Any

from busnode.cluster.membership import Candidate, State
from busnode.node.mirroring import MirrorStream
from busnode.node.peers import Peers
from busnode.wire.ids import BrokerId
from busnode.world.world import World

Status = dict[str, Any]


def cluster_status(peers: Peers, world: World, rows_max: int) -> Status:
    """Nodes, links in both directions, what is missing, and what discovery has heard."""
    found = world.discovery.statistics()
    counts = peers.membership.counts
    rows = _peers(peers, world.clock.monotonic())
    missing = peers.missing_links()
    names = peers.names()
    now = world.clock.monotonic()
    return {
        "peers_count": len(rows),
        "peers": rows[:rows_max],
        "missing_links": [
            {"dialler": link.dialler, "listener": link.listener} for link in missing[:rows_max]
        ],
        "missing_links_count": len(missing),
        "clients_at": peers.addresses(),
        "mirrors": [_stream(stream, now) for stream in peers.mirroring.streams.values()],
        "repairs": [
            {
                "of": push.broker_id.hex(),
                "of_name": peers.me.name if peers.is_own(push.broker_id) else names.get(push[0]),
                **_stream(stream, now),
            }
            for push, stream in peers.repairing.streams.items()
        ],
        "repairs_done": peers.repairing.repaired,
        "level": "mirrored" if peers.mirroring.in_force else "local",
        "mirror_of": [each.hex() for each in peers.copies.origins],
        "mirror_of_names": [names.get(each) for each in peers.copies.origins],
        "interests": len(peers.interests),
        "remote_logs": len(peers.sources.logs),
        "links_made": peers.links_made,
        "links_lost": peers.links_lost,
        "discovery": {
            "hints_taken": counts.taken,
            "hints_own": counts.own,
            "hints_other_cluster": counts.other_cluster,
            "hints_other_protocol": counts.other_protocol,
            "hints_table_full": counts.table_full,
            "events": found.events,
            "dropped": found.dropped,
            "malformed": found.malformed,
            "failure": found.failure,
        },
    }


def _stream(stream: MirrorStream, now: float) -> Status:
    """What goes to one mirror or to one new copy, and how far that has got."""
    progress, lag = stream.progress, stream.lag()
    state = "in force" if progress.in_force else "catching up" if stream.has_begun else "asked"
    return {
        "name": stream.link.name,
        "state": state,
        "behind": progress.behind,
        "behind_bytes": round(progress.behind_bytes),
        "total": progress.total,
        "total_bytes": round(progress.total_bytes),
        "since_s": round(now - stream.began_at, 3),
        "lag": lag.messages,
        "lag_bytes": lag.size_bytes,
        "waiting_s": round(lag.waiting_s, 3),
        "sent_bytes": stream.sent_bytes,
    }


def _peers(peers: Peers, now: float) -> list[Status]:
    """A row for each other node that is or may be there, those that are first."""
    rows: dict[BrokerId | Candidate, Status] = {}
    for candidate in peers.membership.candidates:
        rows[candidate.broker_id or candidate] = {
            "name": candidate.name,
            "broker_id": None if candidate.broker_id is None else candidate.broker_id.hex(),
            "addresses": [str(address) for address in candidate.addresses],
            "source": candidate.source,
            "link": "up" if candidate.state is State.LINKED else candidate.state.value,
            "error": candidate.error,
            "dials_us": False,
            "clients_at": [],
        }
    for broker_id, session in peers.sessions.items():
        row = rows.setdefault(broker_id, _unlinked(broker_id, session.name))
        row |= {
            "dials_us": True,
            "clients_at": session.clients_at,
            "interests": session.interests,
            "sent_bytes": session.outgoing.sent_bytes,
            "dropped": session.dropped,
            "replays": session.replays,
        }
    for broker_id, link in peers.links.items():
        row = rows.setdefault(broker_id, _unlinked(broker_id, link.name))
        row |= {
            "link": "up",
            "link_s": round(now - link.connected_at, 3),
            "messages": link.messages,
            "received_bytes": link.received_bytes,
            "logs": len(link.logs),
            "clients_at": [] if link.welcome is None else link.welcome.clients_at,
        }
    return sorted(rows.values(), key=lambda row: (row["link"] != "up", str(row["name"])))


def _unlinked(broker_id: BrokerId, name: str) -> Status:
    return {
        "name": name, "broker_id": broker_id.hex(), "addresses": [], "source": "dialled",
        "link": "waiting", "error": None, "dials_us": False, "clients_at": [],
    }  # fmt: skip
