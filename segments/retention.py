"""What may go: whole segments, by age and by size. Pure decisions."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from busnode.wire.ids import BrokerId, LogId, MsgNo


def nothing_pinned(log_id: LogId) -> MsgNo | None:
    del log_id
    return None


def by_size_too(log_id: LogId) -> bool:
    del log_id
    return True


@dataclass(frozen=True, slots=True)
class RetentionRules:
    """How long messages are kept; None means without limit. Age alone has a default."""

    age_s: float | None = 24 * 3600.0
    log_bytes_max: int | None = None
    store_bytes_max: int | None = None
    age_s_of: Mapping[BrokerId, float] = field(default_factory=dict[BrokerId, float])
    """Where it is not `age_s`: copies are kept for as long as their origin keeps them."""
    pinned_from: Callable[[LogId], MsgNo | None] = nothing_pinned
    """The first number of a log that somebody still needs, whatever its age; None: nobody does."""
    goes_by_size: Callable[[LogId], bool] = by_size_too
    """Whether a log may lose anything only because there is too much."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """What retention knows of a segment. Those of a log are given in the order of their numbers."""

    log_id: LogId
    first_no: MsgNo
    next_no: MsgNo
    size_bytes: int
    stored_us: int
    """When the newest of it was stored, by the clock of the node that holds it: a producer's clock
    may be wrong by years, and must not be able to remove or keep anything."""
    writable: bool
    """Whether more will be appended to it, or it is empty and only tells how far its log went: by
    size alone such a segment never goes."""


@dataclass(frozen=True, slots=True)
class Expired:
    """A range that retention has dropped."""

    log_id: LogId
    first_no: MsgNo
    last_no: MsgNo
    size_bytes: int
    reason: str


def choose_expired(
    candidates: Iterable[Candidate], rules: RetentionRules, now_us: int
) -> list[tuple[Candidate, str]]:
    """Which segments go, each with the reason, oldest first within a log.

    A log loses its segments from the front only, so what stays has no hole.
    """
    by_log: dict[LogId, list[Candidate]] = {}
    for candidate in candidates:
        by_log.setdefault(candidate.log_id, []).append(candidate)
    chosen: list[tuple[Candidate, str]] = []
    kept: list[Candidate] = []
    for segments in by_log.values():
        gone = _from_one_log(segments, rules, now_us)
        chosen += gone
        kept += segments[len(gone) :]
    if rules.store_bytes_max is not None:
        chosen += _from_store(kept, rules.store_bytes_max, rules)
    return chosen


def _from_one_log(
    segments: list[Candidate], rules: RetentionRules, now_us: int
) -> list[tuple[Candidate, str]]:
    chosen: list[tuple[Candidate, str]] = []
    left_bytes = sum(segment.size_bytes for segment in segments)
    log_id = segments[0].log_id
    age_s_max = rules.age_s_of.get(log_id.broker_id, rules.age_s)
    pinned_from = rules.pinned_from(log_id)
    bytes_max = rules.log_bytes_max if rules.goes_by_size(log_id) else None
    for segment in segments:
        if pinned_from is not None and segment.next_no > pinned_from:
            break
        age_s = (now_us - segment.stored_us) / 1e6
        if age_s_max is not None and age_s > age_s_max:
            reason = f"older than {age_s_max:g} s"
        elif bytes_max is not None and left_bytes > bytes_max and not segment.writable:
            reason = f"its log is larger than {bytes_max} bytes"
        else:
            break
        chosen.append((segment, reason))
        left_bytes -= segment.size_bytes
    return chosen


def _from_store(
    kept: list[Candidate], bytes_max: int, rules: RetentionRules
) -> list[tuple[Candidate, str]]:
    """The oldest of all logs go first; a log's own order holds even where its clock went back."""
    left_bytes = sum(segment.size_bytes for segment in kept)
    latest: dict[LogId, int] = {}
    aged: list[tuple[int, int]] = []
    for place, segment in enumerate(kept):
        latest[segment.log_id] = max(latest.get(segment.log_id, 0), segment.stored_us)
        aged.append((latest[segment.log_id], place))
    chosen: list[tuple[Candidate, str]] = []
    stopped = {log_id for log_id in latest if not rules.goes_by_size(log_id)}
    pinned = {log_id: rules.pinned_from(log_id) for log_id in latest}
    for _, place in sorted(aged):
        segment = kept[place]
        if left_bytes <= bytes_max:
            break
        pinned_from = pinned[segment.log_id]
        if segment.writable or (pinned_from is not None and segment.next_no > pinned_from):
            stopped.add(segment.log_id)
        elif segment.log_id not in stopped:
            chosen.append((segment, f"the store is larger than {bytes_max} bytes"))
            left_bytes -= segment.size_bytes
    return chosen
