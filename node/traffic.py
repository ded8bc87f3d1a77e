"""How much has come in and gone out since the node began."""

from dataclasses import dataclass


@dataclass(slots=True)
class Traffic:
    """A sum that only grows: of sessions that are gone, and of those that are there."""

    received_bytes: int = 0
    sent_bytes: int = 0
    dropped: int = 0
    """Messages that were not persistent, and whose subscriber was too slow."""

    def add(self, received_bytes: int, sent_bytes: int, dropped: int) -> None:
        self.received_bytes += received_bytes
        self.sent_bytes += sent_bytes
        self.dropped += dropped
