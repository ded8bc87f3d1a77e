"""Which nodes hold copies of our logs: rendezvous hashing over those that are there."""

from collections.abc import Iterable, Sequence

from xxhash import xxh3_64_intdigest

from busnode.wire.ids import BrokerId


def rendezvous(origin: BrokerId, members: Iterable[BrokerId]) -> list[BrokerId]:
    """All members, the first choice first. Each origin has an order of its own, so that the load is
    spread; and it is the same wherever it is asked, whoever else comes or goes."""
    return sorted(members, key=lambda member: (xxh3_64_intdigest(origin + member), member))


def choose_mirrors(
    origin: BrokerId,
    current: Sequence[BrokerId],
    live: Iterable[BrokerId],
    count: int,
    named: BrokerId | None = None,
) -> list[BrokerId]:
    """Those who shall be mirrors now. One that is stays as long as it lives: another one would have
    to be sent everything. A named one comes before all others."""
    there = list(live)
    chosen = [named] if named in there and named is not None else []
    chosen += [member for member in current if member in there and member not in chosen]
    chosen += [member for member in rendezvous(origin, there) if member not in chosen]
    return chosen[:count]
