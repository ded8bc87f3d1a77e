"""What TLS is told and what it finds out: values, and the error that trying again does not mend."""

from enum import Enum
from typing import NamedTuple


class TlsError(ConnectionError):
    """The two sides cannot agree on TLS, or one does not accept who the other is.

    It is none of the network's passing faults: the same would come of the next attempt.
    """


class Demand(Enum):
    """What the other side must show."""

    NOTHING = "nothing"
    OFFERED = "offered"
    """Nothing; but a certificate that it does show must be good."""
    SIGNED = "signed"
    """A certificate that one of our authorities has signed."""
    HOST = "host"
    """The same, and it names the host that was dialled."""
    NODE = "node"
    """The same, and it may be shown by servers: no client's certificate makes anybody a node."""


class TlsTerms(NamedTuple):
    """What we show, and what we ask for. Paths of files in PEM form."""

    listens: bool
    demand: Demand
    certificate: str | None = None
    key: str | None = None
    authorities: str | None = None
    """Who may have signed the other side's; None: those that the machine trusts."""


class Certificate(NamedTuple):
    """Who the other side is, by a certificate that was verified."""

    common_name: str
    """Of its subject; empty where it has none."""
    names: tuple[str, ...]
    """Hosts and addresses that it may be shown for."""
