"""Records of one log on their way from hand to hand inside a node."""

from collections.abc import Callable
from typing import NamedTuple

from busnode.wire.ids import LogId


class Handed(NamedTuple):
    """Records of one log that lie in memory."""

    log_id: LogId
    first_no: int
    last_no: int
    data: bytes
    is_remote: bool
    """Whether the log belongs to another node."""
    done: Callable[[], None] | None = None
    """Called when a member of a queue group is done with them, for the node that they came from."""
