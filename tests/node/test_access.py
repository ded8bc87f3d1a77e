"""Who comes in, what they may do, and what becomes of it while they are here."""

import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import trio
import trio.testing

import busnode
from busnode.node import requests
from busnode.node.access import WRONG, Access, load_rules, load_users
from busnode.node.config import BadSetting, NodeConfig
from busnode.security import users as users_module
from busnode.security.users import digest_token
from busnode.wire.batches import Columns
from busnode.wire.control import (
    Ack,
    Error,
    Gap,
    Goodbye,
    Hello,
    Provide,
    Reply,
    Request,
    SavePosition,
    Subscribe,
    Subscribed,
    TaskDone,
    TaskPoll,
    Tasks,
    TaskSettled,
    Welcome,
)
from busnode.wire.errors import NotAuthenticated
from busnode.wire.limits import NAME_BYTES_MAX, PROTOCOL_VERSION
from busnode.wire.producer_tag import tagged
from busnode.world.real_files import RealFiles
from busnode.world.real_world import real_world

from .guarded import PASSWORD, GuardedClient, Nodes, Papers, came_as, password_row, token_of
from .raw_client import AMPLE, LIVE, PERSISTENT, WAIT_S, Bus, Closed, Delivered, Journal, real_bus
from .test_http import send, until_closed

HOST: Final = "192.0.2.1"

ALL = '["*".allow]\nany = ["/*", "/$task/*", "/$sys/*"]\n'


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users_module, "MEMORY_KIB", 8)
    monkeypatch.setattr(users_module, "ITERATIONS", 1)


@asynccontextmanager
async def guarded(
    folder: Path, *users: str, acl: str | None = ALL, **settings: Any
) -> AsyncIterator[tuple[Bus, Papers]]:
    papers = Papers(folder / "papers", *users, acl=acl)
    async with Nodes(folder, papers, **settings).running("a") as bus:
        yield bus, papers


def came(bus: Bus, identity: str, producer_id: int = 1) -> Any:
    return came_as(bus.network, bus.node.address, identity, producer_id)


async def audited(bus: Bus) -> list[dict[str, Any]]:
    """What the audit log has, as its readers get it."""
    async with came(bus, "root", 999) as reader:
        await reader.subscribe("/$sys/audit/*", "earliest")
        found = [e for e in await bus.all_sent(reader) if isinstance(e, Delivered)]
        return [json.loads(payload) for each in found for payload in each.payloads]


# Coming in ----------------------------------------------------------------------------------------


async def test_a_client_comes_in_by_token_or_password_and_by_nothing_else(tmp_path: Path) -> None:
    papers = Papers(tmp_path / "papers", "ada", acl=ALL)
    with papers.users.open("a") as file:
        file.write(password_row("bob") + "[cleo]\ncertificate = true\n")
    access = Access(real_world(), NodeConfig("test", **papers.settings))

    async def shown(user: str = "", secret: str = "", certificate: str | None = None) -> str:
        hello = Hello(PROTOCOL_VERSION, "x", 1, user, secret)
        return (await access.authenticate(hello, certificate, HOST)).identity

    assert await shown(secret=token_of("ada")) == "ada"
    assert await shown("bob", PASSWORD) == await shown("bob", PASSWORD) == "bob"
    assert await shown(certificate="cleo") == "cleo"
    wrong: list[tuple[str, str, str | None]] = [
        ("", "", None),
        ("ada", "", None),
        ("ada", token_of("ada"), None),
        ("", token_of("bob"), None),
        ("", token_of("ada", 1), None),
        ("bob", "", None),
        ("bob", PASSWORD + " ", None),
        ("cleo", PASSWORD, None),
        ("", PASSWORD, None),
        ("nobody", PASSWORD, None),
        ("anonymous", "", None),
        ("anonymous", "x", None),
        ("*", "x", None),
        ("", "anonymous.x", None),
        ("", "certificate", None),
        ("", "", "ada"),
        ("", "", "nobody"),
        ("", "", "anonymous"),
        ("", "", ""),
        ("ada", "x", "cleo"),
    ]
    for user, secret, certificate in wrong:
        with pytest.raises(NotAuthenticated) as raised:
            await shown(user, secret, certificate)
        if user or secret:
            assert raised.value.text == WRONG, "the same for all"


async def test_who_is_unknown_costs_as_much_as_who_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    papers = Papers(tmp_path / "papers", "ada", acl=ALL)
    with papers.users.open("a") as file:
        file.write(password_row("bob"))
    access = Access(real_world(), NodeConfig("test", **papers.settings))
    computed: list[str] = []
    monkeypatch.setattr(
        "busnode.node.access.is_password", lambda _, encoded: computed.append(encoded)
    )
    for user in ("bob", "ada", "nobody"):
        with pytest.raises(NotAuthenticated):
            await access.authenticate(Hello(PROTOCOL_VERSION, "x", 1, user, "wrong"), None, HOST)
    assert len(computed) == 3


async def test_a_password_that_was_right_is_not_computed_again_until_the_files_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    papers = Papers(tmp_path / "papers", acl=ALL)
    papers.users.write_text(password_row("bob"))
    access = Access(real_world(), NodeConfig("test", **papers.settings))
    hello = Hello(PROTOCOL_VERSION, "x", 1, "bob", PASSWORD)
    await access.authenticate(hello, None, HOST)
    with monkeypatch.context() as patch:
        patch.setattr("busnode.node.access.is_password", lambda *_: False)
        await access.authenticate(hello, None, HOST)
        with pytest.raises(NotAuthenticated):
            await access.authenticate(Hello(PROTOCOL_VERSION, "x", 1, "bob", "other"), None, HOST)
    papers.users.write_text(password_row("bob", "another password"))
    access.reload()
    with pytest.raises(NotAuthenticated):
        await access.authenticate(hello, None, HOST)
    assert PASSWORD.encode() not in repr(vars(access)).encode()


async def test_who_guesses_passwords_at_one_address_holds_up_nobody_at_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    papers = Papers(tmp_path / "papers", acl=ALL)
    papers.users.write_text(password_row("bob"))
    access = Access(real_world(), NodeConfig("test", **papers.settings))
    go, tried = threading.Event(), list[str]()

    def slowly(password: str, encoded: str) -> bool:
        del encoded
        assert go.wait(WAIT_S)
        tried.append(password)
        return password == PASSWORD

    monkeypatch.setattr("busnode.node.access.is_password", slowly)

    async def guess() -> None:
        hello = Hello(PROTOCOL_VERSION, "x", 1, "bob", "wrong")
        with pytest.raises(NotAuthenticated):
            await access.authenticate(hello, None, "192.0.2.1")

    async def come() -> None:
        hello = Hello(PROTOCOL_VERSION, "x", 1, "bob", PASSWORD)
        assert (await access.authenticate(hello, None, "192.0.2.2")).identity == "bob"

    async with trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(guess)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(come)
        await trio.testing.wait_all_tasks_blocked()
        go.set()
    assert len(tried) == 101
    assert tried.index(PASSWORD) <= 5


async def test_each_guess_by_http_takes_a_connection_of_its_own(tmp_path: Path) -> None:
    async with guarded(tmp_path, "ada", http_port=0) as (bus, _):
        assert bus.node.listeners.http is not None
        stream = await bus.network.dial(bus.node.listeners.http.address)
        request = "GET /status HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ada.x\r\n\r\n"
        await send(stream, request.encode() * 3)
        answers = await until_closed(stream)
        stream.close()
        assert answers.startswith(b"HTTP/1.1 401 ")
        assert answers.count(b"HTTP/1.1 ") == 1, "addresses are counted at the door alone"


async def test_nothing_is_done_for_who_has_not_shown_who_it_is(tmp_path: Path) -> None:
    async with guarded(tmp_path, "ada", "root") as (bus, _):
        for hello in (
            Hello(PROTOCOL_VERSION, "x", 1),
            Hello(PROTOCOL_VERSION, "x", 1, "ada", "hunter22"),
            Hello(PROTOCOL_VERSION, "x", 1, "", "ada.hunter22"),
        ):
            stream = await bus.network.dial(bus.node.address)
            client = GuardedClient(stream, 1)
            await client.send(
                hello, client.batch("/a"), Subscribe(1, "/*", "earliest", {}, None, None, AMPLE)
            )
            events = await client.ended()
            stream.close()
            assert [type(each) for each in events] == [Error]
            assert isinstance(events[0], Error)
            assert events[0].code == "NOT_AUTHENTICATED"
            assert b"hunter22" not in client.heard
            assert bytes(bus.broker_id) not in bytes(client.heard)
            assert len(client.heard) < 200, "nothing but that"
        assert not [log for log in bus.node.store.logs() if log.log_id.topic == "/a"]
        refused = [each for each in await audited(bus) if each["kind"] == "access.refused"]
        assert {each["facts"]["who"] for each in refused} == {"x", "ada"}
        assert "hunter22" not in json.dumps(refused)


@pytest.mark.parametrize("broken", ["users", "acl", "key"])
def test_a_node_does_not_start_with_a_file_that_makes_no_sense(tmp_path: Path, broken: str) -> None:
    papers = Papers(tmp_path / "papers", "ada", acl=ALL)
    path = getattr(papers, broken)
    for text in (b"\xff", b"[[[", b"hunter22 = 1"):
        path.write_bytes(text)
        with pytest.raises(BadSetting) as raised:
            Access(real_world(), NodeConfig("test", **papers.settings))
        assert str(path) in raised.value.text
    path.unlink()
    settings = {**papers.settings, "acl": str(papers.acl)}
    with pytest.raises(BadSetting, match="cannot be read"):
        Access(real_world(), NodeConfig("test", **settings))


def test_rules_without_users_make_no_sense(tmp_path: Path) -> None:
    papers = Papers(tmp_path / "papers", acl=ALL)
    with pytest.raises(BadSetting, match="acl without users"):
        Access(real_world(), NodeConfig("test", acl=str(papers.acl)))
    assert load_rules(RealFiles(), str(papers.acl)).rights("x").allows("publish", "/a")  # type: ignore[arg-type]
    assert len(load_users(RealFiles(), str(papers.users))) == 0


# Producers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("acl", [ALL, None])
@pytest.mark.parametrize("flags", [LIVE, PERSISTENT])
async def test_nobody_publishes_under_anothers_producer_id(
    tmp_path: Path, acl: str | None, flags: int
) -> None:
    async with (
        guarded(tmp_path, "ada", "eve", acl=acl) as (bus, _),
        came(bus, "ada") as ada,
        came(bus, "eve") as eve,
    ):
        await ada.subscribe("/*")
        forged = tagged(7, "ada")
        own = eve.batch("/a", [b"own"], flags)
        await eve.send(eve.batch("/a", [b"forged"], flags, 5, producer_id=forged))
        await eve.send(eve.batch("/a", [b"untagged"], flags, 6, producer_id=7))
        # One among many of the same run is enough.
        await eve.send(own + eve.batch("/a", [b"forged"], flags, 7, producer_id=forged))
        refusals = [await eve.refused() for _ in range(3)]
        assert {each.code for each in refusals} == {"FORBIDDEN"}
        await eve.send(eve.batch("/a", [b"good"], flags))
        await eve.barrier()
        heard = [e for e in await bus.all_sent(ada) if isinstance(e, Delivered)]
        assert [p for each in heard for p in each.payloads] == [b"good"]


async def test_a_clients_library_comes_in_and_publishes_under_its_own(tmp_path: Path) -> None:
    async with guarded(tmp_path, "ada") as (bus, _):
        url = f"bus://{bus.node.address}"
        async with busnode.connect(url, token=token_of("ada")) as one:
            receipt = await one.publish("/a", b"1", persistent=True)
            assert receipt.msg_no == 1
        async with (
            busnode.connect(url, token=token_of("ada"), producer_id=7) as numbered,
            numbered.publisher("/a", persistent=True) as out,
        ):
            await out.send_numbered(Columns([b"2"]), 1)
            await out.flush()
        async with (
            busnode.connect(url, token=token_of("ada"), producer_id=7) as again,
            again.publisher("/a", persistent=True) as out,
        ):
            await out.send_numbered(Columns([b"2"]), 1)
            await out.flush()
        async with (
            busnode.connect(url, token=token_of("ada")) as reader,
            reader.subscribe("/a", start="earliest") as messages,
        ):
            got = [(await anext(messages)).payload for _ in range(2)]
            assert got == [b"1", b"2"]
            (log,) = (log for log in bus.node.store.logs() if log.log_id.topic == "/a")
            assert log.committed_no == 2, "a repeat is one"
        with pytest.raises(NotAuthenticated):
            async with busnode.connect(url, token="ada.wrong", deadline_s=10):
                pass
        with pytest.raises(NotAuthenticated):
            async with busnode.connect(url, deadline_s=10):
                pass


async def test_what_is_decided_for_an_identity_is_remembered_once_for_all_its_connections(
    tmp_path: Path,
) -> None:
    async with (
        guarded(tmp_path, "ada", "eve") as (bus, _),
        came(bus, "eve") as first,
        came(bus, "eve", 2) as second,
    ):
        rights = bus.session(first).rights
        assert rights is not None
        assert bus.session(second).rights is rights, "a thousand would remember 6 MB each"


# Durable names ------------------------------------------------------------------------------------


async def test_a_durable_name_is_its_identitys_own(tmp_path: Path) -> None:
    async with guarded(tmp_path, "ada", "eve") as (bus, _):
        async with came(bus, "ada") as ada:
            for _ in range(3):
                await ada.publish("/a", [b"x"])
            await ada.acked(3)
            await ada.subscribe("/a", "earliest", durable="mine")
            await ada.messages(3)
            await ada.send(SavePosition(1, {bus.broker_id: {"/a": 2}}))
            await ada.barrier()
        async with came(bus, "eve") as eve:
            for number, name in enumerate(("mine", "ada:mine", "eve:mine"), start=1):
                told = await eve.subscribe("/a", "latest", number=number, durable=name)
                assert told.position == {bus.broker_id: {"/a": 3}}, "nothing was kept for it"
                await eve.send(SavePosition(number, {bus.broker_id: {"/a": 0}}))
            await eve.barrier()
        async with came(bus, "ada", 2) as ada:
            told = await ada.subscribe("/a", "latest", durable="mine")
            assert told.position == {bus.broker_id: {"/a": 2}}
        kept = {
            log.log_id.topic
            for log in bus.node.store.logs()
            if log.log_id.topic.startswith("/$sys/durable")
        }
        assert len(kept) == 4, kept


async def test_a_durable_name_that_is_too_long_with_its_identity_is_refused(tmp_path: Path) -> None:
    papers = Papers(tmp_path / "papers", "a" * 60, acl=ALL)
    nodes = Nodes(tmp_path, papers)
    async with nodes.running("a") as bus, nodes.running("b"), came(bus, "a" * 60) as client:
        for number, name in enumerate(("n" * NAME_BYTES_MAX, "n" * 68, "a/b", "\0")):
            message = Subscribe(number, "/a", "latest", {}, name, None, AMPLE)
            await client.send(message)
            refused = await client.refused()
            assert (refused.code, refused.about) == ("REFUSED", number)
        await client.subscribe("/a", number=9, durable="n" * 67)
        await client.barrier()


# Requests -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("hop", [False, True])
async def test_a_provider_is_told_who_asks_and_nobody_can_forge_it(
    tmp_path: Path, hop: bool
) -> None:
    papers = Papers(tmp_path / "papers", "ada", "eve", acl=ALL)
    nodes = Nodes(tmp_path, papers)
    async with nodes.running("a") as a, nodes.running("b") as b:
        home = b if hop else a
        async with came(a, "ada") as provider, came(home, "eve") as eve:
            await provider.send(Provide(1, "/s", True))
            await provider.barrier()
            for headers in ({}, {"$identity": "ada"}, {"$Identity": "ada", "$identity": "x"}):
                asked = await reached(eve, provider, headers)
                assert asked.headers["$identity"] == "eve"
                await provider.send(Reply(asked.request, None, {}, b"!", True))
                assert (await eve.expect(Reply)).payload == b"!"


async def test_where_nobody_is_asked_the_header_is_nobodys(tmp_path: Path) -> None:
    async with (
        Nodes(tmp_path, Papers(tmp_path / "p"), users=None).running("a") as bus,
        bus.client() as provider,
        bus.client(2) as client,
    ):
        await provider.send(Provide(1, "/s", True))
        await provider.barrier()
        await client.send(Request(1, 0, "/s", {"$identity": "root", "k": "v"}, b"", False, 5.0))
        assert (await provider.expect(Request)).headers == {"k": "v"}


async def test_requests_of_an_identity_are_counted_over_its_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "REQUESTS_OF_IDENTITY_MAX", 1)
    async with (
        guarded(tmp_path, "ada", "eve") as (bus, _),
        came(bus, "ada") as ada,
        came(bus, "eve", 2) as first,
        came(bus, "eve", 3) as second,
    ):
        await ada.send(Provide(1, "/ask", eager=True))
        await ada.barrier()
        for client in (first, second, ada):
            await client.send(Request(1, 0, "/ask", {}, b"x", many=False, timeout_s=60.0))
            answers = await client.barrier()
            limited = [each for each in answers if isinstance(each, Error)]
            assert [each.code for each in limited] == ["LIMIT_REACHED"] * (client is second)


async def test_a_reply_of_somebody_who_was_not_asked_is_heard_by_nobody(tmp_path: Path) -> None:
    async with (
        guarded(tmp_path, "ada", "bob", "eve") as (bus, _),
        came(bus, "ada") as provider,
        came(bus, "bob") as client,
        came(bus, "eve") as eve,
    ):
        await provider.send(Provide(1, "/s", True))
        await provider.barrier()
        await client.send(Request(1, 0, "/s", {}, b"?", False, 10.0))
        asked = await provider.expect(Request)
        for number in range(asked.request + 50):
            await eve.send(Reply(number, None, {}, b"forged", True))
        await eve.barrier()
        await provider.send(Reply(asked.request, None, {}, b"true", True))
        assert (await client.expect(Reply)).payload == b"true"


async def reached(
    client: GuardedClient, provider: GuardedClient, headers: dict[str, str]
) -> Request:
    """A request, as it comes to the provider; its node may not know of the provider at once."""
    while True:
        await client.send(Request(1, 0, "/s", headers, b"?", False, 5.0))
        found: list[Request] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_first, provider, Request, found, nursery.cancel_scope)
            nursery.start_soon(_first, client, Reply, [], nursery.cancel_scope)
        if found:
            return found[0]


async def _first(
    client: GuardedClient, kind: type[Any], found: list[Any], scope: trio.CancelScope
) -> None:
    found.append(await client.expect(kind))
    scope.cancel()


# Tasks --------------------------------------------------------------------------------------------


async def test_nobody_settles_anothers_task_under_its_name(tmp_path: Path) -> None:
    """Who says HELLO with another's producerId is not the one who has the lease."""
    async with guarded(tmp_path, "ada", "eve") as (bus, _), came(bus, "ada") as ada:
        await ada.publish("/$task/q", [b"x"])
        await ada.expect(Ack)
        await ada.send(TaskPoll(1, "q", 1, 20.0, 0, "w"))
        tasks = await ada.expect(Tasks)
        stream = await bus.network.dial(bus.node.address)
        eve = GuardedClient(stream, ada.producer_id)
        await eve.send(Hello(PROTOCOL_VERSION, "eve", ada.producer_id, "", token_of("eve")))
        await eve.expect(Welcome)
        for worker in (0, ada.producer_id):
            done = TaskDone(
                1, tasks.owner, "q", "complete", tasks.numbers, tasks.fences, "", 0.0, worker
            )
            await eve.send(done)
            settled = await eve.expect(TaskSettled)
            assert settled.refused, "the lease is ada's"
        stream.close()
        done = TaskDone(1, tasks.owner, "q", "complete", tasks.numbers, tasks.fences, "", 0.0, 0)
        await ada.send(done)
        assert not (await ada.expect(TaskSettled)).refused


async def test_a_refused_act_on_dead_letters_is_reported(tmp_path: Path) -> None:
    acl = '[root.allow]\nany = ["/$sys/*"]\n'
    async with guarded(tmp_path, "eve", "root", acl=acl) as (bus, _):
        async with came(bus, "eve") as eve:
            question = json.dumps({"do": "purge", "queue": "q"}).encode()
            await eve.send(Request(1, 0, "/$sys/tasks", {}, question, False, 5.0))
            assert (await eve.expect(Reply)).code == "FORBIDDEN"
        refused = [each for each in await audited(bus) if each["kind"] == "access.refused"]
        assert [each["facts"]["who"] for each in refused] == ["eve"]


async def test_what_administrators_do_is_kept(tmp_path: Path) -> None:
    async with guarded(tmp_path, "root") as (bus, _):
        async with came(bus, "root") as root:
            question = json.dumps({"do": "purge", "queue": "q"}).encode()
            await root.send(Request(1, 0, "/$sys/tasks", {}, question, False, 5.0))
            await root.expect(Reply)
        acted = [each["facts"] for each in await audited(bus) if each["kind"] == "admin.acted"]
        assert acted == [{"who": "root", "act": "dlq purge", "target": "q"}]


# Cursors ------------------------------------------------------------------------------------------


async def test_a_cursor_in_a_log_that_one_may_not_have_is_one_in_no_log(tmp_path: Path) -> None:
    acl = '[ada.allow]\nany = ["/*"]\n[eve.allow]\nsubscribe = ["/open/*"]\n'
    papers = Papers(tmp_path / "papers", "ada", "eve", acl=acl)
    async with real_bus(tmp_path / "a", **papers.settings) as bus:
        async with came(bus, "ada") as ada:
            await ada.publish("/secret/a", [b"x"] * 5)
            await ada.expect(Ack)
        gaps: list[Gap] = []
        for topic in ("/secret/a", "/secret/b"):
            async with came(bus, "eve") as eve:
                await eve.subscribe("/*", None, {bus.broker_id: {topic: 3}})
                events = await bus.all_sent(eve)
                gaps += [each for each in events if isinstance(each, Gap)]
                assert not [each for each in events if isinstance(each, Delivered)]
        assert len(gaps) == 2
        assert gaps[0].reason == gaps[1].reason
        assert (gaps[0].first_no, gaps[0].last_no) == (gaps[1].first_no, gaps[1].last_no)


# Changes ------------------------------------------------------------------------------------------

BEFORE = """
[ada.allow]
any = ["/*"]
[eve.allow]
subscribe = ["/open/*", "/late/*"]
provide = ["/open/*"]
publish = ["/open/*"]
queue = ["/$task/q"]
[bob.allow]
subscribe = ["/open/*"]
[root.allow]
any = ["/*", "/$task/*", "/$sys/*"]
"""
AFTER = BEFORE.replace('subscribe = ["/open/*", "/late/*"]\nprovide = ["/open/*"]\n', "").replace(
    'queue = ["/$task/q"]\n', ""
)


async def test_who_has_lost_a_right_gets_nothing_more_though_it_stays(tmp_path: Path) -> None:
    """It is asked to come again. One that does not listen has no more of it for that."""
    async with (
        guarded(tmp_path, "ada", "eve", "bob", "root", acl=BEFORE) as (bus, papers),
        came(bus, "root") as root,
        came(bus, "eve") as eve,
        came(bus, "bob") as bob,
    ):
        await eve.subscribe("/*", number=1)
        await eve.subscribe("/open/x", number=2, queue="g")
        await eve.send(Provide(1, "/open/s", True), TaskPoll(1, "q", 5, 20.0, 0, "w"))
        await eve.barrier()
        await bob.subscribe("/open/*")
        await bob.subscribe("/open/x", number=2, queue="g")
        papers.acl.write_text(AFTER)
        await bus.node.reloading.reload()
        heard = len(eve.heard)
        for _ in range(30):
            await root.send(root.batch("/open/x", [b"of the group"], LIVE))
        await root.barrier()
        of_group = [
            each
            for each in await bus.all_sent(bob)
            if isinstance(each, Delivered) and each.chunk.subscription == 2
        ]
        assert len(of_group) == 30, "the other member has all of them"
        for flags in (LIVE, PERSISTENT):
            await root.send(root.batch("/open/x", [b"MARKED"], flags))
        await root.send(root.batch("/$task/q", [b"MARKED"]))
        await root.send(Request(1, 0, "/open/s", {}, b"MARKED", False, 0.5))
        await root.expect(Reply)
        await bus.committed()
        await eve.send(Subscribe(7, "/open/*", "earliest", {}, None, None, AMPLE))
        await eve.send(TaskPoll(2, "q", 5, 20.0, 0, "w"), Provide(2, "/open/t", True))
        events = await eve.ended()
        assert b"MARKED" not in eve.heard[heard:]
        assert [each for each in events if isinstance(each, Goodbye)]
        assert not [each for each in events if isinstance(each, (Subscribed, Tasks, Request))]
        got = [e for e in await bus.all_sent(bob) if isinstance(e, Delivered)]
        assert b"MARKED" in {p for each in got for p in each.payloads}, "bob is still there"
        await root.send(TaskPoll(1, "q", 1, 20.0, 0, "w"))
        assert (await root.expect(Tasks)).payloads == [b"MARKED"], "and nobody has the task"


async def test_who_has_lost_nothing_stays_and_who_is_taken_out_goes_at_once(tmp_path: Path) -> None:
    async with (
        guarded(tmp_path, "ada", "eve", "root") as (bus, papers),
        came(bus, "ada") as ada,
        came(bus, "eve") as eve,
    ):
        numbers = {ada.welcome.client_no, eve.welcome.client_no}
        await eve.subscribe("/*")
        await bus.node.reloading.reload()
        assert set(bus.node.sessions) == numbers, "nothing has changed"
        await bus.all_sent(eve)
        papers.users.write_text(
            "".join(
                f'[{each}]\ntokens = ["{digest_token(token_of(each))}"]\n'
                for each in ("ada", "root")
            )
        )
        await bus.node.reloading.reload()
        heard = len(eve.heard)
        await ada.publish("/a", [b"MARKED"], LIVE)
        events = await eve.ended()
        assert b"MARKED" not in eve.heard[heard:]
        assert [each.code for each in events if isinstance(each, Error)] == ["NOT_AUTHENTICATED"]
        assert await ada.barrier() == []
        assert set(bus.node.sessions) == {ada.welcome.client_no}
        with pytest.raises(Closed):
            async with came(bus, "eve"):
                pass


async def test_a_token_that_is_revoked_ends_those_who_came_with_it_alone(tmp_path: Path) -> None:
    async with guarded(tmp_path, "root") as (bus, papers):
        first, second = token_of("ada"), token_of("ada", 1)
        both = f'[ada]\ntokens = ["{digest_token(first)}", "{digest_token(second)}"]\n'
        papers.users.write_text(both)
        await bus.node.reloading.reload()
        clients: list[GuardedClient] = []
        for token in (first, second):
            client = GuardedClient(await bus.network.dial(bus.node.address), 1)
            await client.show("ada", token)
            clients.append(client)
        papers.users.write_text(f'[ada]\ntokens = ["{digest_token(second)}"]\n')
        await bus.node.reloading.reload()
        await clients[0].ended()
        assert await clients[1].barrier() == []
        for client in clients:
            client.stream.close()


@pytest.mark.parametrize("start", ["latest", "earliest"])
async def test_a_right_that_is_given_brings_a_topic_from_its_beginning(
    tmp_path: Path, start: str
) -> None:
    papers = Papers(tmp_path / "papers", "ada", "eve", acl=BEFORE)
    nodes = Nodes(tmp_path, papers)
    async with (
        nodes.running("a") as a,
        nodes.running("b") as b,
        came(a, "ada") as here,
        came(b, "ada", 2) as there,
        came(a, "eve") as eve,
    ):
        for bus, writer in ((a, here), (b, there)):
            for n in range(3):
                batch = writer.batch(f"/given/{bus.node.name}", [b"%d" % n], utc_us=n)
                await writer.send(batch)
            await writer.acked_any(3)
        await eve.subscribe("/*", start)
        number = eve.welcome.client_no
        assert await a.all_sent(eve) == []
        papers.acl.write_text(BEFORE.replace('"/late/*"]', '"/late/*", "/given/*"]'))
        await a.node.reloading.reload()
        await b.node.reloading.reload()
        for bus, writer in ((a, here), (b, there)):
            await writer.publish(f"/given/{bus.node.name}", [b"3"])
        journal = Journal()
        while journal.count() < 8:
            journal.take(await eve.receive())
        assert sorted(journal.payloads.values()) == [[b"0", b"1", b"2", b"3"]] * 2
        assert number in a.node.sessions, "and it was never asked to go"


async def test_a_broken_file_leaves_everything_as_it_was(tmp_path: Path) -> None:
    async with guarded(tmp_path, "ada", "root") as (bus, papers):
        async with came(bus, "ada") as ada:
            for path in (papers.users, papers.acl, papers.key):
                good = path.read_bytes()
                for text in (b"x = 'hunter22", b"\xff", b"x = 'hunter22'", b"[x"):
                    path.write_bytes(text)
                    await bus.node.reloading.reload()
                    assert await ada.barrier() == []
                    await ada.publish("/a", [b"x"])
                    await ada.expect(Ack)
                    stranger = GuardedClient(await bus.network.dial(bus.node.address), 1)
                    await stranger.send(Hello(PROTOCOL_VERSION, "stranger", 1))
                    assert (await stranger.refused()).code == "NOT_AUTHENTICATED"
                    stranger.stream.close()
                path.unlink()
                await bus.node.reloading.reload()
                assert await ada.barrier() == []
                path.write_bytes(good)
        async with came(bus, "root") as root:
            await root.send(Request(1, 0, "/$sys/events", {}, b"", False, 5.0))
            told = (await root.expect(Reply)).payload
            assert b"access.not-reloaded" in told
            assert b"hunter22" not in told
