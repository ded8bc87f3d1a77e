"""Access rules: what they say, against every topic there can be, and files that make no sense."""

import itertools
import tomllib
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from busnode.security import rules as rules_module
from busnode.security.rules import BadRules, Rights, Rule, Rules, read_rules
from busnode.security.verbs import ANY, MEANINGS, VERBS, Verb
from busnode.wire.ids import Pattern, Topic
from busnode.wire.topics import check_pattern, matches


def rules(text: str) -> Rules:
    return read_rules(tomllib.loads(text))


def may(found: Rules, who: str, verb: Verb, topic: str) -> bool:
    rights = found.rights(who)
    assert rights.allows(verb, Topic(topic)) == rights.decide(verb, Topic(topic)).allowed
    return rights.allows(verb, Topic(topic))


# What they say ------------------------------------------------------------------------------------


def test_what_nothing_allows_is_denied() -> None:
    found = rules("[ada.allow]\npublish = ['/a']")
    assert may(found, "ada", "publish", "/a")
    for verb, topic in itertools.product(VERBS, ("/a", "/a/b", "/b", "/$sys/status")):
        assert may(found, "ada", verb, topic) == (verb == "publish" and topic == "/a")
        assert not may(found, "bob", verb, topic)
        assert not may(rules(""), "ada", verb, topic)


@pytest.mark.parametrize("first", ["allow", "deny"])
@pytest.mark.parametrize("who", ["ada", '"*"'])
def test_deny_wins_whoever_it_names_and_wherever_it_stands(first: str, who: str) -> None:
    allow = "[ada.allow]\nsubscribe = ['/*']\n"
    deny = f"[{who}.deny]\nsubscribe = ['/secret/*']\n"
    found = rules(allow + deny if first == "allow" else deny + allow)
    assert may(found, "ada", "subscribe", "/open")
    assert not may(found, "ada", "subscribe", "/secret/a")
    decision = found.rights("ada").decide("subscribe", Topic("/secret/a"))
    assert decision.rule is not None
    assert not decision.rule.allows
    assert str(decision.rule) == f"[{who.strip(chr(34))}.deny] subscribe /secret/*"


def test_a_deny_of_one_is_not_one_of_another() -> None:
    found = rules("['*'.allow]\nsubscribe = ['/news']\n[bob.deny]\nsubscribe = ['/news']")
    assert may(found, "ada", "subscribe", "/news")
    assert not may(found, "bob", "subscribe", "/news")


def test_any_is_every_verb_and_a_star_is_everybody() -> None:
    found = rules(f"['*'.allow]\n{ANY} = ['/open/+']")
    for verb in VERBS:
        assert may(found, "whoever", verb, "/open/a")
        assert not may(found, "whoever", verb, "/open")
    assert "whoever" not in found
    assert "*" in found


def test_a_wide_pattern_does_not_reach_the_topics_of_the_system() -> None:
    found = rules("[ada.allow]\nany = ['/*', '/+/+']\n[root.allow]\nadmin = ['/$sys/*']")
    for topic in ("/$sys/status", "/$task/mails", "/$sys/audit/n1"):
        for verb in VERBS:
            assert not may(found, "ada", verb, topic)
            assert may(found, "root", verb, topic) == (
                verb == "admin" and topic.startswith("/$sys")
            )


def test_what_is_remembered_is_bounded_and_stays_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules_module, "REMEMBERED_MAX", 10)
    rights = rules("[ada.allow]\npublish = ['/even/*']").rights("ada")
    for n in range(100):
        for topic in (f"/even/{n}", f"/odd/{n}"):
            assert rights.allows("publish", Topic(topic)) == topic.startswith("/even")
            assert len(rights._decided) <= 10  # pyright: ignore[reportPrivateUsage]


def test_rights_are_equal_when_they_say_the_same() -> None:
    one = rules("[ada.allow]\npublish = ['/a', '/b']").rights("ada")
    assert one == rules("[ada.allow]\npublish = ['/a', '/b']\n[bob.allow]\nany=['/*']").rights(
        "ada"
    )
    assert hash(one) == hash(rules("[ada.allow]\npublish = ['/a', '/b']").rights("ada"))
    assert one != rules("[ada.allow]\npublish = ['/a']").rights("ada")
    assert one != rules("[bob.allow]\npublish = ['/a', '/b']").rights("bob")
    assert one != "ada"


def test_every_verb_has_a_meaning() -> None:
    assert set(MEANINGS) == set(VERBS)


# Against every topic ------------------------------------------------------------------------------

WORDS = ("a", "b", "$s")
TOPICS = [
    Topic("/" + "/".join(levels))
    for n in (1, 2, 3)
    for levels in itertools.product(WORDS, repeat=n)
]


def _patterns() -> list[Pattern]:
    found: list[Pattern] = []
    for n in (1, 2, 3):
        for levels in itertools.product((*WORDS, "+"), repeat=n):
            found.append(check_pattern("/" + "/".join(levels)))
            if n < 3:
                found.append(check_pattern("/" + "/".join((*levels, "*"))))
    found.append(check_pattern("/*"))
    return found


PATTERNS = _patterns()
patterns = st.sampled_from(PATTERNS)
some_rules = st.lists(
    st.builds(
        Rule,
        st.sampled_from(["ada", "*"]),
        st.booleans(),
        st.sampled_from(["publish", "subscribe"]),
        patterns,
    ),
    max_size=6,
)


def simply(given_rules: list[Rule], verb: Verb, topic: Topic) -> bool:
    """The same in one line."""
    about = [rule for rule in given_rules if rule.verb == verb and matches(rule.pattern, topic)]
    return bool(about) and all(rule.allows for rule in about)


@given(some_rules, st.sampled_from(TOPICS))
def test_a_decision_is_the_simple_one(given_rules: list[Rule], topic: Topic) -> None:
    rights = Rights("ada", given_rules)
    for verb in ("publish", "subscribe"):
        assert rights.allows(verb, topic) == simply(given_rules, verb, topic)
        decision = rights.decide(verb, topic)
        assert decision.allowed == simply(given_rules, verb, topic)
        assert decision.rule is None or (
            decision.rule in given_rules and matches(decision.rule.pattern, topic)
        )


@given(some_rules, patterns)
@example([Rule("ada", True, "publish", Pattern("/+/*"))], Pattern("/$s/*"))
@example([Rule("ada", True, "publish", Pattern("/*"))], Pattern("/+"))
@example(
    [
        Rule("ada", True, "publish", Pattern("/a/*")),
        Rule("ada", False, "publish", Pattern("/+/b")),
    ],
    Pattern("/a/+"),
)
def test_who_covers_a_pattern_may_on_every_topic_of_it(
    given_rules: list[Rule], pattern: Pattern
) -> None:
    if Rights("ada", given_rules).covers("publish", pattern):
        matched = [topic for topic in TOPICS if matches(pattern, topic)]
        assert matched
        assert all(simply(given_rules, "publish", topic) for topic in matched)


@given(some_rules, patterns)
def test_who_may_on_some_topic_of_a_pattern_reaches_it(
    given_rules: list[Rule], pattern: Pattern
) -> None:
    """The other way round it may err: what a member reaches is looked at topic by topic."""
    rights = Rights("ada", given_rules)
    if any(matches(pattern, t) and simply(given_rules, "subscribe", t) for t in TOPICS):
        assert rights.reaches("subscribe", pattern)


@given(patterns, patterns)
def test_one_rule_covers_and_reaches_exactly_what_it_matches(
    allowed: Pattern, pattern: Pattern
) -> None:
    rights = Rights("ada", [Rule("ada", True, "subscribe", allowed)])
    of_both = [t for t in TOPICS if matches(pattern, t) and matches(allowed, t)]
    if rights.reaches("subscribe", pattern) and not pattern.endswith("*"):
        assert of_both, "nothing that could be there is allowed"


@given(some_rules, some_rules)
def test_who_has_rights_within_others_may_nothing_that_they_may_not(
    some: list[Rule], more: list[Rule]
) -> None:
    fewer, wider = Rights("ada", some), Rights("ada", [*some, *more])
    for one, other, of_one, of_other in (
        (fewer, wider, some, [*some, *more]),
        (wider, fewer, [*some, *more], some),
    ):
        if one.is_within(other):
            for topic in TOPICS:
                assert not simply(of_one, "publish", topic) or simply(of_other, "publish", topic)
    if all(rule.allows for rule in more):
        assert fewer.is_within(wider)


# Files --------------------------------------------------------------------------------------------

BAD: dict[str, tuple[str, str]] = {
    "no table": ("ada = 1", "'ada' is no table"),
    "a third side": ("[ada.maybe]\npublish = ['/a']", "[ada.maybe] is none"),
    "a side that is no table": ("[ada]\nallow = ['/a']", "[ada.allow] is none"),
    "an unknown verb": ("[ada.allow]\nread = ['/a']", "[ada.allow] read is no verb"),
    "a verb in capitals": ("[ada.deny]\nPublish = ['/a']", "[ada.deny] Publish is no verb"),
    "no list": ("[ada.allow]\npublish = '/a'", "[ada.allow] publish is no list"),
    "no texts": ("[ada.allow]\npublish = [1]", "[ada.allow] publish is no list"),
    "a pattern that is none": ("[ada.allow]\nqueue = ['/a', 'b']", "[ada.allow] queue: pattern"),
    "a * in the middle": ("[ada.deny]\nadmin = ['/*/a']", "[ada.deny] admin: pattern"),
    "two dots": ("[ada.allow]\npublish = ['/a/../b']", "[ada.allow] publish: pattern"),
}


@pytest.mark.parametrize(("text", "place"), BAD.values(), ids=list(BAD))
def test_a_file_that_makes_no_sense_is_refused_and_the_place_is_named(
    text: str, place: str
) -> None:
    with pytest.raises(BadRules) as raised:
        rules(text)
    assert place in raised.value.text
    assert raised.value.code == "BAD_RULES"


def test_a_file_has_a_bounded_number_of_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules_module, "RULES_MAX", 2 * len(VERBS))
    many: dict[str, Any] = {"ada": {"allow": {ANY: ["/a", "/b"]}}}
    read_rules(many)
    with pytest.raises(BadRules, match="rules"):
        read_rules({**many, "bob": {"allow": {"publish": ["/a"]}}})
