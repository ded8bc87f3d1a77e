"""The conversations: what their tables allow, forbid and lead to.

What stands in the tables is printed in docs/protocol.md and nowhere else; here stand the rules that
every table keeps.
"""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busnode.wire.control import CONTROLS
from busnode.wire.errors import UnexpectedFrame
from busnode.wire.frames import FrameType as F
from busnode.wire.sessions import CLIENT_TABLE, PEER_TABLE, Session, Side, State, Table

D, L = Side.DIALLER, Side.LISTENER
WELCOMED_IN = {"client": {State.GREETED}, "peer": {State.GREETED, State.PROVEN}}
GREETINGS = {"client": (F.HELLO, F.WELCOME), "peer": (F.PEER_HELLO, F.PEER_WELCOME)}
TABLES = {"client": CLIENT_TABLE, "peer": PEER_TABLE}

each_table = pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
each_conversation = pytest.mark.parametrize("name", TABLES)


def session_in(table: Table, side: Side, state: State) -> Session:
    """A session that has come to a state by legal frames, the shortest way."""
    session = Session(table, side)
    for sender, kind in way_to(table, state):
        step(session, side, sender, kind)
    assert session.state is state
    return session


def step(session: Session, side: Side, sender: Side, kind: F) -> State:
    return session.sent(kind) if sender is side else session.received(kind)


def way_to(table: Table, goal: State) -> list[tuple[Side, F]]:
    ways: dict[State, list[tuple[Side, F]]] = {State.NEW: []}
    ahead = [State.NEW]
    for state in ahead:
        for frame, following in table[state].items():
            if following not in ways:
                ways[following] = [*ways[state], frame]
                ahead.append(following)
    return ways[goal]


# Completeness -------------------------------------------------------------------------------------


@each_table
def test_every_state_has_a_row_and_can_be_reached(table: Table) -> None:
    assert set(table) == set(State)
    for state in reached(table):
        way_to(table, state)


def reached(table: Table) -> list[State]:
    """All states of a conversation. Clients are not challenged: what they show is in the HELLO."""
    of_peers = (State.CHALLENGED, State.PROVEN)
    assert table is PEER_TABLE or all(not table[state] for state in of_peers)
    return [state for state in State if table is PEER_TABLE or state not in of_peers]


@each_table
@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize("state", State)
def test_every_frame_is_listed_or_unexpected(table: Table, side: Side, state: State) -> None:
    for sender, kind in product(Side, F):
        if state not in reached(table):
            continue
        session = session_in(table, side, state)
        following = table[state].get((sender, kind))
        if following is None:
            with pytest.raises(UnexpectedFrame, match=f"^UNEXPECTED_FRAME: {kind.name} from the "):
                step(session, side, sender, kind)
            assert session.state is state, "a frame that is refused changes nothing"
        else:
            assert step(session, side, sender, kind) is following
            assert session.state is following


def test_every_frame_type_is_sent_by_somebody_in_some_conversation() -> None:
    used = {kind for table in TABLES.values() for row in table.values() for _, kind in row}
    assert used == set(F) == set(CONTROLS) | {F.BATCH}


def test_a_table_cannot_be_changed() -> None:
    for table in TABLES.values():
        with pytest.raises(TypeError):
            table[State.NEW] = {}  # type: ignore[index]
        with pytest.raises(TypeError):
            table[State.NEW][(D, F.BATCH)] = State.OPEN  # type: ignore[index]


def test_the_text_of_the_error_says_what_was_expected() -> None:
    session = Session(CLIENT_TABLE, L)
    with pytest.raises(
        UnexpectedFrame, match="SUBSCRIBE from the dialler while the session is new; expected HELLO"
    ):
        session.received(F.SUBSCRIBE)
    closed = session_in(CLIENT_TABLE, L, State.CLOSED)
    with pytest.raises(UnexpectedFrame, match="closed; expected nothing more"):
        closed.received(F.PING)


# Rules of every conversation ----------------------------------------------------------------------


@each_conversation
def test_a_stranger_may_say_hello_and_nothing_else(name: str) -> None:
    table, (hello, welcome) = TABLES[name], GREETINGS[name]
    assert [frame for frame in table[State.NEW] if frame[0] is D] == [(D, hello)]
    assert [frame for frame in table[State.GREETED] if frame[0] is D] == []
    assert way_to(table, State.OPEN) == [(D, hello), (L, welcome)]


@each_conversation
def test_a_greeting_is_said_once(name: str) -> None:
    hello, welcome = GREETINGS[name]
    for state, row in TABLES[name].items():
        assert ((D, hello) in row) == (state is State.NEW)
        assert ((L, welcome) in row) == (state in WELCOMED_IN[name])
        assert (L, hello) not in row
        assert (D, welcome) not in row


def test_a_peer_shows_that_it_has_the_key_once_and_when_it_was_challenged() -> None:
    for state, row in PEER_TABLE.items():
        assert ((L, F.PEER_CHALLENGE) in row) == (state is State.GREETED)
        assert ((D, F.PEER_PROOF) in row) == (state is State.CHALLENGED)
        assert (D, F.PEER_CHALLENGE) not in row
        assert (L, F.PEER_PROOF) not in row


@each_table
def test_the_listener_can_refuse_before_it_has_welcomed(table: Table) -> None:
    for state in (State.NEW, State.GREETED):
        assert table[state][(L, F.ERROR)] is State.CLOSED


@each_table
def test_both_sides_ping_answer_complain_and_leave_in_an_open_session(table: Table) -> None:
    row = table[State.OPEN]
    for side, kind in product(Side, (F.PING, F.PONG, F.ERROR)):
        assert row[(side, kind)] is State.OPEN
    assert row[(D, F.GOODBYE)] is State.DIALLER_LEFT
    assert row[(L, F.GOODBYE)] is State.LISTENER_LEFT


@each_table
def test_only_a_goodbye_leads_out_of_an_open_session(table: Table) -> None:
    leading_out = {kind for (_, kind), state in table[State.OPEN].items() if state != State.OPEN}
    assert leading_out == {F.GOODBYE}


@each_table
def test_after_one_side_left_what_the_other_had_on_its_way_is_taken(table: Table) -> None:
    for gone, state in ((D, State.DIALLER_LEFT), (L, State.LISTENER_LEFT)):
        row = table[state]
        for (sender, kind), _ in table[State.OPEN].items():
            if sender is gone.other:
                expected = State.BOTH_LEFT if kind is F.GOODBYE else state
                assert row[(sender, kind)] is expected


@each_table
def test_nobody_says_goodbye_twice_and_only_answers_follow_the_second(table: Table) -> None:
    assert (D, F.GOODBYE) not in table[State.DIALLER_LEFT]
    assert (L, F.GOODBYE) not in table[State.LISTENER_LEFT]
    answers = {F.ACK, F.TASK_SETTLED} if table is CLIENT_TABLE else {F.MIRRORED}
    assert set(table[State.BOTH_LEFT]) == {(L, kind) for kind in answers | {F.ERROR, F.PONG}}
    assert table[State.CLOSED] == {}


@each_table
def test_a_session_never_goes_back(table: Table) -> None:
    order = {state: number for number, state in enumerate(State)}
    for state, row in table.items():
        for following in row.values():
            assert order[following] >= order[state]


# Both sides ---------------------------------------------------------------------------------------


@each_conversation
@given(data=st.data())
def test_both_sides_agree_as_long_as_frames_do_not_cross(name: str, data: st.DataObject) -> None:
    table = TABLES[name]
    dialler, listener = Session(table, D), Session(table, L)
    for _ in range(30):
        row = sorted(table[dialler.state], key=str)
        if not row:
            break
        sender, kind = data.draw(st.sampled_from(row))
        ours, theirs = (dialler, listener) if sender is D else (listener, dialler)
        assert ours.sent(kind) is theirs.received(kind)
        assert dialler.state is listener.state


@each_conversation
def test_frames_that_cross_a_goodbye_are_taken_until_the_other_goodbye(name: str) -> None:
    """Every mix of two frames, each sent before its sender has heard of the other."""
    table = TABLES[name]
    greeting = way_to(table, State.OPEN)
    for first, second in product(Side, Side):
        for kinds in product(*(of_side(table, side) for side in (first, second))):
            sessions = {side: Session(table, side) for side in Side}
            for sender, kind in greeting:
                sessions[sender].sent(kind)
                sessions[sender.other].received(kind)
            on_the_way: dict[Side, list[F]] = {D: [], L: []}
            for side, kind in zip((first, second), kinds, strict=True):
                if (side, kind) in table[sessions[side].state]:
                    sessions[side].sent(kind)
                    on_the_way[side].append(kind)
            for side, frames in on_the_way.items():
                for kind in frames:
                    sessions[side.other].received(kind)
            assert sessions[D].state is sessions[L].state


def of_side(table: Table, side: Side) -> list[F]:
    return [kind for sender, kind in table[State.OPEN] if sender is side]


def test_the_two_tables_share_no_greeting_so_a_client_never_becomes_a_peer() -> None:
    with pytest.raises(UnexpectedFrame):
        Session(PEER_TABLE, L).received(F.HELLO)
    with pytest.raises(UnexpectedFrame):
        Session(CLIENT_TABLE, L).received(F.PEER_HELLO)


def test_each_side_knows_the_other() -> None:
    assert D.other is L
    assert L.other is D
