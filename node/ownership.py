"""Which incarnations are this node's own, who mirrors it, and how long copies are kept.

It tells logs that this node wrote from copies that it holds for others. It lies beside them, in two
files of which one suffices. Where both are missing or damaged, all logs that are there count as its
own, until a node turns up that writes one of them: metadata is never a reason to lose data.
"""

import json
import math
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import suppress
from typing import Any, Final

from xxhash import xxh3_64_hexdigest

from busnode.segments.store import Store
from busnode.wire.errors import StorageFailed
from busnode.wire.ids import BROKER_ID_BYTES, BrokerId
from busnode.wire.limits import MIB
from busnode.wire.shapes import is_map
from busnode.world.files import Files, read_whole, replace_whole

FILE: Final = "incarnations.json"
SECOND_FILE: Final = "incarnations.second.json"
"""Who took copies for logs of its own would serve them as such: one bit must not be enough."""
FILE_BYTES_MAX: Final = 16 * MIB

REMEMBERED_MAX: Final = 1000
"""Incarnations with a retention of their own before those are looked for of which nothing is held:
it walks through all logs."""


class Ownership:
    """The brokerIds under which this node has written. With `files` None nothing is kept."""

    def __init__(self, files: Files | None, directory: str, store: Store) -> None:
        """StorageFailed when the file is there and the disk does not give it."""
        self._files = files
        self._paths = [f"{directory}/{name}" for name in (SECOND_FILE, FILE)]
        there = {log.log_id.broker_id for log in store.logs()}
        table = self._read()
        kept = _own(table)
        self._own: dict[BrokerId, None] = dict.fromkeys(sorted(there) if kept is None else kept)
        self._guessed = there if kept is None else _guessed(table)
        """Those of its own that may be another node's."""
        self.mirrors = _mirrors(table)
        self.retain_s = {each: age_s for each, age_s in _retain(table).items() if each in there}
        """Of copies: how long their origin keeps them."""

    def __contains__(self, broker_id: object) -> bool:
        return broker_id in self._own

    def __iter__(self) -> Iterator[BrokerId]:
        """The oldest first."""
        return iter(list(self._own))

    def add(self, broker_id: BrokerId) -> None:
        """A new incarnation; kept before anything is acked under it, or StorageFailed."""
        own = {**self._own, broker_id: None}
        self._write(own, self.mirrors, self.retain_s)
        self._own = own

    def disown(self, broker_id: BrokerId) -> bool:
        """Another node writes it; whether it was taken for ours because nothing was known. That is
        found out again after a restart, if it cannot be kept."""
        if broker_id not in self._guessed:
            return False
        self._guessed.discard(broker_id)
        self._own = {each: None for each in self._own if each != broker_id}
        with suppress(StorageFailed):
            self._write(self._own, self.mirrors, self.retain_s)
        return True

    def mirrored_by(self, names: list[str]) -> None:
        """Who the mirrors are from now on; kept before anything is acked under them, or
        StorageFailed."""
        if names != self.mirrors:
            self._write(self._own, names, self.retain_s)
            self.mirrors = names

    def copies_kept(
        self, broker_id: BrokerId, retain_s: float, held: Callable[[], Container[BrokerId]]
    ) -> None:
        """How long copies of an incarnation's logs are kept, as its origin says; or StorageFailed.
        One for which nobody says anything is kept like our own logs. Where there are many, those
        are forgotten that are not `held`: nothing was ever sent for them, or all has expired."""
        if retain_s and broker_id not in self._own and self.retain_s.get(broker_id) != retain_s:
            kept = {**self.retain_s, broker_id: retain_s}
            if len(kept) > REMEMBERED_MAX:
                there = held()
                kept = {each: age for each, age in self.retain_s.items() if each in there}
                kept[broker_id] = retain_s
            self._write(self._own, self.mirrors, kept)
            self.retain_s = kept

    def _read(self) -> Any:
        """The table that was written last, or None. Each write goes to both files before anything
        is done under it, so that any good one says all that counts."""
        tables: list[dict[str, Any]] = []
        failure: OSError | None = None
        for path in self._paths if self._files is not None else ():
            try:
                tables += self._read_one(path)
            except OSError as error:
                failure = error
        if not tables and failure is not None:
            raise StorageFailed(f"cannot read {self._paths[-1]}: {failure}") from failure
        table = max(tables, key=_version, default=None)
        self._version = 0 if table is None else _version(table)
        return table

    def _read_one(self, path: str) -> list[dict[str, Any]]:
        """What a file says, if it is there and good."""
        assert self._files is not None
        if not self._files.exists(path):
            return []
        try:
            table = json.loads(read_whole(self._files, path, FILE_BYTES_MAX))
        except (ValueError, RecursionError):
            return []
        if not is_map(table) or _own(table) is None:
            return []
        said = {key: value for key, value in table.items() if key != "hash"}
        is_old = "hash" not in table and "version" not in table  # of before there were two files
        return [said] if is_old or table.get("hash") == _hash(said) else []

    def _write(
        self, own: Iterable[BrokerId], mirrors: list[str], retain_s: dict[BrokerId, float]
    ) -> None:
        if self._files is None:
            return
        self._version += 1
        table: dict[str, Any] = {
            "version": self._version,
            "own": [each.hex() for each in own],
            "mirrors": mirrors,
            "retain_s": {each.hex(): age_s for each, age_s in retain_s.items()},
        }
        if self._guessed:
            table["guessed"] = sorted(each.hex() for each in self._guessed)
        try:
            for path in self._paths:
                whole = {**table, "hash": _hash(table)}
                replace_whole(self._files, path, json.dumps(whole).encode())
        except OSError as error:
            raise StorageFailed(f"cannot write {self._paths[-1]}: {error}") from error


def _hash(table: object) -> str:
    return xxh3_64_hexdigest(json.dumps(table, sort_keys=True).encode())


def _version(table: dict[str, Any]) -> int:
    version = table.get("version", 0)
    return version if isinstance(version, int) else 0


def _guessed(table: Any) -> set[BrokerId]:
    return set(_brokers(table, "guessed") or ())


def _own(table: Any) -> list[BrokerId] | None:
    return _brokers(table, "own")


def _brokers(table: Any, key: str) -> list[BrokerId] | None:
    """None where the table does not tell."""
    try:
        found = [BrokerId(bytes.fromhex(each)) for each in table[key]]
    except (ValueError, KeyError, TypeError):
        return None
    return found if all(len(each) == BROKER_ID_BYTES for each in found) else None


def _mirrors(table: Any) -> list[str]:
    try:
        return [each for each in table["mirrors"] if isinstance(each, str)]
    except (KeyError, TypeError):
        return []


def _retain(table: Any) -> dict[BrokerId, float]:
    try:
        return {
            BrokerId(bytes.fromhex(each)): float(age_s)
            for each, age_s in table["retain_s"].items()
            if 0 < float(age_s) < math.inf
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}
