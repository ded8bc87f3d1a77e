"""All clients of a run, and whether they have what they should have."""

from collections.abc import Iterator
from typing import Final

import trio

from busnode.client import Bus
from busnode.testing.sim.history import Acked
from busnode.testing.sim.stage import Stage
from busnode.testing.sim.workload.asking import Requester, provide
from busnode.testing.sim.workload.consuming import Reader
from busnode.testing.sim.workload.publishing import Publisher

WHOLE: Final = ("earliest", "memory", "away", "file", "durable")
"""Readers that must have everything in the end."""

CREDIT_BYTES: Final = 200
"""Of those who take little at a time: credit that is not returned stops them."""


class Clients:
    """They run in the nursery until it is cancelled; publishers until `is_over`."""

    def __init__(self, stage: Stage) -> None:
        self.is_over = False
        self._stage = stage
        names = stage.names

        def from_(place: int) -> list[str]:
            place %= len(names)
            return names[place:] + names[:place]

        self.publishers = [
            Publisher(stage, "p0", "persistent", (0.02, 0.4)),
            Publisher(stage, "p1", "persistent", (0.1, 0.8), at_once=3),
            Publisher(stage, "m0", "mirrored", (0.1, 0.8)),
            Publisher(stage, "b0", "persistent", (0.5, 2.5), burst=25),
            Publisher(stage, "q0", "queue", (0.1, 0.8)),
            Publisher(stage, "l0", "live", (0.05, 0.5)),
        ]
        self.requester = Requester(stage, "r0")
        self.readers = [
            *(Reader(stage, f"e{n}", from_(n), "/work/*", "earliest") for n in range(len(names))),
            Reader(stage, "c0", from_(1), "/work/*", "earliest", CREDIT_BYTES),
            Reader(stage, "w0", from_(2), "/work/*", "away"),
            Reader(stage, "t0", from_(1), "/work/*", "latest"),
            Reader(stage, "k0", from_(2), "/work/*", "memory"),
            Reader(stage, "f0", from_(0), "/work/*", "file"),
            Reader(stage, "d0", from_(1), "/work/*", "durable"),
            Reader(stage, "v0", from_(0), "/live/*", "live"),
            Reader(stage, "v1", from_(1), "/live/+", "live"),
            *(Reader(stage, f"g{n}", from_(n), "/queue/*", "queue") for n in range(2)),
            Reader(stage, "g2", from_(2), "/queue/*", "queue", CREDIT_BYTES),
        ]
        self._providers = {"s0": from_(0), "s1": from_(1)}
        self._homes = {each.name: from_(n) for n, each in enumerate(self.publishers)}
        self._homes[self.requester.name] = from_(2)
        self.buses: dict[str, Bus] = {}
        """Of publishers, which keep theirs, and those that providers had last."""
        self._finished: dict[str, None] = {}
        stage.clients = [
            *self._homes, *self._providers, *(reader.name for reader in self.readers),
        ]  # fmt: skip

    def finish(self) -> None:
        """Publishers stop, and who stays away comes back."""
        self.is_over = True
        for reader in self.readers:
            reader.may_leave = False

    @property
    def _talkers(self) -> list[Publisher | Requester]:
        return [*self.publishers, self.requester]

    async def begin(self, nursery: trio.Nursery) -> None:
        for reader in self.readers:
            nursery.start_soon(reader.run)
        for name, homes in self._providers.items():
            nursery.start_soon(provide, self._stage, name, homes, self.buses)
        for each in self._talkers:
            nursery.start_soon(self._run, each)
        await trio.sleep(0)

    async def _run(self, each: Publisher | Requester) -> None:
        async with self._stage.cluster.client(
            *self._homes[each.name], name=each.name, deadline_s=3600.0
        ) as bus:
            self.buses[each.name] = bus
            await each.run(bus, lambda: self.is_over)
            self._finished[each.name] = None
            await trio.sleep_forever()

    def lacking(self) -> Iterator[str]:
        """What is still to come, now that publishers were told to stop: a sentence for each."""
        for each in self._talkers:
            if each.name not in self._finished:
                waiting = next(iter(each.unanswered), b"nothing").decode().strip(". ")
                yield f"{each.name} has no answer for {waiting}"
        # What is not persistent never comes to who dials again just then, nor does a request.
        homes = {reader.name: reader.home for reader in self.readers if reader.how == "live"}
        for name in self._providers:
            bus = self.buses.get(name)
            homes[name] = None if bus is None else bus.statistics().home
        for name, home in homes.items():
            if home is None:
                yield f"{name} is connected to no node"
        acked = {
            event.payload: event
            for event in self._stage.history.of(Acked)
            if event.log_id.topic.startswith("/work")
        }
        for reader in self.readers:
            if reader.how in WHOLE:
                missing = [
                    event
                    for payload, event in acked.items()
                    if reader.lacks(payload, event.log_id, event.msg_no)
                ]
                if missing:
                    first = missing[0]
                    text = first.payload.decode().strip(". ")
                    yield (
                        f"{reader.name} lacks {len(missing)} acked messages, "
                        f"{text} ({first.log_id} {first.msg_no}) for one"
                    )
