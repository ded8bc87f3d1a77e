"""What somebody may do, as words: the verbs of access rules."""

from typing import Final, Literal

Verb = Literal["publish", "subscribe", "request", "provide", "queue", "admin"]

VERBS: Final[tuple[Verb, ...]] = ("publish", "subscribe", "request", "provide", "queue", "admin")

ANY: Final = "any"
"""In a file of rules: all of them."""

MEANINGS: Final[dict[Verb, str]] = {
    "publish": "publish to a topic; with /$task/QUEUE, enqueue tasks",
    "subscribe": "receive what is published to a topic, live and from logs",
    "request": "ask whoever provides a topic",
    "provide": "answer requests on a topic",
    "queue": "work on the tasks of /$task/QUEUE, and look at them and at dead letters",
    "admin": "requeue, delete and purge dead letters of /$task/QUEUE; ask /$sys/status and such",
}
