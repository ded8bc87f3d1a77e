"""A whole node in TLS: real sockets, real certificates, one node in this process."""

import logging
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import anyio
import pytest
import trio
from cryptography import x509

import busnode
from busnode.node.config import BadSetting
from busnode.node.node import RunningNode
from busnode.node.reloading import Reloading
from busnode.security import certificates
from busnode.wire.errors import NotAuthenticated, Refused, TlsFailed
from busnode.world.network import Address
from busnode.world.real_network import RealNetwork
from busnode.world.tls import Demand
from tests.certificates import Authority, Files

BOTH = pytest.mark.parametrize("backend", ["trio", "asyncio"])


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "certificates")


@asynccontextmanager
async def node_of(
    authority: Authority, shown: Files | None = None, **settings: Any
) -> AsyncIterator[busnode.Node]:
    shown = shown or authority.node()
    settings |= {
        "tls_cert": shown.certificate, "tls_key": shown.key, "tls_ca": authority.certificate
    }  # fmt: skip
    async with busnode.Node("x", storage="memory", port=0, **settings) as node:
        yield node


def address_of(node: busnode.Node) -> Address:
    host, _, port = node.url.rpartition("/")[2].rpartition(":")
    return Address(host, int(port))


def inside(node: busnode.Node) -> RunningNode:
    return node._there


async def exchange(url: str, **options: Any) -> None:
    """Publish, and receive it back: much of it."""
    async with busnode.connect(url, deadline_s=5, **options) as bus:
        async with bus.subscribe("/a/*", start="earliest") as messages:
            payloads = [bytes([n % 256]) * 5000 for n in range(2000)]
            async with bus.publisher("/a/b", persistent=True) as out:
                for payload in payloads:
                    await out.send(payload)
            got = [(await anext(messages)).payload for _ in payloads]
        assert got == payloads


@BOTH
def test_messages_go_through_it_on_both_event_loops(authority: Authority, backend: str) -> None:
    async def main() -> None:
        async with node_of(authority) as node:
            assert node.url.startswith("bus+tls://127.0.0.1:")
            await exchange(node.url, tls_ca=authority.certificate)

    anyio.run(main, backend=backend)


@BOTH
async def test_code_without_async_has_it_too(authority: Authority, backend: str) -> None:
    async with node_of(authority) as node:
        url, ca = node.url, authority.certificate

        def use() -> None:
            with busnode.blocking.connect(url, backend=backend, tls_ca=ca) as bus:
                assert bus.publish("/a", b"x", persistent=True).msg_no == 1

        await trio.to_thread.run_sync(use)


async def test_http_is_in_tls(authority: Authority) -> None:
    async with node_of(authority, http_port=0) as node:
        url = f"{node.http_url}/health/live"
        assert url.startswith("https://")
        context = ssl.create_default_context(cafile=authority.certificate)

        def fetch() -> int:
            with urlopen(url, context=context, timeout=5) as answer:
                return int(answer.status)

        assert await trio.to_thread.run_sync(fetch) == 200


async def refusal(url: str, **options: Any) -> TlsFailed:
    """Which comes at once, and not when patience ends."""
    with trio.fail_after(10), pytest.raises(TlsFailed) as raised:
        async with busnode.connect(url, deadline_s=60, **options):
            pass
    return raised.value


async def test_a_node_that_is_not_who_it_should_be_is_refused_at_once(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ca = authority.certificate
    async with node_of(authority) as node:
        other = Authority(tmp_path / "other")
        assert "is not signed by" in (await refusal(node.url, tls_ca=other.certificate)).text
    async with node_of(authority, authority.node("old", days=-1)) as node:
        assert "has expired" in (await refusal(node.url, tls_ca=ca)).text
    async with node_of(authority, authority.node("far", "far.example")) as node:
        assert "is not for 127.0.0.1" in (await refusal(node.url, tls_ca=ca)).text
    assert "Traceback" not in caplog.text


async def test_one_side_without_tls_is_told_so(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    async with node_of(authority) as node:
        plain = node.url.replace("bus+tls", "bus")
        assert "speaks TLS: dial it with bus+tls://" in (await refusal(plain)).text
        assert any("does not speak TLS" in str(vars(record)) for record in caplog.records)
    async with busnode.Node("x", storage="memory", port=0) as node:
        url = node.url.replace("bus", "bus+tls")
        told = await refusal(url, tls_ca=authority.certificate)
        assert "does not speak TLS" in told.text
    assert "Traceback" not in caplog.text


async def test_options_of_tls_for_a_plain_url_are_refused(authority: Authority) -> None:
    with pytest.raises(Refused, match="does not begin with bus\\+tls"):
        async with busnode.connect("bus://127.0.0.1:1", tls_ca=authority.certificate):
            pass
    told = await refusal("bus+tls://127.0.0.1:1", tls_ca=f"{authority.certificate}.not")
    assert "No such file" in told.text


async def test_clients_show_certificates_where_they_are_asked_to(authority: Authority) -> None:
    alice, ca = authority.client("alice"), authority.certificate
    shown: Any = {"tls_ca": ca, "tls_cert": alice.certificate, "tls_key": alice.key}
    async with node_of(authority, tls_client_cert="required") as node:
        assert "wants a certificate" in (await refusal(node.url, tls_ca=ca)).text
        async with busnode.connect(node.url, **shown):
            (session,) = inside(node).sessions.values()
            certificate = session._stream.certificate
            assert certificate is not None
            assert certificate.common_name == "alice"
    async with (
        node_of(authority, tls_client_cert="optional") as node,
        busnode.connect(node.url, tls_ca=ca),
    ):
        (session,) = inside(node).sessions.values()
        assert session._stream.certificate is None


async def test_a_certificate_without_a_name_is_not_let_in_as_one_who_is_not_asked(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is not asked has no identity: all durable names and producerIds are theirs."""
    alice, ca = authority.client("alice"), authority.certificate
    monkeypatch.setattr(certificates, "_subject", lambda _: x509.Name([]))
    unnamed = authority.client("unnamed")
    async with node_of(authority, tls_client_cert="required") as node:
        async with (
            busnode.connect(
                node.url, tls_ca=ca, tls_cert=alice.certificate, tls_key=alice.key
            ) as bus,
            bus.subscribe("/a", durable="mine"),
        ):
            pass
        kept = inside(node).durable.names()
        assert kept == ["alice:mine"]
        with trio.fail_after(10), pytest.raises(NotAuthenticated, match="names nobody"):
            async with busnode.connect(
                node.url, tls_ca=ca, tls_cert=unnamed.certificate, tls_key=unnamed.key
            ):
                pass


async def test_a_handshake_that_never_ends_is_let_go_and_holds_up_nobody(
    authority: Authority,
) -> None:
    async with node_of(authority, hello_timeout_s=0.5) as node:
        network = RealNetwork()
        stuck = [await network.dial(address_of(node)) for _ in range(20)]
        for stream in stuck:
            stream.send(b"\x16\x03\x01")  # a handshake begins like this
        await exchange(node.url, tls_ca=authority.certificate)
        with trio.fail_after(10):
            for stream in stuck:
                view = memoryview(bytearray(100))
                while stream.receive_into(view) is None:
                    await stream.wait_readable()
                stream.close()
            while inside(node).sessions:
                await trio.sleep(0.01)


async def test_a_node_comes_in_with_a_nodes_certificate_only(authority: Authority) -> None:
    async with node_of(authority, peer_port=0, mdns=False) as node:
        listener = inside(node).listeners.peer
        assert listener is not None
        network = RealNetwork()
        for shown in (None, authority.client()):
            tls = network.tls(authority.dialling(shown, Demand.NODE))
            stream = await network.dial(listener.address, tls)
            view = memoryview(bytearray(1000))
            stream.send(b"a greeting, which nobody answers")
            with trio.fail_after(5), suppress(OSError):
                while (count := stream.receive_into(view)) != 0:
                    assert count is None, bytes(view[:count])
                    await stream.wait_readable()
            stream.close()
        assert not inside(node).peers.dialling.membership.take_due(float("inf"))


async def test_a_reload_serves_new_connections_and_drops_nobody(authority: Authority) -> None:
    ca = authority.certificate
    async with node_of(authority) as node, busnode.connect(node.url, tls_ca=ca) as bus:
        new = Authority(authority.folder, "new")
        Files(authority.folder, "node", new._make("node", ("127.0.0.1",), 30, is_node=True))
        await inside(node).reloading.reload()
        await refusal(node.url, tls_ca=ca)
        await exchange(node.url, tls_ca=new.certificate)
        assert await bus.publish("/still/there", b"x", persistent=True)
        assert bus.statistics().connections == 1
        (authority.folder / "node.pem").write_text("garbage")
        await inside(node).reloading.reload()
        await exchange(node.url, tls_ca=new.certificate)


async def test_a_part_that_cannot_be_reloaded_stays_and_stops_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    told: list[str] = []

    def fails() -> None:
        raise OSError("no such file")

    reloading = Reloading()
    reloading.add("users", fails)
    reloading.add("TLS", lambda: told.append("TLS"))
    await reloading.reload()
    assert told == ["TLS"]
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]


def _without(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda settings: settings.pop(name)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (_without("tls_cert"), "TLS needs a certificate"),
        (_without("tls_key"), "needs its private key"),
        (_without("tls_ca"), "cannot be verified without"),
        (lambda settings: settings.update(tls_key="/not/there"), "/not/there: No such file"),
    ],
)
async def test_half_of_tls_is_none(
    authority: Authority, change: Callable[[dict[str, Any]], None], told: str
) -> None:
    shown = authority.node()
    settings: dict[str, Any] = {
        "tls_cert": shown.certificate, "tls_key": shown.key, "tls_ca": authority.certificate,
        "tls_client_cert": "required",
    }  # fmt: skip
    change(settings)
    with pytest.raises(BadSetting, match=told):
        async with busnode.Node("x", storage="memory", port=0, **settings):
            pass
