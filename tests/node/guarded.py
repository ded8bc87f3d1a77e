"""Nodes that ask who comes, and clients that show it, for tests of access."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

import trio

from busnode.node.node import start_node
from busnode.security.cluster_key import KEY_BYTES, ClusterKey, make_key
from busnode.security.users import TOKEN_BYTES, digest_token, hash_password, make_token
from busnode.testing.full_mesh import not_meshed
from busnode.wire.control import Ack, Hello, Welcome
from busnode.wire.limits import PROTOCOL_VERSION
from busnode.wire.producer_tag import tagged
from busnode.world.network import Address, Network, Stream
from busnode.world.real_world import real_world
from busnode.world.static_discovery import StaticDiscovery

from .raw_client import CONFIG, WAIT_S, Bus, RawClient

PASSWORD: Final = "correct horse battery"
KEY: Final = ClusterKey(b"k" * KEY_BYTES)


def token_of(identity: str, generation: int = 0) -> str:
    return make_token(identity, bytes([generation]) * TOKEN_BYTES)


def users_text(names: Iterable[str]) -> str:
    return "".join(f'["{each}"]\ntokens = ["{digest_token(token_of(each))}"]\n' for each in names)


def password_row(name: str, password: str = PASSWORD) -> str:
    return f'["{name}"]\npassword = "{hash_password(password, bytes(16))}"\n'


class Papers:
    """The files of users, rules and keys in a folder, and the settings that name them."""

    def __init__(self, folder: Path, *users: str, acl: str | None = None) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.users = folder / "users.toml"
        self.acl = folder / "acl.toml"
        self.key = folder / "cluster.key"
        self.users.write_text(users_text(users))
        self.key.write_text(make_key(KEY.secret) + "\n")
        if acl is not None:
            self.acl.write_text(acl)

    @property
    def settings(self) -> dict[str, Any]:
        found = {"users": str(self.users), "cluster_key": str(self.key)}
        if self.acl.exists():
            found["acl"] = str(self.acl)
        return found


class Recording:
    """A stream that keeps every byte that it was sent."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.heard = bytearray()

    def receive_into(self, space: memoryview) -> int | None:
        count = self.stream.receive_into(space)
        self.heard += space[: count or 0]
        return count

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class GuardedClient(RawClient):
    """One that shows who it is, and keeps every byte that it was sent."""

    def __init__(self, stream: Stream, producer_id: int) -> None:
        self._recording = Recording(stream)
        super().__init__(cast(Stream, self._recording), producer_id)

    @property
    def heard(self) -> bytes:
        return bytes(self._recording.heard)

    async def acked_any(self, batches: int) -> None:
        """So many batches are acked, at whatever level."""
        while batches > 0:
            batches -= sum(count for _, count, _ in (await self.expect(Ack)).receipts)

    async def barrier_kept(self) -> None:
        """A barrier; what came before it stays for others to find."""
        self._events.extend(await self.barrier())

    async def show(self, identity: str, secret: str | None = None) -> Welcome:
        """HELLO with a token, of the producerId that is the identity's."""
        self.producer_id = tagged(self.producer_id, identity)
        shown = token_of(identity) if secret is None else secret
        if identity == "anonymous":
            shown = ""
        await self.send(Hello(PROTOCOL_VERSION, identity, self.producer_id, "", shown))
        self.welcome = await self.expect(Welcome)
        return self.welcome


@asynccontextmanager
async def came_as(
    network: Network, address: Address, identity: str, producer_id: int = 1
) -> AsyncIterator[GuardedClient]:
    client = GuardedClient(await network.dial(address), producer_id)
    try:
        await client.show(identity)
        yield client
    finally:
        client.stream.close()


class Nodes:
    """Nodes of one cluster on loopback sockets, in this process."""

    def __init__(self, folder: Path, papers: Papers, **settings: Any) -> None:
        self._folder = folder
        self._settings = {**papers.settings, **settings}
        self._by_name: dict[str, Bus] = {}

    def __getitem__(self, name: str) -> Bus:
        return self._by_name[name]

    @asynccontextmanager
    async def running(self, name: str, **settings: Any) -> AsyncIterator[Bus]:
        """One more, linked with all others both ways."""
        seeds = [_peer_address(each) for each in self._by_name.values()]
        world = real_world(StaticDiscovery(seeds))
        config = replace(
            CONFIG, name=name, data=str(self._folder / name), peer_port=0,
            link_heartbeat_s=0.25, **{**self._settings, **settings},
        )  # fmt: skip
        async with start_node(world, config) as node:
            self._by_name[name] = Bus(node, world.network)
            await self.meshed()
            try:
                yield self._by_name[name]
            finally:
                del self._by_name[name]

    async def meshed(self) -> None:
        nodes = [each.node.peers for each in self._by_name.values()]
        with trio.fail_after(WAIT_S):
            while not_meshed(nodes, lambda _, __: False):
                await trio.sleep(0.005)


def _peer_address(bus: Bus) -> Address:
    peer = bus.node.listeners.peer
    assert peer is not None
    return peer.address
