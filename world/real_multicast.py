"""Whether multicast works here, and who is announced: tried out rather than guessed."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import trio

from busnode.wire.ids import BrokerId
from busnode.wire.limits import PROTOCOL_VERSION
from busnode.world.discovery import Announcement, Hint
from busnode.world.entropy import Entropy
from busnode.world.network import Address
from busnode.world.real_mdns import MdnsDiscovery

LISTEN_S = 2.0
"""All answer a question within a second."""
PATIENCE_S = 6.0
"""How long our own announcement may take before multicast is said not to work."""

CLUSTER_PREFIX = "busnode-doctor-"
NOWHERE_PORT = 9
"""What is announced is of a cluster that nobody is of, so that nobody dials it."""

ANNOUNCED_MAX = 1024
"""Nodes that are remembered; a forger gets no more."""


@dataclass(slots=True)
class Multicast:
    """What was heard."""

    heard_own: bool = False
    failure: str | None = None
    """What the library or the system said; None where nothing failed."""
    announced: dict[BrokerId, Hint] = field(default_factory=dict[BrokerId, Hint])
    """Nodes of all clusters and protocols."""


async def try_multicast(
    interfaces: Sequence[str] | None, entropy: Entropy, *, listen_s: float = LISTEN_S
) -> Multicast:
    """Send an announcement from one socket, and hear it and all others on another."""
    found = Multicast()
    host = interfaces[0] if interfaces else "127.0.0.1"
    cluster_id = f"{CLUSTER_PREFIX}{entropy.u64():016x}"
    sent, heard = (
        Announcement(
            cluster_id, PROTOCOL_VERSION, entropy.broker_id(), "doctor",
            (Address(host, NOWHERE_PORT),),
        )
        for _ in range(2)
    )  # fmt: skip
    sender, hearer = MdnsDiscovery(interfaces), MdnsDiscovery(interfaces)
    came = trio.Event()

    def take(hint: Hint) -> None:
        if hint.broker_id == sent.broker_id:  # the hearer has it: a sender is not told of itself
            came.set()
        elif (
            hint.broker_id is not None
            and not str(hint.cluster_id).startswith(CLUSTER_PREFIX)
            and len(found.announced) < ANNOUNCED_MAX
        ):
            found.announced[hint.broker_id] = hint

    async with trio.open_nursery() as nursery:
        nursery.start_soon(hearer.run, heard, take)
        nursery.start_soon(sender.run, sent, take)
        enough_at = trio.current_time() + listen_s
        with trio.move_on_after(PATIENCE_S):
            await came.wait()
            await trio.sleep_until(enough_at)
        found.heard_own = came.is_set()
        found.failure = sender.statistics().failure or hearer.statistics().failure
        nursery.cancel_scope.cancel()
    return found
