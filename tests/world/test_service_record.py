"""What a node says of itself by mDNS, and what is believed of others."""

from collections.abc import Mapping
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busnode.wire.ids import BrokerId
from busnode.world.discovery import Announcement, Hint
from busnode.world.network import Address
from busnode.world.service_record import (
    ADDRESSES_MAX,
    SERVICE_TYPE,
    MalformedRecord,
    announced_place,
    decode_record,
    encode_text,
    instance_name,
)

BROKER_ID = BrokerId(bytes(range(16)))
NODE = Announcement("orders", 1, BROKER_ID, "näme", (Address("192.0.2.1", 4251),))
TEXT: Mapping[bytes, bytes | None] = dict(encode_text(NODE))
NAME = instance_name(BROKER_ID)
HOSTS = ["192.0.2.1"]


def test_what_is_said_is_understood() -> None:
    hosts, port = announced_place(NODE)
    found = decode_record(NAME, TEXT, hosts, port)
    assert found == Hint(NODE.addresses, "mdns", "orders", 1, BROKER_ID, "näme")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({b"broker": None}, "another brokerId"),
        ({b"broker": bytes(16).hex().encode()}, "another brokerId"),
        ({b"cluster": None}, "cluster is missing"),
        ({b"cluster": b"x" * 129}, "too long"),
        ({b"cluster": b"\xff\xfe"}, "not UTF-8"),
        ({b"name": b""}, "name is missing"),
        ({b"name": b"\x1b[2J"}, "more than letters"),
        ({b"protocol": None}, "protocol version"),
        ({b"protocol": b"one"}, "protocol version"),
        ({b"protocol": b"1" * 5000}, "protocol version"),
        ({b"protocol": "²".encode()}, "protocol version"),
    ],
)
def test_a_text_that_no_node_has_sent_is_refused(
    change: dict[bytes, bytes | None], reason: str
) -> None:
    with pytest.raises(MalformedRecord, match=reason):
        decode_record(NAME, {**TEXT, **change}, HOSTS, 1)


@pytest.mark.parametrize(
    "name",
    [
        "",
        SERVICE_TYPE,
        f"x.{SERVICE_TYPE}",
        f"{'zz' * 16}.{SERVICE_TYPE}",
        f"{'00 ' * 16}.{SERVICE_TYPE}",
        f"{'00' * 16}._other._tcp.local.",
        f"{'00' * 16}.more.{SERVICE_TYPE}",
    ],
)
def test_a_name_that_no_node_has_is_refused(name: str) -> None:
    with pytest.raises(MalformedRecord, match="its name"):
        decode_record(name, TEXT, HOSTS, 1)


@pytest.mark.parametrize(
    "hosts", [[], ["0.0.0.0"], ["::"], ["224.0.0.251"], ["fe80::1"], ["example.org"]]
)
def test_a_record_without_an_address_to_dial_is_refused(hosts: list[str]) -> None:
    with pytest.raises(MalformedRecord, match="no address"):
        decode_record(NAME, TEXT, hosts, 1)


@pytest.mark.parametrize("port", [None, 0])
def test_a_record_without_a_port_is_refused(port: int | None) -> None:
    with pytest.raises(MalformedRecord, match="no port"):
        decode_record(NAME, TEXT, HOSTS, port)


def test_a_record_makes_nobody_dial_thousands() -> None:
    hosts = [f"192.0.2.{i}" for i in range(200)]
    assert len(decode_record(NAME, TEXT, hosts, 1).addresses) == ADDRESSES_MAX
    everywhere = NODE._replace(addresses=tuple(Address(host, 1) for host in hosts))
    assert len(announced_place(everywhere)[0]) == ADDRESSES_MAX


def test_a_record_carries_numeric_addresses_of_one_port() -> None:
    places = [("name", 1), ("192.0.2.1", 2), ("fe80::1%eth0", 2), ("192.0.2.2", 3)]
    node = NODE._replace(addresses=tuple(Address(*place) for place in places))
    assert announced_place(node) == (["192.0.2.1", "fe80::1"], 2)
    assert announced_place(NODE._replace(addresses=(Address("name", 1),))) == ([], 0)


@given(
    st.one_of(st.text(), st.just(NAME)),
    st.dictionaries(
        st.one_of(st.sampled_from(sorted(TEXT)), st.binary()),
        st.one_of(st.none(), st.binary(), st.sampled_from(list(TEXT.values()))),
    ),
    st.lists(st.one_of(st.text(), st.ip_addresses().map(str))),
    st.integers(0, 65535),
)
def test_nothing_but_a_refusal_comes_of_garbage(
    name: str, text: dict[bytes, bytes | None], hosts: list[str], port: int
) -> None:
    with suppress(MalformedRecord):
        decode_record(name, {**TEXT, **text}, hosts, port)
