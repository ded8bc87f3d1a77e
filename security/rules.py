"""Access rules: who may do what on which topics. Deny wins, and what nothing allows is denied.

A file of rules is TOML, a table for each identity:

    [billing.allow]
    publish = ["/orders/*"]
    subscribe = ["/orders/*", "/prices/+"]

    [billing.deny]
    subscribe = ["/orders/secret/*"]

    ["*".allow]
    subscribe = ["/news"]

`"*"` is everybody, and `any` stands for all verbs. Patterns are those of subscriptions, so `/*`
does not reach the system's topics: whoever may do something there has a rule for `/$sys/*` or
`/$task/*`.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple
from weakref import WeakValueDictionary

from busnode.security.verbs import ANY, VERBS, Verb
from busnode.wire.errors import BadPattern, BusnodeError
from busnode.wire.ids import Pattern, Topic
from busnode.wire.shapes import is_list, is_map
from busnode.wire.topics import check_pattern, covers, matches, overlaps

EVERYBODY: Final = "*"
RULES_MAX: Final = 100_000
"""In one file: a topic that was not seen before is tried against all rules of an identity."""

REMEMBERED_MAX: Final = 16_384
"""Decisions that one identity's rights remember: 4 to 6 MB. A publisher may use a new topic for
every message."""


class BadRules(BusnodeError):
    """A file of rules or users that makes no sense; the text names the place."""

    code = "BAD_RULES"
    advice = "Mend the place that the text names: docs/security.md shows what the files look like."


class Rule(NamedTuple):
    who: str
    allows: bool
    verb: Verb
    pattern: Pattern

    def __str__(self) -> str:
        return f"[{self.who}.{'allow' if self.allows else 'deny'}] {self.verb} {self.pattern}"


class Decision(NamedTuple):
    allowed: bool
    rule: Rule | None
    """The one that decided; None when no rule is about it, and so it is denied."""


class Rights:
    """What one identity may do. It never changes: other rules make other rights."""

    __slots__ = ("__weakref__", "_allow", "_decided", "_deny", "identity")

    def __init__(self, identity: str, rules: list[Rule]) -> None:
        self.identity = identity
        self._allow = {verb: [r for r in rules if r.allows and r.verb == verb] for verb in VERBS}
        self._deny = {verb: [r for r in rules if not r.allows and r.verb == verb] for verb in VERBS}
        self._decided: dict[tuple[Verb, Topic], bool] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rights) and (self.identity, self._allow, self._deny) == (
            other.identity,
            other._allow,
            other._deny,
        )

    def __hash__(self) -> int:
        return hash(self.identity)

    def is_within(self, other: "Rights") -> bool:
        """Whether whoever has the other rights surely may do all that these allow."""
        return all(
            set(self._allow[verb]) <= set(other._allow[verb])
            and set(other._deny[verb]) <= set(self._deny[verb])
            for verb in VERBS
        )

    def allows(self, verb: Verb, topic: Topic) -> bool:
        """Whether it may; asked for each run of batches, so the answer is remembered."""
        found = self._decided.get((verb, topic))
        if found is None:
            found = self.decide(verb, topic).allowed
            if len(self._decided) >= REMEMBERED_MAX:
                self._decided.clear()
            self._decided[verb, topic] = found
        return found

    def decide(self, verb: Verb, topic: Topic) -> Decision:
        """The same, with the rule."""
        for rules in (self._deny, self._allow):
            for rule in rules[verb]:
                if matches(rule.pattern, topic):
                    return Decision(rule.allows, rule)
        return Decision(False, None)

    def covers(self, verb: Verb, pattern: Pattern) -> bool:
        """Whether it may on every topic that a pattern matches, whichever there will be."""
        return any(covers(rule.pattern, pattern) for rule in self._allow[verb]) and not any(
            overlaps(rule.pattern, pattern) for rule in self._deny[verb]
        )

    def reaches(self, verb: Verb, pattern: Pattern) -> bool:
        """Whether there can be a topic that the pattern matches on which it may. It knows no
        topics: the answer says nothing about which there are."""
        return any(overlaps(rule.pattern, pattern) for rule in self._allow[verb]) and not any(
            covers(rule.pattern, pattern) for rule in self._deny[verb]
        )


class Rules:
    """All rules of a file."""

    def __init__(self, rules: list[Rule]) -> None:
        self._by_identity: dict[str, list[Rule]] = {}
        for rule in rules:
            self._by_identity.setdefault(rule.who, []).append(rule)
        self._rights: WeakValueDictionary[str, Rights] = WeakValueDictionary()
        """Of those who are here."""

    def __contains__(self, identity: str) -> bool:
        """Whether it has rules of its own."""
        return identity in self._by_identity

    def rights(self, identity: str) -> Rights:
        """The same for all connections of an identity: what it remembers is kept once."""
        rights = self._rights.get(identity)
        if rights is None:
            of_all = self._by_identity.get(EVERYBODY, [])
            rights = Rights(identity, [*self._by_identity.get(identity, []), *of_all])
            self._rights[identity] = rights
        return rights


def read_rules(table: Mapping[str, Any]) -> Rules:
    """The rules of a file that was parsed; BadRules names what is wrong with it."""
    rules: list[Rule] = []
    for who, sides in table.items():
        if not is_map(sides):
            raise BadRules(f"{who!r:.100} is no table: write [{who}.allow] and patterns below it")
        for side, verbs in sides.items():
            if side not in ("allow", "deny") or not is_map(verbs):
                raise BadRules(f"[{who}.{side}] is none: expected [{who}.allow] or [{who}.deny]")
            for word, patterns in verbs.items():
                rules += _read_row(who, side == "allow", word, patterns)
    if len(rules) > RULES_MAX:
        raise BadRules(f"{len(rules)} rules; {RULES_MAX} are allowed")
    return Rules(rules)


def _read_row(who: str, allows: bool, word: str, patterns: object) -> Iterator[Rule]:
    place = f"[{who}.{'allow' if allows else 'deny'}] {word}"
    verbs: list[Verb] = [each for each in VERBS if word in (each, ANY)]
    if not verbs:
        raise BadRules(f"{place} is no verb; expected one of {', '.join(VERBS)} or {ANY}")
    if not is_list(patterns) or not all(isinstance(each, str) for each in patterns):
        raise BadRules(f"{place} is no list of patterns, such as ['/orders/*']")
    for text in patterns:
        try:
            pattern = check_pattern(text)
        except BadPattern as error:
            raise BadRules(f"{place}: {error.text}") from None
        for verb in verbs:
            yield Rule(who, allows, verb, pattern)
