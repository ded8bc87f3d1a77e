"""Which finished logs lack copies, who makes them, and where.

A machine without IO. Nodes tell each other whose logs they hold: for each incarnation how many
logs, the sum of their last numbers, and a digest of all these numbers. Copies are prefixes of one
log, so of two the one with the larger sum is longer somewhere. With equal sums and another digest
each may be longer in another log: when one has sent the other what that lacks, the sums differ,
and the other returns it. Logs that somebody still writes are not looked at: their mirrors are
their origin's affair.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from xxhash import xxh3_64_intdigest

from busnode.replication.mirror_choice import rendezvous
from busnode.wire.ids import BrokerId, LogId

REPAIR_AFTER_S: Final = 30.0
"""How long something may be missing before it is copied: a node that restarts is back by then."""


class Held(NamedTuple):
    """What a node holds of one incarnation."""

    logs: int = 0
    messages: int = 0
    """The sum of the last numbers of all logs."""
    digest: int = 0
    """Of each log with its last number, in any order."""
    own: bool = False
    """Whether it is the node that wrote them: its clients read them there, and nowhere else."""

    def plus(self, log_id: LogId, last_no: int) -> "Held":
        """The same with one log more."""
        of_log = xxh3_64_intdigest(log_id.topic.encode(), last_no) if last_no else 0
        digest = (self.digest + of_log) % 2**64
        return Held(self.logs + 1, self.messages + last_no, digest, self.own)

    def is_like(self, other: "Held") -> bool:
        """Whether the same messages are in both."""
        return (self.messages, self.digest) == (other.messages, other.digest)


class Push(NamedTuple):
    """Copy the logs of an incarnation to a node."""

    broker_id: BrokerId
    target: BrokerId


Holdings = Mapping[BrokerId, Mapping[BrokerId, Held]]
"""By node, and there by incarnation."""


def plan_repairs(
    me: BrokerId, wanted: int, holdings: Holdings, written: Iterable[BrokerId]
) -> list[Push]:
    """What this node has to do so that each incarnation has `wanted` whole copies, as far as there
    are nodes. Of those who have most the first in the rendezvous order does it, so that all agree
    without asking each other."""
    busy = set(written)
    pushes: list[Push] = []
    for broker_id in holdings.get(me, {}):
        if broker_id in busy:
            continue
        holders = {node: held[broker_id] for node, held in holdings.items() if broker_id in held}
        most = max(held.messages for held in holders.values())
        largest = [node for node, held in holders.items() if held.messages == most]
        first = rendezvous(broker_id, largest)[0]
        if not most or first != me:
            continue
        whole = [node for node, held in holders.items() if held.is_like(holders[first])]
        others = [node for node in rendezvous(broker_id, holdings) if node not in whole]
        # Those who have a part first: to complete it is less than to make a new one.
        others.sort(key=lambda node: node not in holders)
        pushes += (Push(broker_id, node) for node in others[: max(0, wanted - len(whole))])
        behind = [node for node in others if node in holders][max(0, wanted - len(whole)) :]
        pushes += (Push(broker_id, node) for node in behind)
    return pushes


class Patience:
    """Lets a repair begin when it was due for a while without a break, or at once if urgent."""

    def __init__(self, after_s: float = REPAIR_AFTER_S) -> None:
        self._after_s = after_s
        self._since: dict[Push, float] = {}

    def due(self, pushes: Iterable[Push], now: float, urgent: Callable[[Push], bool]) -> list[Push]:
        since = {push: self._since.get(push, now) for push in pushes}
        self._since = since
        return [
            push for push, began in since.items() if now - began >= self._after_s or urgent(push)
        ]
