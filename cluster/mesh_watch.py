"""Which missing links are worth telling: those that stay missing. A machine without IO.

Links come up one after the other, and nodes notice a dead one one after the other: for a moment
something is missing each time.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from busnode.cluster.mesh import MissingLink

SETTLE_S: Final = 5.0
"""How long a link is missing before it is told: longer than nodes differ in noticing."""

LINKS_MAX: Final = 1000
"""Missing links that are watched at once; who has more has one trouble and not a thousand."""


class Changed(NamedTuple):
    missing: list[MissingLink]
    healed: list[MissingLink]


class MeshWatch:
    def __init__(self) -> None:
        self._since: dict[MissingLink, float] = {}
        self._told: dict[MissingLink, None] = {}

    def look(self, missing: Iterable[MissingLink], now: float) -> Changed:
        """These are missing now: which of them must be told, and which told ones are back."""
        links = list(missing)[:LINKS_MAX]
        self._since = {link: self._since.get(link, now) for link in links}
        healed = [link for link in self._told if link not in self._since]
        new = [
            link
            for link, since in self._since.items()
            if now - since >= SETTLE_S and link not in self._told
        ]
        for link in healed:
            del self._told[link]
        self._told.update(dict.fromkeys(new))
        return Changed(new, healed)
