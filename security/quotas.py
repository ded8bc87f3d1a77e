"""How much one address and one identity may take: pure, the time is handed in.

Whoever comes is counted under the address it comes from, and, once it has said who it is, under its
identity. A flood can come from any number of addresses, so what is remembered of those that have
left is bounded: the oldest go first, and with them only the memory of how fast they came.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import Final, Generic, NamedTuple, TypeVar

from busnode.wire.errors import LimitReached

IDLE_MAX: Final = 10_000
"""Addresses, and identities, that have left and are remembered: about 3 MB each. An attacker with
more addresses than this is not slowed down by what one of them may do."""

LOOPBACK: Final = "loopback"
"""All addresses of this machine are one."""


class AddressLimits(NamedTuple):
    connections_max: int
    handshakes_per_s: float
    handshake_burst: int
    with_loopback: bool
    """Whether they count for this machine, too."""


class IdentityLimits(NamedTuple):
    connections_max: int
    subscriptions_max: int
    messages_per_s: float | None
    bytes_per_s: float | None
    in_flight_bytes_max: int


class Bucket:
    """So much each second, and at most `burst` at once."""

    __slots__ = ("_at", "_burst", "_left", "_per_s")

    def __init__(self, per_s: float, burst: float, now: float) -> None:
        self._per_s = per_s
        self._burst = burst
        self._left = burst
        self._at = now

    def take(self, now: float) -> bool:
        """Take one, if there is one."""
        self._fill(now)
        if self._left < 1:
            return False
        self._left -= 1
        return True

    def charge(self, amount: float, now: float) -> float:
        """Take what was used already; how many seconds it takes until that is made up for."""
        self._fill(now)
        self._left -= amount
        return max(0.0, -self._left / self._per_s)

    def _fill(self, now: float) -> None:
        if now > self._at:
            self._left = min(self._burst, self._left + (now - self._at) * self._per_s)
            self._at = now


Entry = TypeVar("Entry")


class Ledger(Generic[Entry]):
    """Entries of those who are here, and of some who have left: those who left first go first."""

    def __init__(self, make: Callable[[float], Entry], idle_max: int = IDLE_MAX) -> None:
        self._make = make
        self._idle_max = idle_max
        self._here: dict[Hashable, tuple[Entry, int]] = {}
        self._idle: OrderedDict[Hashable, Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._here) + len(self._idle)

    def count(self, key: Hashable) -> int:
        """How many are here under a key."""
        found = self._here.get(key)
        return 0 if found is None else found[1]

    def look(self, key: Hashable, now: float) -> Entry:
        """The entry of somebody who may come; it is remembered like one of somebody who left."""
        found = self._here.get(key)
        if found is not None:
            return found[0]
        entry = self._idle.pop(key, None)
        if entry is None:
            entry = self._make(now)
        self._rest(key, entry)
        return entry

    def come(self, key: Hashable, now: float) -> Entry:
        found = self._here.get(key)
        entry = self._idle.pop(key, None) if found is None else found[0]
        if entry is None:
            entry = self._make(now)
        self._here[key] = entry, 1 if found is None else found[1] + 1
        return entry

    def leave(self, key: Hashable) -> None:
        entry, count = self._here[key]
        if count > 1:
            self._here[key] = entry, count - 1
        else:
            del self._here[key]
            self._rest(key, entry)

    def _rest(self, key: Hashable, entry: Entry) -> None:
        self._idle[key] = entry
        if len(self._idle) > self._idle_max:
            self._idle.popitem(last=False)


class Arrivals:
    """Who comes from where, how often, and how many are here."""

    def __init__(self, limits: AddressLimits, idle_max: int = IDLE_MAX) -> None:
        self._limits = limits
        self._ledger: Ledger[Bucket] = Ledger(self._bucket, idle_max)

    def __len__(self) -> int:
        """Addresses that are remembered."""
        return len(self._ledger)

    def _bucket(self, now: float) -> Bucket:
        return Bucket(self._limits.handshakes_per_s, self._limits.handshake_burst, now)

    def come(self, host: str, now: float) -> LimitReached | None:
        """Somebody is at the door: None, and it is counted until it leaves, or why it may not."""
        place = place_of(host)
        limits = self._limits
        if place == LOOPBACK and not limits.with_loopback:
            return None
        here = self._ledger.count(place)
        if here >= limits.connections_max:
            return LimitReached(
                f"{here} connections from {place}; one address may have "
                f"{limits.connections_max}: --connections-per-address"
            )
        if not self._ledger.look(place, now).take(now):
            return LimitReached(
                f"too many connections a second from {place}; one address may make "
                f"{limits.handshakes_per_s:g}: --handshakes-per-address",
                retry_after_s=1.0,
            )
        self._ledger.come(place, now)
        return None

    def leave(self, host: str) -> None:
        """One that was counted is gone."""
        place = place_of(host)
        if place != LOOPBACK or self._limits.with_loopback:
            self._ledger.leave(place)


@dataclass(slots=True, eq=False)
class Account:
    """What all connections of one identity use together."""

    messages: Bucket | None
    bytes: Bucket | None
    in_flight_bytes_max: int
    in_flight_bytes: int = 0
    subscriptions: int = 0

    @property
    def is_full(self) -> bool:
        """Whether so much of it waits for disks that no more is read."""
        return self.in_flight_bytes > self.in_flight_bytes_max

    def charge(self, messages: int, size_bytes: int, now: float) -> float:
        """So much has come in: for how many seconds no more should be read."""
        pause_s = 0.0
        if self.messages is not None and messages:
            pause_s = self.messages.charge(messages, now)
        if self.bytes is not None:
            pause_s = max(pause_s, self.bytes.charge(size_bytes, now))
        return pause_s


class Accounts:
    """All identities that are here. Clients without one are counted by their addresses."""

    def __init__(
        self, limits: IdentityLimits, with_loopback: bool, idle_max: int = IDLE_MAX
    ) -> None:
        self._limits = limits
        self._with_loopback = with_loopback
        self._ledger: Ledger[Account] = Ledger(self._account, idle_max)

    def __len__(self) -> int:
        return len(self._ledger)

    def _account(self, now: float) -> Account:
        limits = self._limits
        messages, size = limits.messages_per_s, limits.bytes_per_s
        return Account(
            # A second's worth at once: what is meant is a rate, not a shape.
            None if messages is None else Bucket(messages, messages, now),
            None if size is None else Bucket(size, size, now),
            limits.in_flight_bytes_max,
        )

    def open(self, identity: str, host: str, now: float) -> Account | None:
        """A connection has said who it is. None where nothing is counted. LimitReached when there
        are too many of the same; those without an identity are as many as their address may have.
        """
        key = self._key(identity, host)
        if key is None:
            return None
        here = self._ledger.count(key)
        if identity and here >= self._limits.connections_max:
            raise LimitReached(
                f"{here} connections of {identity}; one identity may have "
                f"{self._limits.connections_max}: --connections-per-identity"
            )
        return self._ledger.come(key, now)

    def close(self, identity: str, host: str) -> None:
        """A connection whose account was opened is gone."""
        key = self._key(identity, host)
        if key is not None:
            self._ledger.leave(key)

    def check_subscriptions(self, account: Account) -> None:
        """LimitReached when there is no room for one more."""
        most = self._limits.subscriptions_max
        if account.subscriptions >= most:
            raise LimitReached(
                f"{account.subscriptions} subscriptions of one identity, which may have {most}: "
                "--subscriptions-per-identity"
            )

    def _key(self, identity: str, host: str) -> Hashable:
        if identity:
            return identity
        place = place_of(host)
        return None if place == LOOPBACK and not self._with_loopback else (place,)


@lru_cache(1024)  # to parse one takes 7 µs, and each is asked for when it comes and when it goes
def place_of(host: str) -> str:
    """What an address is counted as: IPv6 by its /64, of which each machine has a whole one; all of
    this machine as one; and a name, which only a simulated network has, as itself."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if address.is_loopback:
        return LOOPBACK
    if isinstance(address, IPv6Address):
        return f"{IPv6Address(int(address) >> 64 << 64)}/64"
    return str(address)
