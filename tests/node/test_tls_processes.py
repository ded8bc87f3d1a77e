"""Nodes in processes of their own, in TLS: linked, killed, reloaded, and started wrongly."""

import json
import signal
import stat
from pathlib import Path

import pytest
import trio

import busnode
from busnode.wire.errors import TlsFailed
from tests.certificates import Authority, Files
from tests.node.process_cluster import PATIENCE_S, Cluster, cluster_of
from tests.node.processes import run

pytestmark = pytest.mark.scenario

KILLS = 4
MESSAGES_PER_KILL = 300


def options_of(authority: Authority, node: Files) -> dict[str, str]:
    return {
        "tls_cert": node.certificate, "tls_key": node.key, "tls_ca": authority.certificate
    }  # fmt: skip


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "certificates")


def logs_of(folder: Path) -> str:
    return "".join(path.read_text() for path in folder.glob("*.log"))


async def test_nothing_mirrored_is_lost_while_nodes_are_killed(
    authority: Authority, tmp_path: Path
) -> None:
    """Links and clients in TLS: a node killed again and again under a publisher and a consumer."""
    folder = tmp_path / "nodes"
    options = options_of(authority, authority.node())
    acked: list[bytes] = []
    got: list[bytes] = []
    async with cluster_of(folder, 3, **options) as cluster:
        await cluster.meshed()
        await cluster.mirrored()
        url, ca = cluster.url(), authority.certificate
        asked = busnode.connect(url, name="in", deadline_s=PATIENCE_S, tls_ca=ca)
        told = busnode.connect(url, name="out", deadline_s=PATIENCE_S, tls_ca=ca)
        async with (
            asked as producer,
            told as consumer,
            consumer.subscribe("/chaos", start="earliest") as messages,
        ):

            async def consume() -> None:
                async for message in messages:
                    got.append(message.payload)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(consume)
                for number in range(KILLS):
                    victim = cluster.nodes[number % 3]
                    for at in range(MESSAGES_PER_KILL):
                        if at == MESSAGES_PER_KILL // 3:
                            victim.end(signal.SIGKILL)
                        payload = b"%d-%d" % (number, at)
                        with trio.fail_after(PATIENCE_S):
                            receipt = await producer.publish("/chaos", payload, persistent=True)
                        if receipt.level == "mirrored":
                            acked.append(payload)
                    await trio.to_thread.run_sync(victim.start)
                    await cluster.meshed()
                with trio.fail_after(PATIENCE_S):
                    while not set(acked) <= set(got):
                        await trio.sleep(0.01)
                nursery.cancel_scope.cancel()
    assert len(acked) > KILLS * MESSAGES_PER_KILL / 4
    assert len(got) == len(set(got)), "something came twice"
    assert "Traceback" not in logs_of(folder)


async def test_a_large_log_is_replayed_byte_for_byte_from_another_node(
    authority: Authority, tmp_path: Path
) -> None:
    options = options_of(authority, authority.node())
    payloads = [bytes([n % 251]) * 50_000 for n in range(1000)]
    async with cluster_of(tmp_path / "nodes", 2, **options) as cluster:
        await cluster.meshed()
        one, two = cluster.nodes
        ca = authority.certificate
        async with (
            busnode.connect(one.url, tls_ca=ca) as bus,
            bus.publisher("/large", persistent=True) as out,
        ):
            for payload in payloads:
                await out.send(payload)
        async with (
            busnode.connect(two.url, tls_ca=ca) as bus,
            bus.subscribe("/large", start="earliest") as messages,
        ):
            with trio.fail_after(PATIENCE_S):
                for payload in payloads:
                    assert (await anext(messages)).payload == payload


async def test_a_node_of_another_authority_is_kept_out(
    authority: Authority, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path / "stranger")
    ours = Cluster(tmp_path / "ours", **options_of(authority, authority.node()))
    theirs = Cluster(tmp_path / "theirs", ours.id, **options_of(stranger, stranger.node()))
    try:
        node = await trio.to_thread.run_sync(ours.add, "n1")
        rogue = await trio.to_thread.run_sync(theirs.add, "n2")
        with trio.fail_after(PATIENCE_S):
            while True:
                peers = (await theirs.status(rogue))["cluster"]["peers"]
                if any("not signed by" in str(peer["error"]) for peer in peers):
                    break
                await trio.sleep(0.02)
        for cluster, one in ((ours, node), (theirs, rogue)):
            for peer in (await cluster.status(one))["cluster"]["peers"]:
                assert peer["link"] != "up"
                assert not peer["dials_us"]
    finally:
        ours.close()
        theirs.close()


async def test_sighup_brings_the_new_certificate(authority: Authority, tmp_path: Path) -> None:
    options = options_of(authority, authority.node())
    async with cluster_of(tmp_path / "nodes", 1, **options) as cluster:
        (node,) = cluster.nodes
        async with busnode.connect(node.url, tls_ca=authority.certificate) as bus:
            new = Authority(authority.folder, "new")
            Files(authority.folder, "node", new._make("node", ("127.0.0.1",), 30, is_node=True))
            node.send(signal.SIGHUP)
            with trio.fail_after(PATIENCE_S):
                while True:
                    try:
                        async with busnode.connect(node.url, tls_ca=new.certificate):
                            break
                    except TlsFailed:
                        await trio.sleep(0.01)
            assert await bus.publish("/a", b"x", persistent=True)
            assert bus.statistics().connections == 1


def test_a_command_makes_what_a_cluster_needs(tmp_path: Path) -> None:
    where = ["--directory", str(tmp_path)]
    assert run("key", "ca", *where).returncode == 0
    assert run("key", "cert", "n1", "--host", "n1.example", *where).returncode == 0
    assert run("key", "cert", "alice", "--client", *where).returncode == 0
    for name in ("busnode-ca", "n1", "alice"):
        assert stat.S_IMODE((tmp_path / f"{name}.key").stat().st_mode) == 0o600
    before = (tmp_path / "n1.key").read_bytes()
    again = run("key", "cert", "n1", "--json", *where)
    assert again.returncode == 2
    assert "not overwritten" in json.loads(again.stderr)["text"]
    assert (tmp_path / "n1.key").read_bytes() == before
    alone = run("key", "cert", "n2", "--directory", "/")
    assert alone.returncode == 2
    assert "`busnode key ca` makes it" in alone.stderr


@pytest.mark.parametrize("wrong", ["missing", "garbled", "another's"])
def test_a_key_that_does_not_fit_is_one_line_and_exit_code_2(
    authority: Authority, tmp_path: Path, wrong: str
) -> None:
    node, other = authority.node(), authority.node("other")
    garbage = tmp_path / "garbage"
    garbage.write_text("garbage")
    key = {"missing": "/not/there", "garbled": str(garbage), "another's": other.key}[wrong]
    ended = run(
        "start", "--cluster-id", "x", "--storage", "memory", "--port", "0", "--peer-port", "off",
        "--http-port", "off", "--tls-cert", node.certificate, "--tls-key", key,
    )  # fmt: skip
    assert ended.returncode == 2, ended.stderr
    assert f"BAD_SETTING: TLS: {key}: " in ended.stderr
    assert "Traceback" not in ended.stderr
