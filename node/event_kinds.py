"""What can happen to a node that is worth telling, each with its weight and its words.

One row serves the log and the event: the log has the title with the facts beside it, people read
the sentence, and machines look at the name.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

SEVERITIES: Final = ("info", "warning", "error")
"""From the least to the worst."""


class Kind(NamedTuple):
    name: str
    """What machines tell it by: a group, a dot and a word."""
    severity: str
    title: str
    """How it begins in the log."""
    sentence: str
    """For people, with facts in braces."""
    is_cheap: bool = False
    """Whether clients can bring it about at will: then the log has no more of it than there are
    events."""


NODE_READY: Final = Kind("node.ready", "info", "ready", "ready for clients at {client}")
NODE_LEAVING: Final = Kind(
    "node.leaving", "info", "leaving", "leaving, with {clients} clients here"
)
NAME_TAKEN: Final = Kind(
    "node.name-taken", "warning", "two nodes have the same name",
    "another node is called {name}, too, at {address}; give each a name of its own",
)  # fmt: skip

INCARNATION: Final = Kind(
    "incarnation.begun", "warning", "new incarnation", "goes on as {broker_id}, because {why}"
)
NO_INCARNATION: Final = Kind(
    "incarnation.failed", "error", "no new incarnation",
    "takes no persistent messages, and tries again in {retry_after_s:g} s: {error}",
)  # fmt: skip

LINK_MADE: Final = Kind("link.made", "info", "linked", "linked to {name} at {address}")
LINK_ENDED: Final = Kind("link.ended", "info", "link lost", "{name} said goodbye")
LINK_LOST: Final = Kind("link.lost", "warning", "link lost", "link to {name} lost")
LINK_MISSING: Final = Kind(
    "link.missing", "warning", "link missing", "no link from {dialler} to {listener}"
)
LINK_HEALED: Final = Kind(
    "link.healed", "info", "link healed", "{dialler} → {listener} is not missing any more"
)

MIRROR_CHOSEN: Final = Kind("mirror.chosen", "info", "mirror chosen", "{name} is to be the mirror")
MIRROR_IN_FORCE: Final = Kind(
    "mirror.in-force", "info", "mirror in force", "{name} is the mirror: acks name it"
)
MIRROR_LET_GO: Final = Kind(
    "mirror.let-go", "warning", "mirror let go", "{name} is the mirror no longer: {why}"
)
MIRRORS_NOT_KEPT: Final = Kind(
    "mirror.not-kept", "error", "mirrors were not kept",
    "no mirror, for who it is could not be written down: {error}",
)  # fmt: skip
CATCHUP_BEGUN: Final = Kind(
    "catchup.begun", "info", "catch-up begun",
    "{name} catches up: messages {messages:,}, logs {logs:,}, bytes {bytes:,}",
)  # fmt: skip
CATCHUP_DONE: Final = Kind(
    "catchup.done", "info", "catch-up done", "{name} has caught up, in {seconds:g} s"
)
COPIES_HELD: Final = Kind(
    "copy.begun", "info", "holding copies", "holds logs of {of} for {origin}; so far {logs:,}"
)

REPAIR_BEGUN: Final = Kind(
    "repair.begun", "info", "making a copy", "copies the logs of {of} to {at}"
)
REPAIR_DONE: Final = Kind("repair.done", "info", "copy made", "{at} holds the logs of {of}, too")
REPAIR_STOPPED: Final = Kind(
    "repair.stopped", "warning", "copy not made", "{at} does not get the logs of {of}: {why}"
)

LOG_POISONED: Final = Kind(
    "log.poisoned", "error", "log takes no more", "{log} takes no more: {error}"
)
LOG_UNREADABLE: Final = Kind(
    "log.unreadable", "error", "log cannot be read", "{log} cannot be read: {error}"
)
DAMAGE_FOUND: Final = Kind(
    "damage.found", "error", "damage found", "{log} is damaged at {first_no}–{last_no}: {why}"
)
DAMAGE_QUARANTINED: Final = Kind(
    "damage.quarantined", "warning", "damage quarantined",
    "damaged records {first_no}–{last_no} of {log} are kept in {path}",
)  # fmt: skip
DAMAGE_MENDED: Final = Kind(
    "damage.mended", "info", "damage mended",
    "records {first_no}–{last_no} of {log} are whole again, from {source}",
)  # fmt: skip
COPIES_DIFFER: Final = Kind(
    "damage.copies-differ", "error", "copies differ",
    "records {first_no}–{last_no} of {log} are good here and at {name}, and are not the same",
)  # fmt: skip
EXPIRED: Final = Kind(
    "retention.dropped", "info", "expired", "dropped {first_no}–{last_no} of {log}: {why}"
)
HOUSE_TROUBLE: Final = Kind(
    "disk.trouble", "error", "housekeeping failed", "housekeeping failed: {error}"
)

GAP: Final = Kind(
    "consumer.gap", "warning", "gap", "{client} cannot have {first_no}–{last_no} of {log}: {why}",
    is_cheap=True,
)  # fmt: skip
SLOW: Final = Kind(
    "consumer.slow", "warning", "slow consumer", "{client} is too slow for {pattern}: {what}",
    is_cheap=True,
)  # fmt: skip
TASK_DEAD: Final = Kind(
    "task.dead", "warning", "dead letters", "dead letters in queue {queue}: {count:,} more",
    is_cheap=True,
)  # fmt: skip
TASKS_TAKEN_OVER: Final = Kind(
    "task.taken-over", "info", "tasks taken over",
    "tasks of {origin}, which is no more, go on here: {count:,}",
)  # fmt: skip
TASKS_UNREADABLE: Final = Kind(
    "task.unreadable", "error", "tasks lost",
    "tasks of {origin}, which is no more, that no copy can give: {count:,}",
)  # fmt: skip
TASKS_GIVEN_UP: Final = Kind(
    "task.given-up", "info", "tasks given up", "tasks of {origin} go on elsewhere"
)
REFUSED: Final = Kind(
    "client.refused", "warning", "client refused", "{client} was refused: {why}", is_cheap=True
)
ACCESS_REFUSED: Final = Kind(
    "access.refused", "warning", "access refused", "{who} at {address} was refused: {why}",
    is_cheap=True,
)  # fmt: skip
PEER_REFUSED: Final = Kind(
    "peer.refused", "error", "node refused", "a node at {address} was refused: {why}",
    is_cheap=True,
)  # fmt: skip
ADMIN_ACTED: Final = Kind("admin.acted", "info", "administration", "{who}: {act} {target}")
ACCESS_RELOADED: Final = Kind(
    "access.reloaded", "info", "access reloaded",
    "keys, users and rules were read again: {ended} sessions ended, {changed} changed",
)  # fmt: skip
ACCESS_NOT_RELOADED: Final = Kind(
    "access.not-reloaded", "error", "access not reloaded",
    "keys, users and rules stay as they were: {error}",
)  # fmt: skip
LIMITED: Final = Kind(
    "client.limited", "warning", "limit reached", "at the door for {door}: {why}", is_cheap=True
)

KINDS: Final[Mapping[str, Kind]] = {
    value.name: value for value in list(globals().values()) if isinstance(value, Kind)
}
"""All of them, by name."""
