"""Reading logs as they lie on the nodes: every record, byte for byte, and nothing passed over."""

from collections.abc import Iterator
from typing import NamedTuple

from busnode.client.gaps import Gap
from busnode.client.inbox import Inbox, Log
from busnode.client.positions import Position
from busnode.client.subscription import Host, Subscription
from busnode.wire.ids import Pattern


class Records(NamedTuple):
    """Whole records of one log, one behind the other."""

    log: Log
    first_no: int
    last_no: int
    data: bytes


class LogRecords(Subscription):
    """`async with bus.log_records(pattern, position) as records: await records.next_records()`

    What lies in between when the connection breaks comes from the next home, as for any other
    subscription.
    """

    def __init__(self, host: Host, pattern: Pattern, position: Position, credit_bytes: int) -> None:
        super().__init__(host, pattern, position, None, None, None, credit_bytes, None, None)
        self._inbox = Inbox(credit_bytes, whole=True)

    async def __aenter__(self) -> "LogRecords":
        await super().__aenter__()
        return self

    async def next_records(self) -> list[Records | Gap]:
        """All that has come meanwhile, in order; waits until there is something.

        When it is cancelled nothing was taken.
        """
        while True:
            self._check(waiting=False)
            found = list(self._take_all())
            self._return_credit()
            if found:
                return found
            await self._wait()

    def _take_all(self) -> Iterator[Records | Gap]:
        """Records that came together stay together."""
        parts: list[bytes] = []
        run: tuple[Log, int, int] | None = None
        while (entry := self._inbox.next_entry()) is not None:
            if isinstance(entry, Gap):
                if run is not None:
                    yield Records(*run, b"".join(parts))
                    parts, run = [], None
                yield entry
                continue
            self._inbox.finish(entry)
            log = entry.log
            if log is None:
                continue  # not persistent
            last_no = entry.first_no + entry.count - 1
            if run is not None and run[0] == log and run[2] + 1 == entry.first_no:
                run = (log, run[1], last_no)
            else:
                if run is not None:
                    yield Records(*run, b"".join(parts))
                parts, run = [], (log, entry.first_no, last_no)
            parts.append(entry.raw[entry.at : entry.at + entry.length])
        if run is not None:
            yield Records(*run, b"".join(parts))
