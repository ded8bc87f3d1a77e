"""Holes: what a consumer is told of messages that it will never get."""

import logging
from collections.abc import Callable
from typing import Final, Literal

from busnode.wire.errors import BusnodeError
from busnode.wire.ids import BrokerId, Topic

logger = logging.getLogger("busnode.client")

UNREADABLE: Final = "unreadable"
"""The reason of a gap that this side found: a batch with a good hash and senseless columns."""


class Gap(BusnodeError):
    """Messages `first` to `last` of one log cannot be had any more, and why.

    It is handed to `on_gap` or, with `on_gap="raise"`, raised; the position is then past it, and
    reading on goes on behind it. `last` is 0 where nobody knows how far it reaches.
    """

    code = "GAP"
    advice = "Messages expired or were lost before this consumer had read them: see its text."

    def __init__(
        self, broker_id: BrokerId, topic: Topic, first: int, last: int, reason: str
    ) -> None:
        self.broker_id = broker_id
        self.topic = topic
        self.first = first
        self.last = last
        self.reason = reason
        numbers = f"{first} to {last}" if last else f"{first} on"
        super().__init__(f"{topic} of {broker_id.hex()[:8]}: {numbers} cannot be had: {reason}")


OnGap = Callable[[Gap], object] | Literal["raise"] | None
OnDropped = Callable[[int], object] | None


def report_gap(gap: Gap, on_gap: OnGap) -> None:
    """Tell the user, in the way that was asked for; always in the log."""
    logger.warning("%s", gap)
    if on_gap == "raise":
        raise gap
    if on_gap is not None:
        on_gap(gap)


def report_dropped(pattern: str, count: int, on_dropped: OnDropped) -> None:
    """Messages that were not persistent were dropped because this consumer was too slow."""
    logger.warning("%s: too slow; %d messages that were not persistent are gone", pattern, count)
    if on_dropped is not None:
        on_dropped(count)
