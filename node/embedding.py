"""A whole node inside of a user's process: `async with busnode.Node(...) as node`."""

from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Self, TypedDict, Unpack

import sniffio

from busnode.node.config import NodeConfig
from busnode.node.node import RunningNode, start_node
from busnode.node.settings import check, safe_name, warn_if_open
from busnode.node.surroundings import surroundings
from busnode.wire.ids import BrokerId
from busnode.wire.retry_schedule import Schedule
from busnode.world.network import Address
from busnode.world.real_process import absolute, host_name
from busnode.world.real_thread import TrioThread


class NodeSettings(TypedDict, total=False):
    """The fields of `NodeConfig`, as keywords."""

    name: str | None
    data: str | None
    listen: str
    insecure: bool
    cluster_key: str | None
    users: str | None
    acl: str | None
    tls_cert: str | None
    tls_key: str | None
    tls_ca: str | None
    tls_client_cert: str
    interface: str | None
    port: int
    peer_port: int | None
    seeds: tuple[Address, ...]
    mirrors: int
    mirror: str | None
    catchup_rate: int | None
    repair_after_s: float
    compare_every_s: float
    require_mirror: bool
    mdns: bool
    http_port: int | None
    storage: str
    retain_s: float
    retain_bytes: int | None
    task_retry: Schedule
    queue_retries: tuple[tuple[str, Schedule], ...]
    adopt_after_s: float
    retain_dead_s: float
    segment_bytes_max: int
    heartbeat_s: float
    link_heartbeat_s: float
    hello_timeout_s: float
    drain_timeout_s: float
    subscriptions_max: int
    clients_max: int
    connections_per_address: int
    handshakes_per_address: int
    handshake_burst: int
    limit_loopback: bool
    half_open_max: int
    connections_per_identity: int
    subscriptions_per_identity: int
    publish_rate: int | None
    publish_size_rate: int | None
    in_flight_per_identity: int
    memory_max: int | None


class Node:
    """A node that runs while its block does; leaving the block drains and closes it.

    On trio it runs on the loop of whoever enters it, and if it fails the block is cancelled. On
    asyncio it runs on a loop of its own in a thread, and a failure is raised where the block ends.
    What `busnode start` would refuse raises `BusnodeError` or `OSError`: wrong settings here, a
    taken port or a data directory in use where the block begins.

    Settings and defaults are those of `busnode start`, with units in their names (`retain_s`), but
    HTTP is off unless it gets a port, and the node stays alone unless it gets one for its peers
    (`peer_port=0` picks a free one). `storage="memory"` needs no directory and keeps nothing.
    """

    def __init__(self, cluster_id: str, **settings: Unpack[NodeSettings]) -> None:
        settings.setdefault("http_port", None)
        settings.setdefault("peer_port", None)
        config = NodeConfig(cluster_id, **settings)
        check(config)
        self._otherwise_named = safe_name(host_name())
        if config.storage != "memory":
            name = config.name or self._otherwise_named
            settings["data"] = absolute(config.data or f"busnode-data/{name}")
        self._config = NodeConfig(cluster_id, **settings)
        self._node: RunningNode | None = None
        self._running: AbstractAsyncContextManager[RunningNode] | None = None

    async def __aenter__(self) -> Self:
        if self._running is not None:
            raise RuntimeError("a Node is entered once: make another one")
        config, world = surroundings(self._config)
        running = start_node(world, config, self._otherwise_named)
        if sniffio.current_async_library() == "trio":
            self._running = running
        else:
            self._running = TrioThread(running, f"busnode {self._config.cluster_id}")
        self._node = await self._running.__aenter__()
        warn_if_open(self._config)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._running is not None
        # The block's own error is none of the node's: inside, its nursery would wrap it in a group.
        await self._running.__aexit__(None, None, None)

    @property
    def url(self) -> str:
        """What `busnode.connect` takes."""
        return f"{self._there.scheme}{self._there.address}"

    @property
    def http_url(self) -> str | None:
        """Where metrics, health and status are, if they are anywhere."""
        http = self._there.listeners.http
        scheme = "http" if self._config.tls_cert is None else "https"
        return None if http is None else f"{scheme}://{http.address}"

    @property
    def name(self) -> str:
        return self._there.name

    @property
    def broker_id(self) -> BrokerId:
        """Of its present incarnation."""
        return self._there.broker_id

    async def drain(self) -> None:
        """Take no more clients, send those there are elsewhere, and commit what is pending."""
        if isinstance(self._running, TrioThread):
            await self._running.call(self._there.drain)
        else:
            await self._there.drain()

    @property
    def _there(self) -> RunningNode:
        if self._node is None:
            raise RuntimeError("this Node is not running: use it as `async with Node(...) as node`")
        return self._node
