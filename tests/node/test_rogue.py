"""Rogue nodes: with the right cluster id and no key, with a wrong one, and with the right one."""

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from busnode.node.node import RunningNode
from busnode.security.cluster_key import ClusterKey, Transcript
from busnode.segments.store import Log
from busnode.wire.control import (
    Chunk,
    Error,
    Interest,
    MembersSeen,
    Mirror,
    PeerChallenge,
    PeerHello,
    PeerProof,
    PeerWelcome,
    Ping,
    Pong,
    encode_control,
)
from busnode.wire.frames import Flags, FrameType, broker_seed
from busnode.wire.ids import BrokerId
from busnode.wire.limits import PROTOCOL_VERSION
from busnode.wire.reader import FrameReader
from busnode.wire.runs import stamp_run, verify_runs
from busnode.wire.sessions import Side
from busnode.world.discovery import Hint
from busnode.world.network import Address

from ..wire.samples import batch
from .guarded import KEY, Nodes, Papers, came_as
from .raw_client import Bus, RawClient
from .test_access import ALL, audited

ROOT = Path(__file__).parents[2]
MARKS = (b"MARKED", b"/secret", b"ada", b"node-a", b"node-b")
"""Payloads, topics, identities and names: nothing of it is for strangers."""


async def planted(bus: Bus) -> None:
    """Content that a peer would get."""
    async with came_as(bus.network, bus.node.address, "ada") as writer:
        await writer.send(writer.batch("/secret/MARKED", [b"MARKED"]))
        await writer.send(writer.batch("/$task/q", [b"MARKED"]))
        await bus.committed()
        await writer.subscribe("/secret/*", "earliest", durable="d")
        await writer.barrier()


def kinds(heard: bytes) -> list[int]:
    found: list[int] = []
    while heard:
        found.append(heard[4])
        heard = heard[int.from_bytes(heard[:4], "little") :]
    return found


def peer_address(bus: Bus) -> Address:
    peer = bus.node.listeners.peer
    assert peer is not None
    return peer.address


async def run_rogue(plan: dict[str, Any]) -> list[bytes]:
    command = [sys.executable, "-m", "tests.node.rogue", json.dumps(plan)]
    ended = await trio.run_process(command, capture_stdout=True, cwd=ROOT)
    return [bytes.fromhex(each) for each in json.loads(ended.stdout)]


def nodes_of(folder: Path) -> Nodes:
    return Nodes(folder, Papers(folder / "papers", "ada", "root", acl=ALL))


async def reported(bus: Bus, *whys: str) -> None:
    """That each was refused is kept, and is an event."""
    entries = [each for each in await audited(bus) if each["kind"] == "peer.refused"]
    told = json.dumps(entries)
    for why in whys:
        assert why in told, told
    rows = bus.node.events.answer(b"", None)["events"]
    assert any(row["kind"] == "peer.refused" for row in rows)
    assert KEY.secret.decode() not in told


# Without the key ----------------------------------------------------------------------------------


async def test_a_rogue_that_dials_in_learns_nothing_beyond_the_handshake(tmp_path: Path) -> None:
    async with nodes_of(tmp_path).running("node-a") as bus:
        await planted(bus)
        plan = {
            "do": "dial", "at": str(peer_address(bus)), "cluster_id": "test",
            "key_id": KEY.key_id.hex(),
        }  # fmt: skip
        lines = await run_rogue(plan)
        assert len(lines) == 12
        for heard in lines:
            assert kinds(heard) in (
                [FrameType.ERROR],
                [FrameType.PEER_CHALLENGE, FrameType.ERROR],
            ), heard
            assert not [mark for mark in MARKS if mark in heard], heard
            assert str(bus.node.address.port).encode() not in heard
            assert KEY.secret not in heard
        assert not bus.node.peers.sessions
        assert not bus.node.peers.links
        await reported(bus, "has shown none", "another cluster key", "must come first")


async def test_a_rogue_that_is_dialled_learns_nothing_beyond_the_handshake(tmp_path: Path) -> None:
    """It sits at an address that was only heard of. One of its ways is to let the node challenge
    and answer itself."""
    nodes = nodes_of(tmp_path)
    async with nodes.running("node-b") as other, trio.open_nursery() as nursery:
        await planted(other)
        plan = {
            "do": "listen", "at": str(peer_address(other)), "cluster_id": "test",
            "key_id": KEY.key_id.hex(),
        }  # fmt: skip
        command = [sys.executable, "-m", "tests.node.rogue", json.dumps(plan)]
        process: trio.Process = await nursery.start(
            lambda task_status: trio.run_process(
                command, stdout=subprocess.PIPE, cwd=ROOT, task_status=task_status, check=False
            )
        )
        assert process.stdout is not None
        out = b""
        while b"\n" not in out:
            out += await process.stdout.receive_some()
        rogue = Address("127.0.0.1", int(out))
        out = b""
        other.node.peers.dialling.hint(Hint((rogue,), "seed"))
        with trio.fail_after(60):
            async for part in process.stdout:
                out += part
        lines = [bytes.fromhex(each) for each in json.loads(out)]
        assert len(lines) == 5
        for heard in lines:
            assert kinds(heard)[0] == FrameType.PEER_HELLO
            assert set(kinds(heard)[1:]) <= {FrameType.PEER_CHALLENGE}, heard
            assert not [mark for mark in MARKS if mark in heard], heard
            assert str(other.node.address.port).encode() not in heard
        assert kinds(lines[-1]) == [FrameType.PEER_HELLO, FrameType.PEER_CHALLENGE]
        assert not other.node.peers.links
        await reported(other, "has shown none", "another cluster key")


# With the key -------------------------------------------------------------------------------------


class RawPeer(RawClient):
    """A peer in the protocol's own words."""

    def __init__(self, stream: Any, producer_id: int) -> None:
        super().__init__(stream, producer_id)
        self._reader = FrameReader(copies=True)
        self.sent: list[bytes] = []

    async def greet(self, bus: Bus, broker_id: BrokerId, name: str, key: ClusterKey = KEY) -> None:
        nonce = b"n" * 32
        hello = PeerHello(PROTOCOL_VERSION, "test", broker_id, "", [], [], key.key_id, nonce)
        await self.send(hello)
        challenge = await self.expect(PeerChallenge)
        said = Transcript(
            PROTOCOL_VERSION, "test", broker_id, bus.broker_id, nonce, challenge.nonce
        )
        assert said.is_proof(key, Side.LISTENER, challenge.proof)
        proof = PeerProof(said.prove(key, Side.DIALLER), name, [], [])
        self.sent = [encode_control(hello), encode_control(proof)]
        await self.send(proof)


@asynccontextmanager
async def dialled_peer(bus: Bus) -> AsyncIterator[RawPeer]:
    stream = await bus.network.dial(peer_address(bus))
    try:
        yield RawPeer(stream, 1)
    finally:
        stream.close()


async def test_a_recorded_handshake_is_refused_the_second_time(tmp_path: Path) -> None:
    async with nodes_of(tmp_path).running("node-a") as bus:
        async with dialled_peer(bus) as peer:
            await peer.greet(bus, BrokerId(b"P" * 16), "peer")
            assert (await peer.expect(PeerWelcome)).node == "node-a"
        async with dialled_peer(bus) as again:
            await again.send(*peer.sent)
            events = await again.ended()
            assert [type(each) for each in events] == [PeerChallenge, Error]
            assert isinstance(events[1], Error)
            assert events[1].code == "NOT_AUTHENTICATED"
        await reported(bus, "another cluster key")


def log_of(node: RunningNode, broker_id: BrokerId, topic: str) -> Log:
    (log,) = (log for log in node.store.logs() if log.log_id == (broker_id, topic))
    return log


def record(broker_id: BrokerId, topic: str, number: int) -> bytes:
    """A record of a log as its origin would send it, with the CHUNK that announces it."""
    buffer = bytearray(batch(topic, [b"forged"], flags=int(Flags.GLOBAL | Flags.PERSISTENT)))
    with memoryview(buffer) as view:
        (run,), _ = verify_runs(buffer, view, 0, len(buffer))
        stamp_run(view, run, broker_id, broker_seed(broker_id), number)
    chunk = Chunk(0, 0, broker_id, topic, number, number, len(buffer), last=True)
    return encode_control(chunk) + buffer


@pytest.mark.parametrize("whose", ["a live node's", "the node's own"])
async def test_a_peer_that_says_to_be_another_is_refused_and_reported(
    tmp_path: Path, whose: str
) -> None:
    nodes = nodes_of(tmp_path)
    async with nodes.running("node-a") as first:
        await planted(first)
    async with nodes.running("node-a") as a, nodes.running("node-b") as b:
        claimed = {"a live node's": b.broker_id, "the node's own": a.broker_id}[whose]
        session = a.node.peers.sessions[b.broker_id]
        link = a.node.peers.links[b.broker_id]
        async with dialled_peer(a) as peer:
            await peer.greet(a, claimed, "rogue")
            wanted = Interest(1, "/*", None, 1, 1 << 40)
            await peer.send(MembersSeen([]), wanted, Mirror(claimed), record(claimed, "/x", 1))
            events = await peer.ended()
            assert [type(each) for each in events] == [Error]
            assert isinstance(events[0], Error)
            assert events[0].code == "NOT_AUTHENTICATED"
        assert a.node.peers.sessions[b.broker_id] is session, "the true one stays"
        assert a.node.peers.links[b.broker_id] is link
        await reported(a, "itself" if whose == "the node's own" else claimed.hex())


@pytest.mark.parametrize("mirrors", [True, False])
@pytest.mark.parametrize("whose", ["another's", "the node's own", "the node's own, earlier"])
async def test_a_peer_writes_only_its_own_logs(tmp_path: Path, mirrors: bool, whose: str) -> None:
    nodes = nodes_of(tmp_path)
    async with nodes.running("node-a") as first:
        earlier = first.broker_id
        await planted(first)
    async with nodes.running("node-a") as a, nodes.running("node-b") as b:
        await planted(a)
        async with came_as(b.network, b.node.address, "ada") as writer:
            await writer.send(writer.batch("/secret/b", [b"true"]))
            await writer.acked_any(1)
        await a.settled(lambda: any(log.log_id.topic == "/secret/b" for log in a.node.store.logs()))
        broker_id, topic = {
            "another's": (b.broker_id, "/secret/b"),
            "the node's own": (a.broker_id, "/secret/MARKED"),
            "the node's own, earlier": (earlier, "/secret/MARKED"),
        }[whose]
        await a.committed()
        log = log_of(a.node, broker_id, topic)
        before, files = log.committed_no, log_bytes(a.node)
        async with dialled_peer(a) as peer:
            await peer.greet(a, BrokerId(b"P" * 16), "rogue")
            await peer.expect(PeerWelcome)
            await peer.send(MembersSeen([]))
            if mirrors:
                await peer.send(Mirror(broker_id))
                if whose != "the node's own, earlier":
                    refused = await peer.refused()
                    assert refused.code == "SECOND_WRITER"
            await peer.send(*(record(broker_id, topic, number) for number in (before, before + 1)))
            await peer.send(Ping(5))
            if not (mirrors and whose == "the node's own, earlier"):
                events = await peer.ended()
                assert any(isinstance(each, Error) for each in events)
                assert not any(isinstance(each, Pong) for each in events), "its session ends"
                assert log.committed_no == before
                assert log.next_no == before + 1
                assert log_bytes(a.node) == files, "no byte of it has changed"
                await reported(a, "may not write them")
            else:
                # What it wrote in an earlier life is given back to it, by any node that has more.
                await peer.expect(Pong)
                after = log_bytes(a.node)
                assert all(after[path].startswith(data) for path, data in files.items())


def log_bytes(node: RunningNode) -> dict[str, bytes]:
    """The bytes on disk of all logs that are about secrets."""
    found: dict[str, bytes] = {}
    for path in sorted(Path(str(node.config.data)).rglob("*")):
        if path.is_file():
            data = path.read_bytes()
            if b"/secret" in data and b"/$sys" not in data:
                found[str(path)] = data
    return found
