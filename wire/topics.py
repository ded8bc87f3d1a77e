"""Topics and patterns: what may be one, and which topic a pattern matches.

    topic    /plant/north/temp          every level spelled out
    pattern  /plant/+/temp              + stands for exactly one level
             /plant/*                   a last * stands for one or more levels
             /$sys/*                    system topics show only to who names their first level

Two topics that look the same on a screen must be the same topic: people grant rights and read
alarms by looking. So text is refused, never repaired: a topic that was quietly normalised would
not be the one that its publisher hashed, and two spellings of one topic would be two logs.
"""

import unicodedata
from functools import lru_cache
from typing import Final

from busnode.wire.errors import BadPattern, BadTopic
from busnode.wire.ids import Pattern, Topic

TOPIC_BYTES_MAX: Final = 255
"""A batch header gives the length of its topic one byte; patterns keep to the same limit."""

LEVELS_MAX: Final = 32
"""Bounds the walk through a trie. Real trees are 3 to 8 levels deep; 255 bytes could hold 127."""

SHOWN_CHARACTERS_MAX: Final = 40
"""How much of a refused text an error repeats: escaped, that is at most 400 bytes of a log line."""

TOPICS_REMEMBERED: Final = 1024
"""Good ones, at most 350 bytes each: requests come on the same few again and again, and to look one
up takes a tenth of checking it. Bad ones are not remembered."""

ONE_LEVEL: Final = "+"
ALL_BELOW: Final = "*"

_CATEGORIES_REFUSED: Final = {
    "Cc": "a control character",
    "Cf": "an invisible format character",
    "Cs": "half of a surrogate pair",
    # Noncharacters, and what this Python's Unicode does not know yet. A later version may make
    # a newcomer invisible or give it a normal form; a topic that is on disk by then would turn bad.
    # Refusing it keeps a promise: what was a topic once stays one under every later Unicode.
    "Cn": "a code point without a character",
    "Zl": "a line separator",
    "Zp": "a paragraph separator",
}

_STRUCTURAL: Final = frozenset("/+*$")
"""$ is among them because a fullwidth one would let anybody fake the sight of a system topic."""

# NFKC folds the fullwidth and small forms, but not these: symbols that Unicode's confusables
# (UTS 39) list as drawn like / * or +. Let in, `/a` U+2215 `b` is one level that reads as two, and
# a subscription to `/a/` U+2217 waits for ever without an error. As names they are no loss.
# The list's letters (katakana NO, the ideograph U+4E3F ...) stay allowed: people write with them.
_LOOK_ALIKES: Final = frozenset(
    "\u1735\u2041\u2044\u2215\u2571\u27cb\u29f8\u2f03\u31d3\U0001d23a"  # like /
    "\u066d\u204e\u2217"  # like *
    "\u16ed\u2795"  # like +
)


@lru_cache(maxsize=TOPICS_REMEMBERED)
def check_topic(text: str) -> Topic:
    """Raise BadTopic unless `text` is a topic; return it as one."""
    fault = _fault(text)
    if fault is None and is_pattern(text):
        fault = "contains + or *, which only a pattern may: spell every level out"
    if fault is not None:
        raise BadTopic(f"topic {_shown(text)} {fault}")
    return Topic(text)


def check_pattern(text: str) -> Pattern:
    """Raise BadPattern unless `text` is a pattern; return it as one. Every topic is a pattern."""
    fault = _fault(text)
    if fault is None and is_pattern(text):
        fault = _wildcard_fault(text)
    if fault is not None:
        raise BadPattern(f"pattern {_shown(text)} {fault}")
    return Pattern(text)


def decode_topic(raw: bytes) -> Topic:
    """Raise BadTopic unless `raw`, as it came over the wire, is a topic in UTF-8."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadTopic(
            f"topic {_shown(raw)} is not UTF-8 at byte {error.start}: encode topics as UTF-8"
        ) from error
    return check_topic(text)


def is_pattern(text: str) -> bool:
    """Whether `text` has wildcards. Without them it stands for one topic, and a lookup finds it."""
    return ONE_LEVEL in text or ALL_BELOW in text


def is_system(topic: Topic | Pattern) -> bool:
    """Whether the first level begins with $: such topics are the cluster's own."""
    return topic.startswith("/$")


def matches(pattern: Pattern, topic: Topic) -> bool:
    """The definition of matching. `trie.Trie` finds the same, faster, among many patterns."""
    wanted = _levels(pattern)
    levels = _levels(topic)
    if is_system(topic) and wanted[0] != levels[0]:
        return False
    if wanted[-1] == ALL_BELOW:
        wanted.pop()
        if len(levels) <= len(wanted):
            return False
        levels = levels[: len(wanted)]
    return len(wanted) == len(levels) and all(
        want in (ONE_LEVEL, level) for want, level in zip(wanted, levels, strict=True)
    )


def overlaps(a: Pattern, b: Pattern) -> bool:
    """Whether some topic matches both. Exact: it makes the shortest candidate and tries it."""
    ours, theirs = _levels(a), _levels(b)
    deeper = max(len(ours), len(theirs))
    shared: list[str] = []
    for mine, yours in zip(_stretched(ours, deeper), _stretched(theirs, deeper), strict=True):
        literal = yours if mine == ONE_LEVEL else mine
        # Where both leave it open any short name will do; it is no system name.
        shared.append("x" if literal == ONE_LEVEL else literal)
    candidate = Topic("/" + "/".join(shared))
    # Two patterns can each be short enough and still have only topics in common that are too long.
    fits = len(candidate.encode("utf-8")) <= TOPIC_BYTES_MAX
    return fits and matches(a, candidate) and matches(b, candidate)


def covers(wide: Pattern, narrow: Pattern) -> bool:
    """Whether every topic that `narrow` matches is matched by `wide`."""
    ours, theirs = _levels(wide), _levels(narrow)
    if theirs[0].startswith("$") and ours[0] != theirs[0]:
        return False
    if ours[-1] == ALL_BELOW:
        ours.pop()
        if len(theirs) <= len(ours):
            return False
        theirs = theirs[: len(ours)]
    elif theirs[-1] == ALL_BELOW:
        return False
    return len(ours) == len(theirs) and all(
        mine == yours or (mine == ONE_LEVEL and yours != ALL_BELOW)
        for mine, yours in zip(ours, theirs, strict=True)
    )


def _levels(text: str) -> list[str]:
    return text[1:].split("/")


def _stretched(levels: list[str], count: int) -> list[str]:
    """The levels with + in place of * up to `count`: what they ask of a topic that deep."""
    if levels[-1] == ALL_BELOW:
        levels = levels[:-1]
    return levels + [ONE_LEVEL] * (count - len(levels))


def _fault(text: str) -> str | None:
    """What forbids `text` both as a topic and as a pattern, or None."""
    if not text.startswith("/"):
        return "does not begin with /: write it as a path such as /plant/north/temp"
    # Before anything that reads the whole text: a hostile one may be megabytes long.
    if len(text) > TOPIC_BYTES_MAX:
        return f"has {len(text)} characters and {TOPIC_BYTES_MAX} bytes are allowed: shorten it"
    if not (text.isascii() and text.isprintable()):
        fault = _character_fault(text)
        if fault is not None:
            return fault
        size_bytes = len(text.encode("utf-8"))
        if size_bytes > TOPIC_BYTES_MAX:
            return f"has {size_bytes} bytes of UTF-8 and {TOPIC_BYTES_MAX} are allowed: shorten it"
    levels = _levels(text)
    if len(levels) > LEVELS_MAX:
        return f"has {len(levels)} levels and {LEVELS_MAX} are allowed: join some of them"
    if "" in levels:
        where = levels.index("") + 1
        return f"has an empty level {where} and every level needs a name: take out the extra /"
    # Whoever maps topics to paths or URLs, a gateway say, must not be led out of their folder.
    for level in (".", ".."):
        if level in levels:
            where = levels.index(level) + 1
            return f"has {level!r} as level {where} and topics are never relative: give it a name"
    return None


def _character_fault(text: str) -> str | None:
    for at, character in enumerate(text):
        if " " <= character <= "~":
            continue
        kind = _CATEGORIES_REFUSED.get(unicodedata.category(character))
        if kind is None and (
            character in _LOOK_ALIKES
            or not _STRUCTURAL.isdisjoint(unicodedata.normalize("NFKC", character))
        ):
            kind = "a look-alike of / + * or $"
        if kind is not None:
            return f"has {kind}, U+{ord(character):04X}, at index {at}: take it out"
    if not unicodedata.is_normalized("NFC", text):
        return "is not in Unicode's composed form NFC: pass it through unicodedata.normalize first"
    return None


def _wildcard_fault(text: str) -> str | None:
    levels = _levels(text)
    for number, level in enumerate(levels, start=1):
        if level == ALL_BELOW and number < len(levels):
            return f"has * as level {number} of {len(levels)} and * is only ever the last: use +"
        if level not in (ONE_LEVEL, ALL_BELOW) and is_pattern(level):
            return (
                f"has + or * inside level {number} and a wildcard stands for a whole level: "
                "put it between slashes, or take it out"
            )
    return None


def _shown(text: str | bytes) -> str:
    """`text` fit for a log line: escaped, so that it cannot forge one, and cut."""
    if len(text) <= SHOWN_CHARACTERS_MAX:
        return ascii(text)
    return f"{text[:SHOWN_CHARACTERS_MAX]!a}..."
