"""Topics and patterns: the grammar, and what matches what."""

import itertools
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from busnode.wire.errors import BadPattern, BadTopic
from busnode.wire.ids import Pattern, Topic
from busnode.wire.topics import (
    LEVELS_MAX,
    TOPIC_BYTES_MAX,
    check_pattern,
    check_topic,
    covers,
    decode_topic,
    is_pattern,
    is_system,
    matches,
    overlaps,
)

LONGEST = "/" + "a" * (TOPIC_BYTES_MAX - 1)
DEEPEST = "/a" * LEVELS_MAX

GOOD_TOPICS = [
    "/a",
    "/plant/north/temp",
    "/plant north/line 7",
    "/a.b/...",
    "/.hidden",
    "/$sys/nodes",
    "/a/$b",
    "/\\",
    "/caf\u00e9/\u6e29\u5ea6",
    "/\u30ce\u30fc\u30c8",  # katakana NO looks like a slash; it is a letter and stays
    "/\u00bd",  # one half: its NFKC form has a fraction slash, on the screen it is one sign
    "/\U0001f321",
    LONGEST,
    "/" + "\u00e9" * 127,  # 255 bytes in 128 characters
    DEEPEST,
]

# What is wrong with it, and a word that the error must say.
BAD_AS_BOTH = [
    ("", "begin with /"),
    ("a", "begin with /"),
    ("plant/north", "begin with /"),
    (" /a", "begin with /"),
    ("\uff0fa", "begin with /"),
    ("/", "empty level 1"),
    ("//", "empty level 1"),
    ("//a", "empty level 1"),
    ("/a//b", "empty level 2"),
    ("/a/", "empty level 2"),
    ("/.", "'.' as level 1"),
    ("/a/../b", "'..' as level 2"),
    ("/a/.", "'.' as level 2"),
    (LONGEST + "a", "256 characters"),
    ("/" + "\u00e9" * 128, "257 bytes"),
    ("/" + "a" * 1_000_000, "1000001 characters"),
    (DEEPEST + "/a", "33 levels"),
    ("/a\x00", "control character, U+0000, at index 2"),
    ("/a\nb", "control character"),
    ("/a\x7f", "control character"),
    ("/a\x85", "control character"),
    ("/a\ud800", "surrogate"),
    ("/a\ufffe", "without a character"),
    ("/a\uffff", "without a character"),
    ("/a\ufdd0", "without a character"),
    ("/a\U0010ffff", "without a character"),
    ("/a\u0378", "without a character"),  # unassigned, not a noncharacter
    ("/a\u200d", "format character"),  # zero-width joiner
    ("/a\u202eb", "format character"),  # right-to-left override
    ("/a\u00ad", "format character"),  # soft hyphen
    ("/\ufeffa", "format character"),  # byte order mark
    ("/a\u2028", "line separator"),
    ("/a\u2029", "paragraph separator"),
    ("/cafe\u0301", "NFC"),
    ("/\u212b", "NFC"),  # the angstrom sign is a second spelling of A with ring
    ("/a\uff0fb", "look-alike"),  # fullwidth /
    ("/\u2105", "look-alike"),  # c/o in one character
    ("/a\u2044b", "look-alike"),  # fraction slash
    ("/a\u2215b", "look-alike"),  # division slash
    ("/a\u29f8b", "look-alike"),  # big solidus
    ("/a\u2571b", "look-alike"),  # box drawing
    ("/a/\uff0a", "look-alike"),  # fullwidth *
    ("/a/\u2217", "look-alike"),  # asterisk operator
    ("/a/\uff0b", "look-alike"),  # fullwidth +
    ("/a/\u2795", "look-alike"),  # heavy plus
    ("/\uff04sys/a", "look-alike"),  # fullwidth $
]

GOOD_PATTERNS = [
    "/*",
    "/+",
    "/+/+",
    "/+/*",
    "/state/machine/*",
    "/plant/+/temp",
    "/$sys/*",
    "/$sys/+/load",
    "/a" * (LEVELS_MAX - 1) + "/*",
]

BAD_WILDCARDS = [
    ("/*/a", "* as level 1 of 2"),
    ("/a/*/b", "* as level 2 of 3"),
    ("/*/*", "* as level 1 of 2"),
    ("/a*", "inside level 1"),
    ("/a/b*", "inside level 2"),
    ("/+a", "inside level 1"),
    ("/a+/b", "inside level 1"),
    ("/++", "inside level 1"),
    ("/**", "inside level 1"),
    ("/a/+*", "inside level 2"),
]

MATCHES = [
    ("/a/b", "/a/b", True),
    ("/a/b", "/a", False),
    ("/a/b", "/a/b/c", False),
    ("/a/b", "/a/B", False),
    ("/state/machine/*", "/state/machine/a", True),
    ("/state/machine/*", "/state/machine/a/b", True),
    ("/state/machine/*", "/state/machine", False),
    ("/state/machine/*", "/state/machines/a", False),
    ("/*", "/a", True),
    ("/*", "/a/b/c", True),
    ("/+", "/a", True),
    ("/+", "/a/b", False),
    ("/+/b", "/a/b", True),
    ("/a/+/c", "/a/b/c", True),
    ("/a/+/c", "/a/c", False),
    ("/+/*", "/a", False),
    ("/+/*", "/a/b", True),
    ("/*", "/$sys/a", False),
    ("/+/a", "/$sys/a", False),
    ("/+/*", "/$sys/a", False),
    ("/$sys/*", "/$sys/a", True),
    ("/$sys/+", "/$sys/a", True),
    ("/$sys", "/$sys", True),
    ("/$sys/*", "/$other/a", False),
    ("/a/*", "/a/$b", True),
    ("/a/+", "/a/$b", True),
]


@pytest.mark.parametrize("text", GOOD_TOPICS, ids=ascii)
def test_a_good_topic_is_a_topic_a_pattern_and_survives_the_wire(text: str) -> None:
    assert check_topic(text) == text
    assert check_pattern(text) == text
    assert decode_topic(text.encode()) == text
    assert not is_pattern(text)


@pytest.mark.parametrize(("text", "reason"), BAD_AS_BOTH, ids=lambda value: ascii(value)[:40])
def test_a_bad_text_is_refused_as_a_topic_and_as_a_pattern(text: str, reason: str) -> None:
    with pytest.raises(BadTopic) as topic_refused:
        check_topic(text)
    with pytest.raises(BadPattern) as pattern_refused:
        check_pattern(text)
    assert topic_refused.value.code == "BAD_TOPIC"
    assert pattern_refused.value.code == "BAD_PATTERN"
    assert reason in topic_refused.value.text
    assert reason in pattern_refused.value.text


@pytest.mark.parametrize("text", GOOD_PATTERNS)
def test_a_good_pattern_is_no_topic(text: str) -> None:
    assert check_pattern(text) == text
    assert is_pattern(text)
    with pytest.raises(BadTopic, match="only a pattern may"):
        check_topic(text)


@pytest.mark.parametrize(("text", "reason"), BAD_WILDCARDS)
def test_a_wildcard_is_a_whole_level_and_the_star_is_the_last(text: str, reason: str) -> None:
    with pytest.raises(BadPattern) as refused:
        check_pattern(text)
    assert reason in refused.value.text
    with pytest.raises(BadTopic):
        check_topic(text)


@pytest.mark.parametrize("raw", [b"/\xff", b"/\xc0\xaf", b"/\xed\xa0\x80", b"/a\xc3"], ids=ascii)
def test_bytes_that_are_not_utf8_are_a_bad_topic(raw: bytes) -> None:
    with pytest.raises(BadTopic, match="not UTF-8 at byte"):
        decode_topic(raw)


@given(st.text(st.characters(exclude_categories=()), max_size=300))
@example("/" + "\U0001f600" * 1000)
@example("\ud800" * 1000)
def test_whatever_comes_is_a_topic_or_refused_in_one_short_ascii_line(text: str) -> None:
    refused = ""
    try:
        topic = check_topic(text)
    except BadTopic as error:
        refused = error.text
    else:
        assert decode_topic(topic.encode()) == text
        assert check_pattern(text) == text
        assert unicodedata.normalize("NFC", text) == text
    assert refused.isascii()
    assert refused.isprintable()
    assert len(refused) < 600


@given(st.binary(max_size=300))
def test_whatever_bytes_come_are_a_topic_or_refused(raw: bytes) -> None:
    refused = ""
    try:
        assert decode_topic(raw).encode() == raw
    except BadTopic as error:
        refused = error.text
    assert refused.isascii()
    assert refused.isprintable()
    assert len(refused) < 600


def test_no_single_character_gets_a_second_separator_or_wildcard_in() -> None:
    for code_point in range(0x80, 0x110000):
        character = chr(code_point)
        if set("/+*$") & set(unicodedata.normalize("NFKC", character)):
            with pytest.raises(BadTopic):
                check_topic(f"/a{character}")


@pytest.mark.parametrize(("pattern", "topic", "expected"), MATCHES)
def test_what_a_pattern_matches(pattern: str, topic: str, expected: bool) -> None:
    assert matches(check_pattern(pattern), check_topic(topic)) is expected


def test_only_the_first_level_makes_a_system_topic() -> None:
    assert is_system(check_topic("/$sys/a"))
    assert is_system(check_pattern("/$sys/*"))
    assert not is_system(check_topic("/a/$sys"))


def test_patterns_overlap_and_cover_exactly_as_the_topics_say_that_they_match() -> None:
    names = ["a", "b", "$s"]
    topics = [
        Topic("/" + "/".join(levels))
        for depth in (1, 2, 3, 4)
        for levels in itertools.product(names, repeat=depth)
    ]
    patterns = [
        check_pattern("/" + "/".join([*levels, last]))
        for depth in (0, 1, 2)
        for levels in itertools.product([*names, "+"], repeat=depth)
        for last in [*names, "+", "*"]
    ]
    reached = {
        pattern: {topic for topic in topics if matches(pattern, topic)} for pattern in patterns
    }
    for a, b in itertools.product(patterns, repeat=2):
        assert overlaps(a, b) is bool(reached[a] & reached[b]), (a, b)
        assert covers(a, b) is (reached[a] >= reached[b]), (a, b)


def test_patterns_whose_common_topics_are_all_too_long_do_not_overlap() -> None:
    def pair(size: int) -> tuple[Pattern, Pattern]:
        return check_pattern(f"/{'a' * size}/+"), check_pattern(f"/+/{'b' * 126}")

    assert overlaps(*pair(127))
    assert not overlaps(*pair(128))
