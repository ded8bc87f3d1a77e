"""How two nodes greet with a cluster key: who is believed, and what is said before that."""

from dataclasses import replace

import pytest

from busnode.node.peer_greeting import (
    Greeting,
    make_challenge,
    make_greeting,
    make_nonce,
)
from busnode.security.cluster_key import KEY_BYTES, NONCE_BYTES, ClusterKey, Transcript
from busnode.testing.sim.entropy import SimEntropy
from busnode.wire.control import PeerChallenge, PeerHello, PeerProof, encode_control
from busnode.wire.errors import NotAuthenticated
from busnode.wire.ids import BrokerId
from busnode.wire.limits import HELLO_BYTES_MAX, NAME_BYTES_MAX, PROTOCOL_VERSION
from busnode.wire.sessions import Side

ENTROPY = SimEntropy("greeting")
KEY, OTHER = ClusterKey(b"k" * KEY_BYTES), ClusterKey(b"o" * KEY_BYTES)
ONE, TWO, THREE = (BrokerId(each * 16) for each in (b"1", b"2", b"3"))
HELLO = PeerHello(PROTOCOL_VERSION, "prod", ONE, "marked-node", ["marked:1"], ["marked:2"])


def greeting(*keys: ClusterKey, hello: PeerHello = HELLO) -> Greeting:
    return make_greeting(hello, list(keys), ENTROPY)


def challenge(first: PeerHello, *keys: ClusterKey, me: BrokerId = TWO) -> PeerChallenge:
    found = make_challenge(list(keys), first, me, "prod", ENTROPY)
    assert found is not None
    return found.message


def test_two_with_the_same_key_believe_each_other() -> None:
    ours = greeting(KEY)
    found = make_challenge([KEY], ours.first, TWO, "prod", ENTROPY)
    assert found is not None
    proof = ours.answer(found.message)
    assert found.answered(proof) == replace(HELLO, key_id=KEY.key_id, nonce=ours.nonce), (
        "then it says who it is"
    )
    ours.welcomed(was_challenged=True)


def test_two_without_a_key_ask_nothing() -> None:
    ours = greeting()
    assert ours.first == HELLO
    assert make_challenge([], ours.first, TWO, "prod", ENTROPY) is None
    ours.welcomed(was_challenged=False)


def test_before_the_other_has_shown_anything_nothing_but_a_nonce_is_said() -> None:
    first = greeting(KEY).first
    assert b"marked" not in encode_control(first)
    assert first == PeerHello(PROTOCOL_VERSION, "prod", ONE, "", [], [], KEY.key_id, first.nonce)
    assert len(first.nonce) == NONCE_BYTES
    assert KEY.secret not in encode_control(first)


def test_a_challenge_names_nothing_but_the_incarnation() -> None:
    found = challenge(greeting(KEY).first, KEY)
    assert (found.broker_id, len(found.nonce), len(found.proof)) == (TWO, NONCE_BYTES, 32)


@pytest.mark.parametrize(
    ("theirs", "ours", "why"),
    [
        ([], [KEY], "has shown none"),
        ([KEY], [], "this one has none"),
        ([OTHER], [KEY], "another cluster key"),
    ],
)
def test_who_listens_refuses_who_has_no_key_or_another(
    theirs: list[ClusterKey], ours: list[ClusterKey], why: str
) -> None:
    with pytest.raises(NotAuthenticated, match=why):
        make_challenge(ours, greeting(*theirs).first, TWO, "prod", ENTROPY)


@pytest.mark.parametrize("nonce", [b"", b"x", b"x" * (NONCE_BYTES - 1), b"x" * (NONCE_BYTES + 1)])
def test_a_nonce_of_another_size_is_none(nonce: bytes) -> None:
    with pytest.raises(NotAuthenticated):
        make_challenge([KEY], replace(greeting(KEY).first, nonce=nonce), TWO, "prod", ENTROPY)
    ours = greeting(KEY)
    said = Transcript(PROTOCOL_VERSION, "prod", ONE, TWO, ours.nonce, nonce)
    with pytest.raises(NotAuthenticated):
        ours.answer(PeerChallenge(TWO, nonce, said.prove(KEY, Side.LISTENER)))


def test_who_dials_refuses_who_has_another_key_or_shows_nothing() -> None:
    ours = greeting(KEY)
    named = replace(ours.first, key_id=OTHER.key_id)
    with pytest.raises(NotAuthenticated):
        ours.answer(challenge(named, OTHER))
    with pytest.raises(NotAuthenticated):
        ours.welcomed(was_challenged=False)
    with pytest.raises(NotAuthenticated):
        greeting().answer(challenge(ours.first, KEY))


def test_a_challenge_for_somebody_else_or_of_another_cluster_is_refused() -> None:
    ours = greeting(KEY)
    for other in (
        replace(ours.first, broker_id=THREE),
        replace(ours.first, nonce=make_nonce(ENTROPY)),
        replace(ours.first, protocol=PROTOCOL_VERSION + 1),
    ):
        with pytest.raises(NotAuthenticated):
            ours.answer(challenge(other, KEY))
    found = make_challenge([KEY], ours.first, TWO, "other", ENTROPY)
    assert found is not None
    with pytest.raises(NotAuthenticated):
        ours.answer(found.message)
    with pytest.raises(NotAuthenticated):
        ours.answer(replace(challenge(ours.first, KEY), broker_id=THREE))


def test_a_recorded_conversation_is_of_no_use() -> None:
    ours = greeting(KEY)
    first = make_challenge([KEY], ours.first, TWO, "prod", ENTROPY)
    assert first is not None
    proof = ours.answer(first.message)
    again = make_challenge([KEY], ours.first, TWO, "prod", ENTROPY)
    assert again is not None
    assert again.message.nonce != first.message.nonce
    with pytest.raises(NotAuthenticated):
        again.answered(proof)
    with pytest.raises(NotAuthenticated):
        greeting(KEY).answer(first.message)


def test_what_the_listener_has_shown_is_no_answer_of_the_dialler() -> None:
    found = make_challenge([KEY], greeting(KEY).first, TWO, "prod", ENTROPY)
    assert found is not None
    for proof in (found.message.proof, b"", bytes(32), found.message.proof[:31]):
        with pytest.raises(NotAuthenticated):
            found.answered(PeerProof(proof, "rogue", [], []))


def test_a_node_never_shows_itself_what_it_has() -> None:
    """Somebody between could have it dial and listen, and go on in its place: see test_rogue."""
    ours = greeting(KEY)
    found = make_challenge([KEY], ours.first, ONE, "prod", ENTROPY)
    assert found is not None
    assert ours.is_own(found.message)
    with pytest.raises(NotAuthenticated, match="itself"):
        ours.answer(found.message)
    said = found.transcript
    with pytest.raises(NotAuthenticated, match="itself"):
        found.answered(PeerProof(said.prove(KEY, Side.DIALLER), "rogue", [], []))
    assert not ours.is_own(challenge(ours.first, KEY)), "another node"
    assert not ours.is_own(replace(found.message, proof=bytes(32))), "who only says so"


def test_while_a_key_changes_nodes_with_the_old_and_the_new_one_meet() -> None:
    for dials, listens in (([KEY, OTHER], [OTHER, KEY]), ([OTHER, KEY], [KEY, OTHER])):
        ours = greeting(*dials)
        found = make_challenge(listens, ours.first, TWO, "prod", ENTROPY)
        assert found is not None
        assert found.answered(ours.answer(found.message)).node == HELLO.node


def test_all_of_it_fits_into_the_limit_before_authentication() -> None:
    addresses = [f"{'h' * 60}:65535"] * 4
    hello = PeerHello(
        PROTOCOL_VERSION, "c" * NAME_BYTES_MAX, ONE, "n" * NAME_BYTES_MAX, addresses, addresses
    )
    ours = greeting(KEY, hello=hello)
    found = make_challenge([KEY], ours.first, TWO, hello.cluster_id, ENTROPY)
    assert found is not None
    for message in (ours.first, found.message, ours.answer(found.message)):
        assert len(encode_control(message)) <= HELLO_BYTES_MAX


def test_nonces_are_fresh() -> None:
    assert len({make_nonce(ENTROPY) for _ in range(1000)}) == 1000
