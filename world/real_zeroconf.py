"""The zeroconf library on an asyncio loop in a thread of its own.

It is imported in a thread, by `real_mdns`, since the library takes long to import.

The library's ServiceBrowser is not used, for two reasons. It asks again only for what it knows, so
two nodes that started on either side of a cut would never find each other once it heals. And
it keeps an entry for each name that it ever heard for up to an hour, so a forger could make it grow
without bound. Here records are heard as they come in, and the question is asked again and again.

What is held of strangers' records: the library's cache, of 10,000 records at most; as many lookups
as `LOOKUPS_MAX`; and the hints on their way to trio, of which the inlet bounds the number.
"""

import asyncio
import errno
import logging
import traceback
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from zeroconf import (  # type: ignore[attr-defined]  # three that are not in its __all__
    DNSOutgoing,  # pyright: ignore[reportPrivateImportUsage] - likewise
    DNSPointer,  # pyright: ignore[reportPrivateImportUsage] - likewise
    DNSQuestion,  # pyright: ignore[reportPrivateImportUsage] - likewise
    DNSQuestionType,
    InterfaceChoice,
    IPVersion,
    RecordUpdate,
    RecordUpdateListener,
    ServiceInfo,
    Zeroconf,
)
from zeroconf.asyncio import AsyncZeroconf

from busnode.world.discovery import Announcement, Hint
from busnode.world.real_inlet import Inlet
from busnode.world.service_record import (
    SERVICE_TYPE,
    MalformedRecord,
    announced_place,
    broker_id_in,
    decode_record,
    encode_text,
    instance_name,
)

QUERY, TYPE_PTR, CLASS_IN = 0, 12, 1
"""Numbers of RFC 1035."""

ASK_AGAIN_S = 60.0
"""The first questions come after 1, 2, 4 … seconds (RFC 6762, 5.2), then one each minute: that long
a healed network may go unnoticed. All answer each question, so a cluster of 20 sends 7 packets each
second."""

DEAF_S = 8.0
"""An answer may lawfully take over a second. When our own has not come back after this, what we
send goes nowhere."""

LOOKUPS_MAX = 16
LOOKUP_MS = 3000
"""Nodes send all their records together. Only what came without the rest is asked for, and a forger
can make us ask no more often than this."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Counts:
    """Written in the thread, read by anybody."""

    events: int = 0
    dropped: int = 0
    malformed: int = 0
    working: bool = False
    """Whether something was heard on these sockets, be it ourselves."""


class Responder(RecordUpdateListener):
    """Announces one node, and tells the inlet of all others. It lives once: `run`, then `stop`."""

    def __init__(
        self,
        announcement: Announcement,
        interfaces: Sequence[str] | None,
        inlet: Inlet[Hint],
        counts: Counts,
    ) -> None:
        self._announcement = announcement
        self._interfaces = interfaces
        self._inlet = inlet
        self._counts = counts
        self._name = instance_name(announcement.broker_id)
        self._own_events = 0
        """How often it has heard itself. What others say tells nothing of what we send, and without
        an interface we hear what others on this machine have joined."""
        self._heard: dict[str, None] = {}
        """Names in the packet that is being read: as many as fit into 9 KB."""
        self._lookups: dict[str, asyncio.Task[None]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = False

    def run(self) -> None:
        """Blocks until `stop`; raises what the library and the system raise."""
        try:
            asyncio.run(self._run())
        except Exception as error:
            # A library that cannot open all its sockets leaves the first to whoever holds this.
            for each in (error, error.__context__):
                if each is not None:
                    traceback.clear_frames(each.__traceback__)
            raise

    def stop(self) -> None:
        """Withdraw and end. From any thread, at any time."""
        self._stopping = True  # before the look at the loop: the thread does it the other way round
        if self._loop is not None:
            with suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._stopped.set)

    # In the thread --------------------------------------------------------------------------------

    async def _run(self) -> None:
        self._stopped = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._on_error)
        if self._stopping:
            return
        service = _open(self._interfaces)
        try:
            self._zeroconf = service.zeroconf
            self._zeroconf.async_add_listener(self, None)
            announcing = asyncio.ensure_future(await self._announce(service))
            try:
                await self._ask_until_stopped()
            finally:  # before the goodbye, which must be the last word
                await _cancel(announcing, *self._lookups.values())
        finally:
            await service.async_close()

    async def _announce(
        self,
        service: Any,  # an AsyncZeroconf; this method of it is not fully typed
    ) -> Awaitable[object]:
        """What it returns repeats the announcement for half a second."""
        hosts, port = announced_place(self._announcement)
        if not hosts:
            raise OSError(errno.EADDRNOTAVAIL, "the node has no numeric address to announce")
        broker_id = self._announcement.broker_id
        info = ServiceInfo(
            SERVICE_TYPE,
            self._name,
            port=port,
            properties=encode_text(self._announcement),
            server=f"{broker_id.hex()}.local.",
            parsed_addresses=hosts,
        )
        # A GUID needs no probing, which takes most of a second and lets a forger deny us the name.
        announcing: Awaitable[object] = await service.async_register_service(
            info, cooperating_responders=True
        )
        return announcing

    async def _ask_until_stopped(self) -> None:
        """Raises `OSError` when what we send does not come back."""
        interval_s = 1.0
        silent_s = 0.0
        while True:
            heard = self._own_events
            self._zeroconf.async_send(_question())
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopped.wait(), interval_s)
                return
            silent_s = silent_s + interval_s if self._own_events == heard else 0.0
            if silent_s >= DEAF_S:
                raise OSError(errno.ENETUNREACH, "our own announcement does not come back")
            interval_s = min(2 * interval_s, ASK_AGAIN_S)

    def async_update_records(
        self,
        zc: Zeroconf,  # noqa: ARG002
        now: float,
        records: list[RecordUpdate],
    ) -> None:
        """The library calls it for each packet, before its cache has the records."""
        for update in records:
            record = update.new
            if isinstance(record, DNSPointer) and record.name.lower() == SERVICE_TYPE:
                self._counts.events += 1
                self._counts.working = True
                self._own_events += record.alias.lower() == self._name.lower()
                if not record.is_expired(now):  # a goodbye is counted, and that is all
                    self._heard[record.alias] = None

    def async_update_records_complete(self) -> None:
        """The library calls it when its cache has them."""
        heard = list(self._heard)
        self._heard.clear()
        for name in heard:
            try:
                if broker_id_in(name) == self._announcement.broker_id:
                    continue
                info = ServiceInfo(SERVICE_TYPE, name)
                if info.load_from_cache(self._zeroconf):
                    self._tell(info)
                else:
                    self._look_up(info)
            except MalformedRecord as error:
                self._refuse(name, error)

    def _tell(self, info: ServiceInfo) -> None:
        hosts = info.parsed_scoped_addresses(IPVersion.All)
        if not self._inlet.offer(decode_record(info.name, info.properties, hosts, info.port)):
            self._counts.dropped += 1

    def _look_up(self, info: ServiceInfo) -> None:
        if info.key in self._lookups:
            return
        if len(self._lookups) >= LOOKUPS_MAX:
            self._counts.dropped += 1
            return
        self._lookups[info.key] = asyncio.ensure_future(self._ask_for_the_rest(info))

    async def _ask_for_the_rest(self, info: ServiceInfo) -> None:
        key = info.key  # the library changes it to that of the answer
        try:
            # By multicast: an answer to us alone would go to any process with a socket on the port.
            await info.async_request(self._zeroconf, LOOKUP_MS, DNSQuestionType.QM)
            self._tell(info)
        except MalformedRecord as error:
            self._refuse(info.name, error)
        finally:
            del self._lookups[key]

    def _refuse(self, name: str, error: MalformedRecord) -> None:
        self._counts.malformed += 1
        log.debug("a record of %.100r is ignored: %s", name, error)

    def _on_error(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """What the library did not expect of a packet; by default each would fill the log."""
        self._counts.malformed += 1
        log.debug(
            "a packet is ignored: %s", context.get("message"), exc_info=context.get("exception")
        )


def _open(interfaces: Sequence[str] | None) -> AsyncZeroconf:
    if interfaces is not None:
        return AsyncZeroconf(list(interfaces))
    try:
        return AsyncZeroconf(InterfaceChoice.All, ip_version=IPVersion.All)
    except (OSError, RuntimeError):  # a machine without IPv6
        return AsyncZeroconf(InterfaceChoice.All, ip_version=IPVersion.V4Only)


async def _cancel(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _question() -> DNSOutgoing:
    """Who is there? Without the list of whom we know, which a forger could make long."""
    question = DNSOutgoing(QUERY)
    question.add_question(DNSQuestion(SERVICE_TYPE, TYPE_PTR, CLASS_IN))
    return question
