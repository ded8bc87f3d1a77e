"""Access of nodes in processes of their own: SIGHUP, start, and what becomes of names on disk."""

import os
import signal
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pytest
import trio

import busnode
from busnode.node.config import BadSetting, NodeConfig
from busnode.node.settings import check
from busnode.security.cluster_key import KEY_BYTES, make_key
from busnode.wire.control import Ack, Subscribe, TaskPoll
from busnode.wire.errors import NotAuthenticated
from busnode.world.discovery import Hint

from .guarded import Nodes, Papers, came_as, token_of, users_text
from .process_cluster import PATIENCE_S, Node, until
from .raw_client import AMPLE

ALL = '["*".allow]\nany = ["/*", "/$task/*", "/$sys/*"]\n'


# SIGHUP -------------------------------------------------------------------------------------------


async def test_a_process_reads_its_files_again_on_sighup(tmp_path: Path) -> None:
    papers = Papers(tmp_path / "papers", "ada", "eve", acl=ALL)
    node = Node("hup", "n1", tmp_path, mdns="off", **papers.settings)
    await trio.to_thread.run_sync(node.start)
    try:
        async with busnode.connect(node.url, token=token_of("ada")) as ada:
            async with busnode.connect(node.url, token=token_of("eve")) as eve:
                await eve.publish("/a", b"1", persistent=True)
                papers.acl.write_text("this is no TOML [")
                node.send(signal.SIGHUP)
                await until(lambda: "access not reloaded" in log_of(tmp_path), "the refusal")
                await eve.publish("/a", b"2", persistent=True)
                papers.acl.write_text(ALL)
                papers.users.write_text(users_text(["ada"]))
                node.send(signal.SIGHUP)
                await until(lambda: "ended=1" in log_of(tmp_path), "the end of eve")
                with pytest.raises(NotAuthenticated):
                    with trio.fail_after(PATIENCE_S):
                        await eve.publish("/a", b"3", persistent=True)
            await ada.publish("/a", b"4", persistent=True)
            assert ada.statistics().connections == 1, "it was never sent away"
    finally:
        node.end()
    log = log_of(tmp_path)
    for secret in (token_of("ada"), token_of("eve"), papers.key.read_text().strip()):
        assert secret not in log
        assert secret.rpartition(".")[2] not in log


def log_of(folder: Path) -> str:
    return (folder / "n1.log").read_text()


# Keys that change ---------------------------------------------------------------------------------


async def test_a_key_is_changed_without_an_end_of_the_cluster(tmp_path: Path) -> None:
    papers = Papers(tmp_path / "papers", "root", acl=ALL)
    nodes = Nodes(tmp_path, papers)
    old, new = papers.key.read_text(), make_key(b"n" * KEY_BYTES) + "\n"
    async with nodes.running("a") as a, nodes.running("b") as b:
        links = dict(a.node.peers.links)
        for text in (old + new, new + old):
            papers.key.write_text(text)
            for bus in (a, b):
                await bus.node.reloading.reload()
            await nodes.meshed()
            assert a.node.peers.links == links, "nobody had to go"
        papers.key.write_text(new)
        for bus in (a, b):
            await bus.node.reloading.reload()
        # Who came with the old one shows the new one now.
        await a.settled(lambda: not set(links.values()) & set(a.node.peers.links.values()))
        await nodes.meshed()
        assert {each.key for each in a.node.peers.links.values()} == set(a.node.access.keys)
        assert {each.key for each in a.node.peers.sessions.values()} == set(a.node.access.keys)


async def test_a_node_that_dials_itself_knows_that_and_reports_nobody(tmp_path: Path) -> None:
    papers = Papers(tmp_path / "papers", "root", acl=ALL)
    nodes = Nodes(tmp_path, papers)
    async with nodes.running("a") as a:
        peer = a.node.listeners.peer
        assert peer is not None
        membership = a.node.peers.membership
        a.node.peers.dialling.hint(Hint((peer.address,), "seed"))
        await a.settled(lambda: membership.counts.own == 1)
        assert not a.node.peers.links
        assert not a.node.peers.sessions
        rows = a.node.events.answer(b"", None)["events"]
        assert not [row for row in rows if row["kind"] == "peer.refused"]


# Where strangers could come -----------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["users", "cluster_key", "both"])
def test_a_node_does_not_listen_beyond_this_machine_without_both(
    tmp_path: Path, missing: str
) -> None:
    papers = Papers(tmp_path / "papers", "ada")
    settings: dict[str, Any] = dict(papers.settings)
    check(NodeConfig("test", "n", listen="0.0.0.0", **settings))
    for name in ("users", "cluster_key") if missing == "both" else (missing,):
        settings[name] = None
    with pytest.raises(BadSetting, match=r"--users|--cluster-key"):
        check(NodeConfig("test", "n", listen="0.0.0.0", **settings))
    check(NodeConfig("test", "n", listen="0.0.0.0", insecure=True, **settings))
    check(NodeConfig("test", "n", listen="127.0.0.1", **settings))


# Paths --------------------------------------------------------------------------------------------

NASTY = (
    "..", ".", "../../../../tmp/x", "a/../../b", "/etc/passwd", "a\0b", "\0", "\uff0e\uff0e\uff0fx",
    "..\u2215x", "~", "~root", "C:\\x", "..\\..\\x", "%2e%2e%2f", "a\nb", "-rf", "$(id)", "con",
    "\u202e", "x" * 250, "*", "+", "cafe\u0301",
)  # fmt: skip


def everything(folder: Path) -> set[str]:
    return {os.fsencode(path.relative_to(folder)).decode("latin-1") for path in folder.rglob("*")}


async def test_no_name_of_a_client_becomes_a_path(tmp_path: Path) -> None:
    """Topics, queues, durable names, groups: what a disk has are numbers."""
    folder = tmp_path / "all"
    folder.mkdir()
    papers = Papers(tmp_path / "papers", "ada", "root", acl=ALL)
    async with Nodes(folder, papers).running("a") as bus:
        number = 0
        for nasty in NASTY:
            async with came_as(bus.network, bus.node.address, "ada") as client:
                for topic in (
                    f"/{nasty}",
                    nasty,
                    f"/a/{nasty}/b",
                    f"/$task/{nasty}",
                    f"/$sys/{nasty}",
                ):
                    if not 2 <= len(topic.encode()) <= 255:
                        continue
                    await client.send(client.batch(topic.encode(), [b"x"]))
                for durable, queue in ((nasty, None), (None, nasty)):
                    if len(nasty.encode()) > 60:
                        continue
                    number += 1
                    message = Subscribe(number, "/a", "latest", {}, durable, queue, AMPLE)
                    await client.send(message)
                if len(nasty.encode()) <= 60:
                    await client.send(TaskPoll(number, nasty, 1, 20.0, 0, nasty))
                await bus.all_sent(client)
        await bus.committed()
        topics = {log.log_id.topic for log in bus.node.store.logs()}
        assert any("~root" in topic for topic in topics), "some of them are topics"
    found = everything(tmp_path)
    outside = {each for each in found if not each.startswith(("all", "papers"))}
    assert outside == set()
    below = {Path(each).name for each in found if each.startswith("all/a/")}
    allowed = set("0123456789abcdefghijklmnopqrstuvwxyz.-_")
    assert all(set(name) <= allowed for name in below), below
    for nasty in NASTY:
        for form in ("NFC", "NFD", "NFKC"):
            assert unicodedata.normalize(form, nasty) not in below
    assert not Path("/tmp/x").exists()


@pytest.mark.parametrize("nasty", [each for each in NASTY if each not in ("con",)])
def test_no_name_of_a_node_or_a_cluster_becomes_a_path(tmp_path: Path, nasty: str) -> None:
    with pytest.raises(BadSetting):
        check(NodeConfig("test", nasty))
    command = [
        sys.executable, "-c", "from busnode.node.cli import main; main()", "start",
        "--name", nasty, "--cluster-id", "x", "--port", "0", "--peer-port", "off",
    ]  # fmt: skip
    if "\0" not in nasty and nasty in ("..", "../../../../tmp/x", "a/../../b"):
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=60, check=False)
        assert ended.returncode == 2
        assert everything(tmp_path) == set()


async def test_a_cluster_id_of_any_kind_is_in_no_path(tmp_path: Path) -> None:
    folder = tmp_path / "all"
    for n, nasty in enumerate(("..", "../x", "a/b", "~")):
        papers = Papers(tmp_path / "papers", "ada", acl=ALL)
        async with (
            Nodes(folder / str(n), papers, cluster_id=nasty).running("a") as bus,
            came_as(bus.network, bus.node.address, "ada") as client,
        ):
            await client.send(client.batch("/a", [b"x"]))
            await client.expect(Ack)
    names = {Path(each).name for each in everything(tmp_path)}
    allowed = set("0123456789abcdefghijklmnopqrstuvwxyz.-_")
    assert all(set(name) <= allowed for name in names), names
    assert {each.name for each in tmp_path.iterdir()} == {"all", "papers"}


# The sink -----------------------------------------------------------------------------------------


async def test_a_table_is_published_by_who_shows_a_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What runs at an executor, twice: the second time publishes nothing."""
    pytest.importorskip("pyspark")
    import pyarrow as pa

    from busnode.pipeline.numbering import Numbering
    from busnode.pipeline.options import sink_options
    from busnode.pipeline.sink import publish

    papers = Papers(tmp_path / "papers", "ada", acl=ALL)
    async with Nodes(tmp_path, papers).running("a") as bus:
        options = sink_options(
            {"url": f"bus://{bus.node.address}", "topic": "/out"}, overwrite=False
        )
        rows = pa.RecordBatch.from_pydict({"payload": [b"%d" % n for n in range(1000)]})
        monkeypatch.setenv("BUSNODE_TOKEN", token_of("ada"))
        for _ in range(2):
            await trio.to_thread.run_sync(
                lambda: publish(options, Numbering("query", 1, 0), iter([rows]))
            )
        (log,) = (log for log in bus.node.store.logs() if log.log_id.topic == "/out")
        assert log.committed_no == 1000
        monkeypatch.setenv("BUSNODE_TOKEN", token_of("eve"))
        with pytest.raises(NotAuthenticated):
            await trio.to_thread.run_sync(
                lambda: publish(options, Numbering("query", 2, 0), iter([rows]))
            )
