"""A local cluster of real processes: kept running, watched, and if wanted killed now and then."""

from collections.abc import Callable, Sequence
from typing import Final

import trio

from busnode.node.cluster_view import ClusterView
from busnode.node.config import HTTP_PORT
from busnode.node.dev_events import Died, Event, Killed, Meshed, Restarted, Started, Torn
from busnode.node.dev_node import DevNode, NodeDied, Restarts
from busnode.node.status_page import fetch_status
from busnode.wire.errors import Unavailable
from busnode.world.network import parse_address
from busnode.world.world import World

LOOK_S: Final = 0.1
"""Between two looks while the mesh is not complete."""
LOOK_SELDOM_S: Final = 1.0
"""The same while it is."""
TORN_S: Final = 2.0
"""How long a mesh may be incomplete while all processes run, before that is worth a line: a look
may have come at a bad moment."""

END_S: Final = 15.0
"""How long nodes may take to leave: they drain for 10 s."""

STATUS_S: Final = 2.0
"""How long a node may take to tell its status."""


class DevCluster:
    """Its nodes are started by `run`; `end` leaves no process behind."""

    def __init__(
        self, world: World, nodes: Sequence[DevNode], tell: Callable[[Event], None]
    ) -> None:
        self.nodes = list(nodes)
        self._world = world
        self._tell = tell
        self._killed: set[str] = set()
        """Nodes that we have killed and whose end we have not seen yet."""
        self._meshed = False
        self._was_meshed = False
        self._broken_at = world.clock.monotonic()
        """Since when the mesh is not complete."""
        self._changed = trio.Event()
        """Set, and replaced, when a process has come or gone or the mesh is complete."""

    async def run(self, kill_every_s: float | None) -> None:
        """Start the nodes and keep them running. Raises NodeDied when one does not even start."""
        await self._start_all()
        async with trio.open_nursery() as nursery:
            for node in self.nodes:
                nursery.start_soon(self._keep, node)
            nursery.start_soon(self._watch)
            if kill_every_s is not None:
                nursery.start_soon(self._kill_now_and_then, kill_every_s)

    async def end(self) -> None:
        """Let all leave, each with its goodbye; those that do not are killed."""
        with trio.CancelScope(shield=True, deadline=trio.current_time() + END_S):
            async with trio.open_nursery() as nursery:
                for node in self.nodes:
                    nursery.start_soon(node.leave)
        for node in self.nodes:
            node.close()

    def hurry(self) -> None:
        """Let `end` not wait for anybody."""
        for node in self.nodes:
            node.kill()

    # Processes ------------------------------------------------------------------------------------

    async def _start_all(self) -> None:
        """One after the first: it is the seed of the others, which also works without multicast."""
        deaths: list[NodeDied] = []

        async def start(node: DevNode) -> None:
            try:
                place = await node.start(self._seeds(node), self._world.files)
            except NodeDied as death:
                deaths.append(death)
            else:
                self._tell(Started(node.name, place.client, place.peer, place.http))

        await start(self.nodes[0])
        if not deaths:
            async with trio.open_nursery() as nursery:
                for node in self.nodes[1:]:
                    nursery.start_soon(start, node)
        if deaths:
            raise deaths[0]

    def _seeds(self, node: DevNode) -> list[str]:
        others = (other.place for other in self.nodes if other is not node)
        return [place.peer for place in others if place is not None]

    async def _keep(self, node: DevNode) -> None:
        """Whenever it ends, start it again; one that cannot live is not started in a tight loop."""
        clock = self._world.clock
        restarts = Restarts()
        began_at = clock.monotonic()
        while True:
            code = await node.wait()
            self._broke()
            if node.name in self._killed:
                self._killed.remove(node.name)
            else:
                reason = node.last_words(self._world.files, code)
                await self._mourn(node, reason, restarts, clock.monotonic() - began_at)
            node.close()
            began_at = clock.monotonic()
            try:
                place = await node.start(self._seeds(node), self._world.files)
            except NodeDied:
                continue  # `wait` gives its exit code again
            self._tell(Restarted(node.name, place.client, clock.monotonic() - began_at))
            self._something_changed()

    async def _mourn(self, node: DevNode, reason: str, restarts: Restarts, lived_s: float) -> None:
        pause_s = restarts.pause_s(lived_s)
        self._tell(Died(node.name, reason, pause_s))
        await self._world.clock.sleep(pause_s)

    async def _kill_now_and_then(self, every_s: float) -> None:
        """Not before the last one is back: then there would be two of them away."""
        while True:
            await self._until_meshed()
            await self._world.clock.sleep(every_s)
            await self._until_meshed()
            node = self.nodes[int(self._world.entropy.random() * len(self.nodes))]
            self._killed.add(node.name)
            node.kill()
            self._tell(Killed(node.name))
            self._broke()

    # The mesh -------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Tell when the mesh is complete, and when it is not without anybody having died."""
        clock = self._world.clock
        torn_told = False
        while True:
            changed = self._changed
            missing, silent = await self._look_at_all()
            now = clock.monotonic()
            if changed.is_set():
                continue  # the look is about processes that are gone
            if not missing and not silent:
                torn_told = False
                self._complete(now)
            else:
                if self._meshed:
                    self._meshed, self._broken_at = False, now
                all_run = all(node.ready for node in self.nodes)
                if all_run and not torn_told and now - self._broken_at >= TORN_S:
                    torn_told = True
                    self._tell(Torn(missing, silent))
            with trio.move_on_after(LOOK_SELDOM_S if self._meshed else LOOK_S):
                await changed.wait()

    def _complete(self, now: float) -> None:
        if self._meshed:
            return
        self._meshed = True
        self._tell(Meshed(len(self.nodes), now - self._broken_at, again=self._was_meshed))
        self._was_meshed = True
        self._something_changed()

    async def _look_at_all(self) -> tuple[list[str], list[str]]:
        """Links that are missing, as the nodes themselves see it, and nodes that do not answer."""
        missing: dict[str, None] = {}
        silent: list[str] = []

        async def look(node: DevNode) -> None:
            if not node.ready or node.place is None:
                silent.append(node.name)
                return
            place = node.place
            try:
                at = parse_address(place.http, HTTP_PORT)
                found = await fetch_status(self._world.network, at, STATUS_S)
            except Unavailable:
                silent.append(node.name)
                return
            view = ClusterView(found)
            missing.update(dict.fromkeys(view.missing))
            linked = {peer.broker_id for peer in view.here if peer.linked}
            for other in self.nodes:
                if other is not node and other.place and other.place.broker_id not in linked:
                    missing[f"{node.name} → {other.name}"] = None

        async with trio.open_nursery() as nursery:
            for node in self.nodes:
                nursery.start_soon(look, node)
        return list(missing), sorted(silent)

    async def _until_meshed(self) -> None:
        while not self._meshed:
            await self._changed.wait()

    def _broke(self) -> None:
        """A process has gone."""
        if self._meshed:
            self._broken_at = self._world.clock.monotonic()
        self._meshed = False
        self._something_changed()

    def _something_changed(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
