"""The machine of requests: whoever dies, is late or says no, the requester gets exactly one end."""

import random
from itertools import permutations

import pytest

from busnode.node import requests as module
from busnode.node.requests import (
    END,
    TIMEOUT_S_MAX,
    Action,
    Provider,
    Requests,
    SendAsk,
    SendBid,
    SendReply,
    SendRequest,
)
from busnode.wire.errors import LimitReached
from busnode.wire.ids import Pattern, Topic

TOPIC = Topic("/dtc/read")
ME = "requester"


class Bench:
    """The machine with providers A, B, C … each of a client of that name, and time by hand."""

    def __init__(self, *names: str) -> None:
        self.requests = Requests()
        self.now = 100.0
        for name in names:
            self.requests.provide(Provider(name, 1), Pattern(TOPIC))
        self.asks: dict[object, int] = {}

    def ask(
        self,
        *,
        many: bool = False,
        timeout_s: float = 10.0,
        number: int = 7,
        client: str = ME,
        payload: bytes = b"42",
        identity: str = "",
    ) -> list[Action]:
        actions = self.requests.request(
            client, number, TOPIC,
            headers={"k": "v"}, payload=payload, many=many, timeout_s=timeout_s, now=self.now,
            identity=identity,
        )  # fmt: skip
        for action in actions:
            if isinstance(action, SendAsk):
                self.asks[action.provider.client] = action.ask
        return actions

    def bid(self, name: str, yes: bool = True) -> list[Action]:
        return self.requests.bid(name, self.asks[name], yes, self.now)

    def reply(self, name: str, payload: bytes = b"answer", code: str | None = None) -> list[Action]:
        return self.requests.reply(name, self.asks[name], code, {}, payload)

    def leave(self, name: str) -> list[Action]:
        return self.requests.leave(name, self.now)

    def later(self, seconds: float) -> list[Action]:
        self.now += seconds
        return self.requests.expire(self.now)

    def is_empty(self) -> bool:
        machine = self.requests
        return not (
            len(machine) or machine._asks or machine._asks_of or machine._clients
            or machine._size_bytes or machine._asked or machine._identities
            or machine.next_deadline()
        )  # fmt: skip


def to(actions: list[Action]) -> list[object]:
    """Who gets a request."""
    return [action.provider.client for action in actions if isinstance(action, SendRequest)]


def ends(actions: list[Action]) -> list[tuple[str | None, bool]]:
    return [(action.code, action.last) for action in actions if isinstance(action, SendReply)]


# One reply ----------------------------------------------------------------------------------------


def test_everybody_is_asked_and_the_first_yes_gets_the_request() -> None:
    bench = Bench("A", "B", "C")
    assert [a.provider.client for a in bench.ask() if isinstance(a, SendAsk)] == ["A", "B", "C"]
    assert bench.bid("B", yes=False) == []
    (sent,) = bench.bid("C")
    assert sent == SendRequest(
        Provider("C", 1), bench.asks["C"], TOPIC, {"k": "v"}, b"42", False, 10.0
    )
    assert bench.bid("A") == [], "it waits in case that C fails"
    assert bench.reply("C") == [SendReply(ME, 7, None, {}, b"answer", last=True)]
    assert bench.is_empty()


def test_an_error_is_a_reply() -> None:
    bench = Bench("A", "B")
    bench.ask()
    bench.bid("A")
    bench.bid("B")
    assert ends(bench.reply("A", code="REQUEST_FAILED")) == [("REQUEST_FAILED", True)]
    assert bench.is_empty()


@pytest.mark.parametrize("order", list(permutations("ABC")))
def test_when_one_dies_the_next_who_said_yes_has_its_turn(order: tuple[str, ...]) -> None:
    bench = Bench("A", "B", "C")
    bench.ask()
    assert to(bench.bid(order[0])) == [order[0]]
    bench.bid(order[1])
    bench.bid(order[2])
    assert to(bench.leave(order[0])) == [order[1]]
    assert bench.reply(order[0]) == [], "it is gone"
    assert to(bench.leave(order[1])) == [order[2]]
    assert ends(bench.reply(order[2])) == [(None, True)]
    assert bench.is_empty()


def test_when_one_dies_before_another_has_bid_the_request_waits_for_the_bid() -> None:
    bench = Bench("A", "B")
    bench.ask()
    bench.bid("A")
    assert bench.leave("A") == []
    assert to(bench.bid("B")) == ["B"]


def test_a_silent_provider_gives_way_after_half_of_the_time() -> None:
    bench = Bench("A", "B", "C")
    bench.ask(timeout_s=8.0)
    for name in "ABC":
        bench.bid(name)
    assert bench.requests.next_deadline() == pytest.approx(104.0)
    assert bench.later(3.9) == []
    assert to(bench.later(0.1)) == ["B"]
    assert bench.later(1.9) == []
    assert to(bench.later(0.1)) == ["C"]
    assert ends(bench.reply("A")) == [(None, True)], "the first may still be the first to answer"
    assert bench.reply("B") == []
    assert bench.reply("C") == []
    assert bench.is_empty()


def test_a_late_yes_gets_a_request_whose_first_provider_is_overdue() -> None:
    bench = Bench("A", "B")
    bench.ask(timeout_s=8.0)
    bench.bid("A")
    assert bench.later(5.0) == []
    assert to(bench.bid("B")) == ["B"]


def test_without_a_reply_it_ends_at_its_deadline() -> None:
    bench = Bench("A")
    bench.ask(timeout_s=8.0)
    bench.bid("A")
    assert bench.later(7.9) == []
    assert ends(bench.later(0.1)) == [("TIMED_OUT", True)]
    assert bench.reply("A") == []
    assert bench.is_empty()


def test_without_a_bid_it_ends_at_its_deadline() -> None:
    bench = Bench("A")
    bench.ask(timeout_s=8.0)
    assert ends(bench.later(8.0)) == [("TIMED_OUT", True)]
    assert bench.bid("A") == []
    assert bench.is_empty()


def test_nobody_there_and_nobody_willing_are_told_at_once() -> None:
    assert ends(Bench().ask()) == [("NO_PROVIDER", True)]
    bench = Bench("A", "B")
    bench.ask()
    assert bench.bid("A", yes=False) == []
    assert ends(bench.bid("B", yes=False)) == [("NO_PROVIDER", True)]
    assert bench.is_empty()
    bench = Bench("A", "B")
    bench.ask()
    bench.bid("A", yes=False)
    assert ends(bench.leave("B")) == [("NO_PROVIDER", True)]
    assert bench.is_empty()


def test_the_last_provider_that_dies_ends_it() -> None:
    bench = Bench("A")
    bench.ask()
    bench.bid("A")
    assert ends(bench.leave("A")) == [("NO_PROVIDER", True)]
    assert bench.is_empty()


def test_a_provider_that_ends_its_service_is_as_good_as_dead() -> None:
    bench = Bench("A", "B")
    bench.ask()
    bench.bid("A")
    bench.bid("B")
    assert to(bench.requests.unprovide(Provider("A", 1), bench.now)) == ["B"]
    assert bench.requests.unprovide(Provider("A", 1), bench.now) == []
    assert bench.requests.providers == 1


def test_a_requester_that_goes_is_sent_nothing() -> None:
    bench = Bench("A")
    bench.ask()
    bench.bid("A")
    assert bench.leave(ME) == []
    assert bench.reply("A") == []
    assert bench.later(100) == []
    assert bench.is_empty()


def test_a_client_that_asks_itself_and_goes_ends_in_silence() -> None:
    bench = Bench(ME)
    bench.ask()
    bench.bid(ME)
    assert bench.leave(ME) == []
    assert bench.is_empty()


def test_bids_and_replies_of_others_and_second_ones_are_ignored() -> None:
    bench = Bench("A", "B")
    bench.ask()
    ask = bench.asks["A"]
    assert bench.requests.bid("B", ask, True, bench.now) == []
    assert bench.requests.reply("A", ask, None, {}, b"too early") == []
    bench.bid("A")
    assert bench.bid("A") == []
    assert bench.requests.bid("B", ask, False, bench.now) == []
    assert bench.requests.reply("B", ask, None, {}, b"not B's") == []
    assert bench.requests.reply("A", 999, None, {}, b"no such") == []
    assert ends(bench.reply("A")) == [(None, True)]
    assert bench.reply("A") == []


def test_one_that_cannot_be_reached_is_passed_over() -> None:
    bench = Bench("A", "B")
    bench.ask()
    bench.bid("A")
    bench.bid("B")
    assert to(bench.requests.pass_over(bench.asks["A"], bench.now)) == ["B"]
    assert ends(bench.requests.pass_over(bench.asks["B"], bench.now)) == [("NO_PROVIDER", True)]
    assert bench.is_empty()


# Two providers of one client ----------------------------------------------------------------------


def test_two_providers_of_one_client_are_not_taken_for_each_other() -> None:
    requests = Requests()
    first, second = Provider("A", 1), Provider("A", 2)
    requests.provide(first, Pattern("/dtc/*"))
    requests.provide(second, Pattern("/dtc/read"))
    asks = requests.request(
        ME, 1, TOPIC, headers={}, payload=b"", many=True, timeout_s=9.0, now=0.0
    )
    numbers = {action.provider: action.ask for action in asks if isinstance(action, SendAsk)}
    assert len(set(numbers.values())) == 2
    (sent,) = requests.bid("A", numbers[second], True, 0.0)
    assert isinstance(sent, SendRequest)
    assert sent.provider == second
    assert requests.reply("A", numbers[first], None, {}, b"") == [], "that one has not bid"
    (reply,) = requests.reply("A", numbers[second], None, {}, b"second")
    assert isinstance(reply, SendReply)
    assert not reply.last, "the other one is still asked"
    assert ends(requests.bid("A", numbers[first], False, 0.0)) == [(END, True)]


def test_nothing_goes_to_another_provider_of_a_client_that_is_gone() -> None:
    requests = Requests()
    for number in (1, 2):
        requests.provide(Provider("A", number), Pattern(TOPIC))
    asks = requests.request(
        ME, 1, TOPIC, headers={}, payload=b"", many=False, timeout_s=9.0, now=0.0
    )
    for action in asks:
        assert isinstance(action, SendAsk)
        requests.bid("A", action.ask, True, 0.0)
    assert ends(requests.leave("A", 0.0)) == [("NO_PROVIDER", True)]


# Many replies -------------------------------------------------------------------------------------


def test_every_yes_gets_it_and_the_last_reply_is_the_end() -> None:
    bench = Bench("A", "B", "C")
    bench.ask(many=True)
    assert to(bench.bid("A")) == ["A"]
    assert ends(bench.reply("A")) == [(None, False)]
    assert to(bench.bid("B")) == ["B"]
    assert bench.bid("C", yes=False) == []
    assert ends(bench.reply("B")) == [(None, True)]
    assert bench.is_empty()


def test_an_end_without_a_reply_is_marked_as_such() -> None:
    assert ends(Bench().ask(many=True)) == [(END, True)]
    bench = Bench("A", "B")
    bench.ask(many=True)
    bench.bid("A")
    bench.reply("A")
    assert bench.bid("B", yes=False) == [SendReply(ME, 7, END, {}, b"", last=True)]
    assert bench.is_empty()


def test_many_replies_end_at_the_deadline() -> None:
    bench = Bench("A", "B")
    bench.ask(many=True, timeout_s=5.0)
    bench.bid("A")
    bench.reply("A")
    bench.bid("B")
    assert ends(bench.later(5.0)) == [(END, True)]
    assert bench.reply("B") == []
    assert bench.is_empty()


def outcome(bench: Bench, name: str, fate: str) -> list[Action]:
    match fate:
        case "yes":
            return bench.bid(name)
        case "no":
            return bench.bid(name, yes=False)
        case "reply":
            return bench.reply(name)
        case "error":
            return bench.reply(name, code="REQUEST_FAILED")
        case _:
            return bench.leave(name)


FATES = {
    "answers": ["yes", "reply"],
    "fails": ["yes", "error"],
    "refuses": ["no"],
    "dies first": ["die"],
    "dies working": ["yes", "die"],
}


@pytest.mark.parametrize("many", [True, False])
@pytest.mark.parametrize("seed", range(8))
def test_in_every_order_there_is_exactly_one_end(seed: int, many: bool) -> None:
    """Three providers, each with a fate of its own, their steps shuffled in every way."""
    print(f"seed {seed}")
    chance = random.Random(seed)
    for _ in range(200):
        bench = Bench("A", "B", "C")
        steps = {name: list(FATES[chance.choice(list(FATES))]) for name in "ABC"}
        answering = [name for name in "ABC" if steps[name][-1] in ("reply", "error")]
        actions = bench.ask(many=many)
        left = [name for name in "ABC" for _ in steps[name]]
        chance.shuffle(left)
        for name in left:
            fate = steps[name].pop(0)
            actions += outcome(bench, name, fate)
        replies = [action for action in actions if isinstance(action, SendReply)]
        if not many and not bench.is_empty():
            # A reply came before its request, so that one is still waited for.
            replies += [a for a in bench.later(10.0) if isinstance(a, SendReply)]
        assert [reply.last for reply in replies] == [False] * (len(replies) - 1) + [True]
        if many:
            assert len([r for r in replies if r.code != END]) == len(answering)
        assert bench.is_empty()


# Limits -------------------------------------------------------------------------------------------


def test_one_client_cannot_take_all_the_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REQUESTS_OF_ONE_MAX", 3)
    bench = Bench("A")
    for number in range(3):
        bench.ask(number=number)
    with pytest.raises(LimitReached, match="one client"):
        bench.ask()
    assert bench.ask(client="other")
    bench.leave(ME)
    assert bench.ask()


@pytest.mark.parametrize(
    ("limit", "most"), [("REQUESTS_OF_IDENTITY_MAX", 3), ("REQUESTS_BYTES_OF_IDENTITY_MAX", 300)]
)
def test_one_identity_cannot_take_all_the_room_with_many_connections(
    monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    monkeypatch.setattr(module, limit, most)
    bench = Bench("A")
    for client in ("first", "second", "third"):
        assert bench.ask(client=client, identity="eve", payload=bytes(90))
    with pytest.raises(LimitReached, match="one identity"):
        bench.ask(client="fourth", identity="eve", payload=bytes(90))
    for client in ("fifth", "sixth", "seventh", "eighth"):
        assert bench.ask(client=client, identity=client, payload=bytes(90))
        assert bench.ask(client=client, payload=bytes(90))
    bench.leave("second")
    assert bench.ask(client="fourth", identity="eve", payload=bytes(90))
    for client in ("first", "third", "fourth", "fifth", "sixth", "seventh", "eighth"):
        bench.leave(client)
    assert bench.is_empty()


def test_payloads_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REQUESTS_BYTES_OF_ONE_MAX", 1000)
    monkeypatch.setattr(module, "REQUESTS_BYTES_MAX", 2000)
    bench = Bench("A")
    bench.ask(payload=bytes(900))
    with pytest.raises(LimitReached, match="one client"):
        bench.ask(payload=bytes(200))
    bench.ask(client="second", payload=bytes(900))
    with pytest.raises(LimitReached, match="at this node"):
        bench.ask(client="third", payload=bytes(900))
    assert len(bench.requests) == 2
    bench.leave(ME)
    bench.ask(client="third", payload=bytes(900))


def test_a_timeout_is_never_longer_than_an_hour() -> None:
    bench = Bench("A")
    bench.ask(timeout_s=1e12)
    assert bench.requests.next_deadline() == bench.now + TIMEOUT_S_MAX


def test_requests_that_have_ended_are_not_kept_for_their_deadline() -> None:
    bench = Bench("A")
    for number in range(20_000):
        bench.ask(timeout_s=3600.0, number=number)
        bench.bid("A")
        bench.reply("A")
    assert len(bench.requests._alarms) < 5000
    assert bench.is_empty()


# Those who need not be asked ----------------------------------------------------------------------


def provide(bench: Bench, name: str, *, eager: bool = False, peer: bool = False) -> None:
    bench.requests.provide(Provider(name, 1, eager, peer), Pattern(TOPIC))


def test_an_eager_provider_gets_the_request_at_once_and_nobody_is_asked() -> None:
    bench = Bench("A")
    provide(bench, "E", eager=True)
    (sent,) = bench.ask()
    assert isinstance(sent, SendRequest)
    assert sent.provider.client == "E"
    assert ends(bench.requests.reply("E", sent.ask, None, {}, b"")) == [(None, True)]
    assert bench.is_empty()


def test_eager_providers_take_turns() -> None:
    bench = Bench()
    for name in "EFG":
        provide(bench, name, eager=True)
    first = [str(to(bench.ask(number=number))[0]) for number in range(9)]
    assert sorted(first) == sorted("EFG" * 3)


@pytest.mark.parametrize("how", ["declines", "dies"])
def test_when_an_eager_provider_fails_the_others_are_asked(how: str) -> None:
    bench = Bench("A")
    provide(bench, "E", eager=True)
    (sent,) = bench.ask()
    assert isinstance(sent, SendRequest)
    actions = (
        bench.requests.bid("E", sent.ask, False, bench.now)
        if how == "declines"
        else bench.leave("E")
    )
    (asked,) = actions
    assert isinstance(asked, SendAsk)
    assert to(bench.requests.bid("A", asked.ask, True, bench.now)) == ["A"]
    assert ends(bench.requests.reply("A", asked.ask, None, {}, b"")) == [(None, True)]
    assert bench.is_empty()


def test_an_eager_provider_that_left_before_its_turn_is_passed_over() -> None:
    bench = Bench()
    for name in "EFG":
        provide(bench, name, eager=True)
    (sent,) = bench.ask()
    assert isinstance(sent, SendRequest)
    left = [name for name in "EFG" if name != sent.provider.client]
    assert bench.leave(left[0]) == []
    assert to(bench.later(5.0)) == [left[1]]
    assert bench.leave(left[1]) == []
    assert ends(bench.requests.bid(sent.provider.client, sent.ask, False, bench.now)) == [
        ("NO_PROVIDER", True)
    ]
    assert bench.is_empty()


def test_when_an_eager_provider_is_silent_the_others_are_asked_in_time() -> None:
    bench = Bench("A")
    provide(bench, "E", eager=True)
    bench.ask(timeout_s=10.0)
    (asked,) = bench.later(5.0)
    assert isinstance(asked, SendAsk)
    assert to(bench.requests.bid("A", asked.ask, True, bench.now)) == ["A"]
    assert ends(bench.later(5.0)) == [("TIMED_OUT", True)]
    assert bench.is_empty()


def test_many_go_to_the_eager_at_once_and_to_the_others_when_they_bid() -> None:
    bench = Bench("A")
    provide(bench, "E", eager=True)
    actions = bench.ask(many=True)
    assert to(actions) == ["E"]
    assert to(bench.bid("A")) == ["A"]
    (request,) = (a for a in actions if isinstance(a, SendRequest))
    assert ends(bench.requests.reply("E", request.ask, None, {}, b"")) == [(None, False)]
    assert ends(bench.reply("A")) == [(None, True)]
    assert bench.is_empty()


# Other nodes --------------------------------------------------------------------------------------


class Nodes:
    """Two machines, each a provider to the other, with all that passes between them carried over.

    What goes to a client is kept in `out`, with the node that sent it.
    """

    def __init__(self) -> None:
        self.machines = {name: Requests() for name in ("home", "other")}
        self.now = 100.0
        self.out: list[tuple[str, Action]] = []

    def provide(self, node: str, client: str, *, eager: bool = False) -> None:
        self.machines[node].provide(Provider(client, 1, eager), Pattern(TOPIC))
        asking = "other" if node == "home" else "home"
        link = Provider(("node", node), 1, eager, is_peer=True)
        self.machines[asking].provide(link, Pattern(TOPIC))

    def do(self, node: str, actions: list[Action]) -> None:
        for action in actions:
            self._carry(node, action)

    def _carry(self, node: str, action: Action) -> None:
        away = "other" if node == "home" else "home"
        machine, me = self.machines[away], ("node", node)
        match action:
            case SendAsk(Provider(client=("node", _)), ask, topic, headers, timeout_s):
                actions = machine.ask(
                    me, ask, Topic(topic), headers=headers, timeout_s=timeout_s, now=self.now
                )
            case SendRequest(
                Provider(client=("node", _)), ask, topic, headers, payload, many, timeout_s
            ):
                actions = machine.request_of_peer(
                    me, ask, Topic(topic), headers=headers, payload=payload, many=many,
                    timeout_s=timeout_s, now=self.now,
                )  # fmt: skip
            case SendBid(("node", _), request, yes):
                actions = machine.bid(me, request, yes, self.now)
            case SendReply(("node", _), request, code, headers, payload, last):
                actions = machine.reply(me, request, code, headers, payload, last=last)
            case _:
                self.out.append((node, action))
                return
        self.do(away, actions)

    def request(self, *, many: bool = False) -> None:
        actions = self.machines["home"].request(
            ME, 7, TOPIC, headers={}, payload=b"42", many=many, timeout_s=10.0, now=self.now
        )
        self.do("home", actions)

    def take(self, kind: type[Action]) -> list[tuple[str, Action]]:
        """What was sent to clients of this kind since the last time."""
        found = [sent for sent in self.out if isinstance(sent[1], kind)]
        self.out = [sent for sent in self.out if not isinstance(sent[1], kind)]
        return found

    def bid(self, node: str, ask: Action, yes: bool = True) -> None:
        assert isinstance(ask, SendAsk)
        machine = self.machines[node]
        self.do(node, machine.bid(ask.provider.client, ask.ask, yes, self.now))

    def reply(self, node: str, request: Action, payload: bytes = b"answer") -> None:
        assert isinstance(request, SendRequest)
        machine = self.machines[node]
        answered = machine.reply(request.provider.client, request.ask, None, {}, payload)
        self.do(node, answered)

    def is_empty(self) -> bool:
        return not any(
            len(machine) or machine._asks or machine._asked or machine._clients
            for machine in self.machines.values()
        )  # fmt: skip


def test_a_provider_at_another_node_is_asked_there_and_answers() -> None:
    nodes = Nodes()
    nodes.provide("other", "P")
    nodes.request()
    ((where, ask),) = nodes.take(SendAsk)
    assert where == "other"
    nodes.bid("other", ask)
    ((where, request),) = nodes.take(SendRequest)
    assert where == "other"
    nodes.reply("other", request)
    ((where, reply),) = nodes.take(SendReply)
    assert (where, reply) == ("home", SendReply(ME, 7, None, {}, b"answer", last=True))
    assert nodes.is_empty()


def test_an_eager_provider_at_another_node_gets_the_request_without_a_question() -> None:
    nodes = Nodes()
    nodes.provide("other", "P", eager=True)
    nodes.request()
    ((where, request),) = nodes.take(SendRequest)
    assert where == "other"
    nodes.reply("other", request)
    assert len(nodes.take(SendReply)) == 1
    assert nodes.is_empty()


def test_a_no_from_all_providers_of_another_node_ends_it_with_nobody() -> None:
    nodes = Nodes()
    for name in "PQ":
        nodes.provide("other", name)
    nodes.request()
    for where, ask in nodes.take(SendAsk):
        nodes.bid(where, ask, yes=False)
    ((_, reply),) = nodes.take(SendReply)
    assert isinstance(reply, SendReply)
    assert reply.code == "NO_PROVIDER"
    assert nodes.is_empty()


def test_a_provider_that_dies_after_its_yes_is_taken_back() -> None:
    nodes = Nodes()
    nodes.provide("other", "P")
    nodes.provide("home", "A")
    nodes.request()
    asks = dict(nodes.take(SendAsk))
    nodes.bid("home", asks["home"])
    ((where, _),) = nodes.take(SendRequest)
    assert where == "home"
    nodes.bid("other", asks["other"])  # kept in case that A fails
    nodes.do("other", nodes.machines["other"].leave("P", nodes.now))
    nodes.do("home", nodes.machines["home"].leave("A", nodes.now))
    ((_, reply),) = nodes.take(SendReply)
    assert isinstance(reply, SendReply)
    assert reply.code == "NO_PROVIDER"
    assert nodes.is_empty()


def test_when_another_node_dies_the_next_who_said_yes_has_its_turn() -> None:
    nodes = Nodes()
    nodes.provide("other", "P")
    nodes.provide("home", "A")
    nodes.request()
    asks = dict(nodes.take(SendAsk))
    nodes.bid("other", asks["other"])
    nodes.bid("home", asks["home"])
    assert [where for where, _ in nodes.take(SendRequest)] == ["other"]
    nodes.do("home", nodes.machines["home"].leave(("node", "other"), nodes.now))
    assert [where for where, _ in nodes.take(SendRequest)] == ["home"]


def test_many_replies_stream_from_both_nodes_and_the_last_is_the_end() -> None:
    nodes = Nodes()
    for name in "PQ":
        nodes.provide("other", name)
    nodes.provide("home", "A")
    nodes.request(many=True)
    for where, ask in nodes.take(SendAsk):
        nodes.bid(where, ask)
    requests = nodes.take(SendRequest)
    assert sorted(where for where, _ in requests) == ["home", "other", "other"]
    for where, request in requests:
        nodes.reply(where, request)
    replies = [reply for _, reply in nodes.take(SendReply) if isinstance(reply, SendReply)]
    answers = [reply for reply in replies if reply.code is None]
    assert len(answers) == 3
    assert [reply.last for reply in replies] == [False] * (len(replies) - 1) + [True]
    assert nodes.is_empty()


def test_what_came_from_another_node_never_goes_to_a_third() -> None:
    bench = Bench()
    provide(bench, "third node", eager=True, peer=True)
    actions = bench.requests.request_of_peer(
        "peer", 3, TOPIC, headers={}, payload=b"", many=False, timeout_s=1.0, now=bench.now
    )
    assert actions == [SendBid("peer", 3, yes=False)]
    assert bench.is_empty()


def test_a_node_with_two_patterns_for_a_topic_is_asked_once() -> None:
    bench = Bench()
    bench.requests.provide(Provider("peer", 1, False, True), Pattern(TOPIC))
    bench.requests.provide(Provider("peer", 2, True, True), Pattern("/dtc/*"))
    (sent,) = bench.ask()
    assert isinstance(sent, SendRequest), "one of its patterns is eager"


def test_what_another_node_only_asked_about_is_forgotten_in_time() -> None:
    bench = Bench()
    provide(bench, "E", eager=True)
    actions = bench.requests.ask("peer", 3, TOPIC, headers={}, timeout_s=2.0, now=bench.now)
    assert actions == [SendBid("peer", 3, yes=True)]
    assert bench.later(2.0) == [SendBid("peer", 3, yes=False)]
    assert bench.is_empty()
