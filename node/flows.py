"""What flows between nodes to keep copies: mirrors, catch-up and repairs, from all nodes' statuses.

Pure: whoever asks the nodes hands over what they have told, and when.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

Status = Mapping[str, Any]

WINDOW_S: Final = 10.0
"""What a speed is the mean of: catch-up is sent in bursts."""


class FlowKey(NamedTuple):
    source: str
    target: str
    kind: str
    """`mirror` or `repair`."""
    of: str
    """For a repair: whose logs they are."""


@dataclass(frozen=True, slots=True)
class Flow:
    """What one node sends to another."""

    source: str
    target: str
    kind: str
    of: str
    state: str
    """`asked`, `catching up` or `in force`."""
    done: int
    """Messages of those that it lacked when it began."""
    total: int
    done_bytes: int
    total_bytes: int
    since_s: float
    lag: int
    """Messages that are not synced there."""
    lag_bytes: int
    waiting_s: float

    @property
    def key(self) -> FlowKey:
        return FlowKey(self.source, self.target, self.kind, self.of)

    @property
    def is_under_way(self) -> bool:
        return self.state != "in force"

    @property
    def share(self) -> float:
        """How much of it is done, from 0 to 1: by bytes where these are known."""
        if self.total_bytes:
            return self.done_bytes / self.total_bytes
        return self.done / self.total if self.total else float(not self.is_under_way)

    @property
    def title(self) -> str:
        of = f" (logs of {self.of})" if self.of else ""
        return f"{self.source} → {self.target}{of}"


def flows(statuses: Iterable[Status]) -> list[Flow]:
    """Of all nodes, by source and target; those under way first."""
    found: list[Flow] = []
    for status in statuses:
        source, cluster = status["name"], status["cluster"]
        found += (_flow(source, "mirror", "", row) for row in cluster["mirrors"])
        for row in cluster["repairs"]:
            found.append(_flow(source, "repair", row["of_name"] or row["of"][:8], row))
    return sorted(found, key=lambda flow: (not flow.is_under_way, *flow.key))


def _flow(source: str, kind: str, of: str, row: Status) -> Flow:
    return Flow(
        source=source,
        target=row["name"],
        kind=kind,
        of=of,
        state=row["state"],
        done=row["total"] - row["behind"],
        total=row["total"],
        done_bytes=max(0, row["total_bytes"] - row["behind_bytes"]),
        total_bytes=row["total_bytes"],
        since_s=row["since_s"],
        lag=row["lag"],
        lag_bytes=row["lag_bytes"],
        waiting_s=row["waiting_s"],
    )


class Speed(NamedTuple):
    bytes_per_s: float
    left_s: float | None
    """Until it is done, if it goes on like this; None when nothing moves."""


class Speeds:
    """How fast flows go, from one look at them to the next. It is told the time."""

    def __init__(self) -> None:
        self._seen: dict[FlowKey, deque[tuple[float, int]]] = {}

    def look(self, found: Iterable[Flow], now: float) -> dict[FlowKey, Speed]:
        """The speeds of those that are under way. What is not seen is forgotten."""
        under_way = {flow.key: flow for flow in found if flow.is_under_way}
        self._seen = {key: seen for key, seen in self._seen.items() if key in under_way}
        return {key: self._speed(key, flow, now) for key, flow in under_way.items()}

    def _speed(self, key: FlowKey, flow: Flow, now: float) -> Speed:
        seen = self._seen.setdefault(key, deque())
        if seen and flow.done_bytes < seen[-1][1]:
            seen.clear()  # it has begun anew
        if not seen and flow.since_s > 0:
            seen.append((now - flow.since_s, 0))
        seen.append((now, flow.done_bytes))
        while len(seen) > 2 and now - seen[1][0] >= WINDOW_S:
            seen.popleft()
        began, done_bytes = seen[0]
        per_s = (flow.done_bytes - done_bytes) / (now - began) if now > began else 0.0
        left = flow.total_bytes - flow.done_bytes
        return Speed(per_s, left / per_s if per_s > 0 else None)


class Changes:
    """What is worth a line where there is no terminal: a state that is new, and each tenth of the
    way."""

    def __init__(self) -> None:
        self._told: dict[FlowKey, tuple[str, int]] = {}

    def look(self, found: Iterable[Flow]) -> tuple[list[Flow], list[FlowKey]]:
        """Those that have changed, and those that are no more."""
        now = {flow.key: (flow, (flow.state, int(flow.share * 10))) for flow in found}
        changed = [flow for key, (flow, mark) in now.items() if self._told.get(key) != mark]
        gone = [key for key in self._told if key not in now]
        self._told = {key: mark for key, (_, mark) in now.items()}
        return changed, gone
