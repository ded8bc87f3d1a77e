"""What is wrong and what to do: from what was seen of a node, of the network and of this machine.

Each check is a function of what was seen, and looks at nothing itself. It gives a finding, or none
where it has nothing to say. A check of cluster keys will stand beside the one of seeds, which sees
how a node answers a greeting.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from busnode.node.cluster_view import ClusterView
from busnode.node.presentation import counted, duration, printable, size
from busnode.node.seed_greeting import SeedAnswer
from busnode.node.settings import is_loopback
from busnode.wire.errors import BadVersion, WrongCluster
from busnode.wire.limits import PROTOCOL_VERSION
from busnode.world.discovery import Hint
from busnode.world.real_multicast import Multicast
from busnode.world.real_process import DiskSpace, FileLimits, Interpreter

Status = Mapping[str, Any]

CLOCK_S: Final = 1.0
"""How far two clocks may be apart: times of messages, retention and `--from TIME` go by them."""

FILES_MIN: Final = 4096
"""A client is one, an open segment another; many systems allow no more by default."""
FILES_EVERYWHERE: Final = 0.9

DISK_LEAST_BYTES: Final = 256 * 1024 * 1024
"""A few segments: with less, the next minutes may fill it."""
DISK_LOW: Final = 0.1

CLUSTERS_NAMED_MAX: Final = 5


class Verdict(StrEnum):
    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check has to say."""

    check: str
    verdict: Verdict
    seen: str
    advice: str | None = None
    """What to do; None where there is nothing to be done."""


def _ok(check: str, seen: str) -> Finding:
    return Finding(check, Verdict.OK, seen)


def _warning(check: str, seen: str, advice: str) -> Finding:
    return Finding(check, Verdict.WARNING, seen, advice)


def _failed(check: str, seen: str, advice: str) -> Finding:
    return Finding(check, Verdict.FAILED, seen, advice)


# The node that was asked ----------------------------------------------------------------------


def of_reach(url: str, found: Status | None, error: str | None) -> Finding:
    if found is None:
        return _failed(
            "node",
            f"nobody answers at {printable(url)} ({printable(error or 'no node')})",
            "Start one with `busnode start --cluster-id NAME`, or name one that runs with --url.",
        )
    who = f"{printable(found['name'])} of cluster {printable(found['cluster_id'])}"
    return _ok("node", f"{who} answers at {found['addresses']['client']}")


def of_readiness(found: Status) -> Finding:
    if found["ready"]:
        return _ok("ready", f"up for {duration(found['uptime_s'])}, version {found['version']}")
    return _failed(
        "ready",
        printable(str(found["unready_reason"])),
        "Wait if it starts or leaves; if its storage failed, mend the disk and start it again.",
    )


def of_cluster_id(found: Status, wanted: str | None) -> Finding | None:
    if wanted is None or found["cluster_id"] == wanted:
        return None
    return _failed(
        "cluster id",
        f"the node is of cluster '{printable(found['cluster_id'])}', not '{printable(wanted)}'",
        "Start it with the same --cluster-id as the others: nodes ignore all other clusters.",
    )


def of_mesh(found: Status) -> Finding:
    view = ClusterView(found)
    summary = view.summary()
    if view.missing_count:
        return _failed(
            "mesh",
            summary,
            "Nodes dial again every few seconds. If a link stays missing, see whether the first "
            "node can reach the second one's address for nodes: firewall, --listen, a stopped "
            "process.",
        )
    errors = [peer.error for peer in (*view.silent, *view.unknown) if peer.error]
    if view.silent or view.unknown:
        return _warning(
            "mesh",
            f"{summary} ({'; '.join(errors[:3]) or 'not reached yet'})",
            "Start what should be there; a node that left for good is forgotten in time.",
        )
    if not view.is_whole:
        return _warning("mesh", summary, "Look again in a moment: links are being made.")
    return _ok("mesh", summary)


def of_discovery(found: Status) -> Finding:
    view = ClusterView(found)
    trouble = view.discovery_trouble()
    if trouble is not None:
        return _failed(
            "discovery",
            f"the node says that {trouble}",
            "Name another node with --seed HOST:PORT; for multicast see whether the interface, "
            "the container or the firewall lets UDP 5353 through.",
        )
    counts = found["cluster"]["discovery"]
    if view.is_alone_by_choice:
        return _ok("discovery", "off: the node was told to stay alone")
    return _ok("discovery", f"the node has heard {counted(counts['events'], 'announcement')}")


def of_listening(found: Status, host: str | None, seeds: Sequence[SeedAnswer]) -> Finding | None:
    """`host` is where others are to be met, if somebody has said so."""
    address = found["addresses"].get("peer")
    if address is None:
        return None
    at = str(address).rpartition(":")[0].strip("[]")
    if not is_loopback(at):
        return _ok("listening", f"other machines can reach the node at {address}")
    abroad = [str(answer.seed) for answer in seeds if not is_loopback(answer.seed.host)]
    wanted = host if host is not None and not is_loopback(host) else next(iter(abroad), None)
    if wanted is not None:
        return _failed(
            "listening",
            f"the node listens on {at}, which no other machine can reach, and {printable(wanted)} "
            "is beyond this one",
            "Start it with --interface IF or --listen HOST, and --insecure on a network you trust.",
        )
    return _ok("listening", f"on {at}: nodes and clients of this machine alone can reach it")


def of_clock(ahead_s: float, round_trip_s: float) -> Finding:
    """How far the node's clock is ahead of ours, give or take half of the round trip."""
    apart_s = max(abs(ahead_s) - round_trip_s / 2, 0.0)
    if apart_s <= CLOCK_S:
        return _ok(
            "clock", f"the node's and this machine's agree within {duration(max(apart_s, 0.01))}"
        )
    way = "ahead of" if ahead_s > 0 else "behind"
    return _warning(
        "clock",
        f"the node's is {duration(abs(ahead_s))} {way} this machine's",
        "Let both follow NTP: times of messages and retention go by them.",
    )


# The network ----------------------------------------------------------------------------------


def of_multicast(heard: Multicast, interfaces: Sequence[str] | None) -> Finding:
    where = ", ".join(interfaces) if interfaces else "all interfaces"
    if heard.heard_own:
        return _ok("multicast", f"an announcement sent on {where} was heard")
    why = f": {printable(heard.failure)}" if heard.failure else ""
    return _failed(
        "multicast",
        f"an announcement sent on {where} was not heard{why}",
        "Name nodes with --seed HOST:PORT, or let UDP 5353 to 224.0.0.251 through.",
    )


def of_announced(
    announced: Sequence[Hint], cluster_id: str | None, *, explicit: bool
) -> Finding | None:
    """`explicit`: somebody has named the cluster, and so expects it to be there."""
    counts = Counter(str(hint.cluster_id) for hint in announced)
    others = [(name, count) for name, count in counts.most_common() if name != cluster_id]
    told = ", ".join(
        f"{counted(count, 'node')} of cluster '{printable(name)}'"
        for name, count in others[:CLUSTERS_NAMED_MAX]
    )
    if len(others) > CLUSTERS_NAMED_MAX:
        told += f" and {len(others) - CLUSTERS_NAMED_MAX:,} clusters more"
    if cluster_id is None:
        return _ok("announced", told or "no node is announced")
    mine = f"'{printable(cluster_id)}'"
    if counts[cluster_id]:
        also = f"; also {told}" if told else ""
        return _ok("announced", f"{counted(counts[cluster_id], 'node')} of cluster {mine}{also}")
    if told:
        make = _failed if explicit else _warning
        verb = "is" if sum(count for _, count in others) == 1 else "are"
        return make(
            "announced",
            f"{told} {verb} announced, none of {mine}",
            "If these are to be one cluster, start all nodes with the same --cluster-id.",
        )
    return _warning(
        "announced",
        f"no node of cluster {mine} is announced, nor of any other",
        "With --seed that is well; else see whether nodes run, and with --mdns on.",
    )


def of_protocol(announced: Sequence[Hint], cluster_id: str | None) -> Finding | None:
    strangers = [
        hint
        for hint in announced
        if hint.protocol != PROTOCOL_VERSION and hint.cluster_id in (cluster_id, None)
    ]
    if not strangers:
        return None
    told = ", ".join(f"{hint.name} speaks {hint.protocol}" for hint in strangers[:3])
    return _failed(
        "protocol",
        f"{counted(len(strangers), 'node')} of another protocol than {PROTOCOL_VERSION}: {told}",
        "Upgrade the older side: these do not link.",
    )


def of_seed(answer: SeedAnswer, cluster_id: str | None) -> Finding:
    at = printable(str(answer.seed))
    if answer.node is not None:
        return _ok("seed", f"{printable(answer.node)} answers at {at}, of the same cluster")
    if answer.code == WrongCluster.code and cluster_id is None:
        return _ok("seed", f"a node answers at {at}; with --cluster-id we see if it is of yours")
    if answer.code is not None:
        advice = f"`busnode explain {printable(answer.code)}` tells more."
        for kind in (WrongCluster, BadVersion):
            advice = kind.advice if answer.code == kind.code else advice
        text = f"the node at {at} answers {answer.code}: {answer.error}"
        return _failed("seed", printable(text), advice)
    return _failed(
        "seed",
        f"no node answers at {at}: {printable(str(answer.error))}",
        "See whether a node runs there and whether the port is the one for nodes (4251), not the "
        "one for clients.",
    )


# This machine ---------------------------------------------------------------------------------


def of_files(limits: FileLimits) -> Finding:
    share = limits.open_everywhere / max(limits.allowed_everywhere, 1)
    if share > FILES_EVERYWHERE:
        return _warning(
            "files",
            f"{share:.0%} of all that this machine allows are open: {limits.open_everywhere:,}",
            "Raise fs.file-max, or see who has so many open.",
        )
    if limits.allowed < FILES_MIN:
        return _warning(
            "files",
            f"a process may open {limits.allowed:,}, and each client and segment is one",
            "Raise the hard limit: `ulimit -Hn`, or LimitNOFILE= of the service.",
        )
    return _ok("files", f"a process may open {limits.allowed:,}")


def of_interpreter(python: Interpreter) -> Finding:
    what = f"Python {python.version}, {printable(python.path)}"
    if python.is_optimized:
        return _ok("python", what)
    return _warning(
        "python",
        f"{what}, was compiled without optimizations: nodes take up to twice the processor time",
        "Take the system's Python, or compile it with --enable-optimizations --with-lto.",
    )


def of_disk(path: str, space: DiskSpace) -> Finding:
    share = space.free_bytes / max(space.total_bytes, 1)
    text = f"{size(space.free_bytes)} free for {printable(path)}, {share:.0%} of the disk"
    if space.free_bytes < DISK_LEAST_BYTES:
        make = _failed
    elif share < DISK_LOW:
        make = _warning
    else:
        return _ok("disk", text)
    return make("disk", text, "Make room, or bound the logs with --retain and --retain-size.")
