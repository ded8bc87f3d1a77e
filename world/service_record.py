"""A node as a DNS-SD service: what its record says, and what is believed of a stranger's."""

from collections.abc import Mapping, Sequence
from ipaddress import ip_address

from busnode.wire.ids import BROKER_ID_BYTES, BrokerId
from busnode.wire.limits import NAME_BYTES_MAX
from busnode.world.discovery import Announcement, Hint
from busnode.world.network import Address

SERVICE_TYPE = "_busnode._tcp.local."

CLUSTER, BROKER, NAME, PROTOCOL = b"cluster", b"broker", b"name", b"protocol"
"""The keys of the TXT record."""

PROTOCOL_DIGITS_MAX = 3
"""The version is one byte in every frame."""

ADDRESSES_MAX = 16
"""All addresses of a peer are dialled at once, so a forged record must not name thousands. Sixteen
are two families on eight interfaces."""


class MalformedRecord(ValueError):
    """A record that no node can have sent; the text says why."""


def instance_name(broker_id: BrokerId) -> str:
    """The incarnation's own: nobody else has it, so nobody has to be asked for it."""
    return f"{broker_id.hex()}.{SERVICE_TYPE}"


def broker_id_in(name: str) -> BrokerId:
    """Whose record a name stands for. Raises `MalformedRecord`."""
    label, dot, rest = name.partition(".")
    try:
        broker_id = bytes.fromhex(label)
    except ValueError:
        broker_id = b""
    if len(label) != 2 * BROKER_ID_BYTES or not broker_id or dot + rest != f".{SERVICE_TYPE}":
        raise MalformedRecord("its name is not a brokerId and the type of the service")
    return BrokerId(broker_id)


def encode_text(announcement: Announcement) -> dict[bytes, bytes]:
    return {
        CLUSTER: announcement.cluster_id.encode(),
        BROKER: announcement.broker_id.hex().encode(),
        NAME: announcement.name.encode(),
        PROTOCOL: str(announcement.protocol).encode(),
    }


def announced_place(announcement: Announcement) -> tuple[list[str], int]:
    """The hosts and the one port that a record can carry; no hosts when none is numeric.

    A record has one port: that of the first address, and what listens at another stays unsaid.
    """
    places = [place for place in announcement.addresses if _is_numeric(place.host)]
    if not places:
        return [], 0
    port = places[0].port
    hosts = [place.host.partition("%")[0] for place in places if place.port == port]
    return hosts[:ADDRESSES_MAX], port


def decode_record(
    name: str, text: Mapping[bytes, bytes | None], hosts: Sequence[str], port: int | None
) -> Hint:
    """What somebody's record says. Raises `MalformedRecord`."""
    broker_id = broker_id_in(name)
    if text.get(BROKER) != broker_id.hex().encode():
        raise MalformedRecord("its text is about another brokerId than its name, or about none")
    protocol = text.get(PROTOCOL) or b""
    if not protocol.isdigit() or len(protocol) > PROTOCOL_DIGITS_MAX:
        raise MalformedRecord("its protocol version is not a small number")
    if not port:
        raise MalformedRecord("it has no port")
    dialable = [host for host in dict.fromkeys(hosts) if _is_dialable(host)]
    if not dialable:
        raise MalformedRecord("it has no address that can be dialled")
    return Hint(
        addresses=tuple(Address(host, port) for host in dialable[:ADDRESSES_MAX]),
        source="mdns",
        cluster_id=_text(text, CLUSTER),
        protocol=int(protocol),
        broker_id=broker_id,
        name=_text(text, NAME),
    )


def _text(text: Mapping[bytes, bytes | None], key: bytes) -> str:
    value = text.get(key)
    if not value or len(value) > NAME_BYTES_MAX:
        raise MalformedRecord(f"its {key.decode()} is missing or too long")
    try:
        decoded = value.decode()
    except UnicodeDecodeError as error:
        raise MalformedRecord(f"its {key.decode()} is not UTF-8") from error
    if not decoded.isprintable():  # people see it in a terminal
        raise MalformedRecord(f"its {key.decode()} holds more than letters")
    return decoded


def _is_numeric(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _is_dialable(host: str) -> bool:
    """Whether it is one host's address; a link-local one is none before it says on which link."""
    try:
        ip = ip_address(host)
    except ValueError:
        return False
    if ip.is_unspecified or ip.is_multicast:
        return False
    return not (ip.version == 6 and ip.is_link_local and "%" not in host)
