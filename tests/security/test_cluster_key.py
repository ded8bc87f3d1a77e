"""The cluster key: what shows that a node has it, and what does not."""

import itertools
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busnode.security.cluster_key import (
    KEY_BYTES,
    KEY_ID_BYTES,
    KEYS_MAX,
    NONCE_BYTES,
    PREFIX,
    ClusterKey,
    Transcript,
    make_key,
    read_keys,
)
from busnode.security.rules import BadRules
from busnode.wire.ids import BrokerId
from busnode.wire.sessions import Side

KEY = ClusterKey(b"k" * KEY_BYTES)
ONE, TWO = BrokerId(b"1" * 16), BrokerId(b"2" * 16)
SAID = Transcript(1, "prod", ONE, TWO, b"d" * NONCE_BYTES, b"l" * NONCE_BYTES)

CHANGES: dict[str, list[Any]] = {
    "protocol": [0, 2],
    "cluster_id": ["", "prod2", "pro", "Prod"],
    "dialler": [TWO, BrokerId(bytes(16))],
    "listener": [ONE, BrokerId(bytes(16))],
    "dialler_nonce": [b"l" * NONCE_BYTES, b"d" * (NONCE_BYTES - 1) + b"e", b""],
    "listener_nonce": [b"d" * NONCE_BYTES, b"l" * (NONCE_BYTES - 1) + b"m", b""],
}


@pytest.mark.parametrize("side", Side)
def test_a_proof_is_one_for_what_was_said_alone(side: Side) -> None:
    proof = SAID.prove(KEY, side)
    assert SAID.is_proof(KEY, side, proof)
    assert set(CHANGES) == set(Transcript._fields), "each field is changed"
    for field, values in CHANGES.items():
        for value in values:
            other = SAID._replace(**{field: value})
            assert other != SAID
            assert not other.is_proof(KEY, side, proof), field


def test_what_one_side_has_shown_is_of_no_use_for_the_other() -> None:
    for one, other in itertools.permutations(Side):
        assert not SAID.is_proof(KEY, other, SAID.prove(KEY, one))


def test_a_proof_sent_back_in_a_conversation_the_other_way_round_is_none() -> None:
    back = Transcript(
        SAID.protocol, SAID.cluster_id, SAID.listener, SAID.dialler,
        SAID.listener_nonce, SAID.dialler_nonce,
    )  # fmt: skip
    for one, other in itertools.product(Side, repeat=2):
        assert not back.is_proof(KEY, other, SAID.prove(KEY, one))


@given(st.binary(max_size=64))
def test_nothing_else_is_a_proof(guess: bytes) -> None:
    for side in Side:
        assert SAID.is_proof(KEY, side, guess) == (guess == SAID.prove(KEY, side))


@given(st.integers(0, 31), st.integers(0, 7))
def test_a_flipped_bit_of_key_or_proof_is_seen(place: int, bit: int) -> None:
    def flipped(data: bytes) -> bytes:
        return bytes(b ^ (1 << bit if n == place else 0) for n, b in enumerate(data))

    proof = SAID.prove(KEY, Side.DIALLER)
    assert not SAID.is_proof(KEY, Side.DIALLER, flipped(proof))
    assert not SAID.is_proof(ClusterKey(flipped(KEY.secret)), Side.DIALLER, proof)


@given(st.tuples(st.text(max_size=3), st.binary(max_size=3), st.binary(max_size=3)))
def test_where_one_field_ends_and_the_next_begins_is_part_of_it(
    parts: tuple[str, bytes, bytes],
) -> None:
    cluster_id, first, second = parts
    one = SAID._replace(cluster_id=cluster_id, dialler_nonce=first + b"x", listener_nonce=second)
    other = SAID._replace(cluster_id=cluster_id, dialler_nonce=first, listener_nonce=b"x" + second)
    assert not other.is_proof(KEY, Side.DIALLER, one.prove(KEY, Side.DIALLER))


# Files --------------------------------------------------------------------------------------------


def test_a_key_comes_back_from_its_file() -> None:
    text = make_key(KEY.secret)
    assert read_keys(text) == read_keys(f"# ours\n\n  \n{text}\n") == [KEY]


def test_a_file_may_have_several_and_the_first_is_in_use() -> None:
    secrets = [bytes([n]) * KEY_BYTES for n in range(KEYS_MAX)]
    text = "\n".join(map(make_key, secrets))
    assert [key.secret for key in read_keys(text)] == secrets
    with pytest.raises(BadRules, match=f"{KEYS_MAX + 1} cluster keys"):
        read_keys(f"{text}\n{make_key(b'x' * KEY_BYTES)}")


@dataclass
class Bad:
    text: str
    line: int


GOOD = make_key(b"secret-secret-secret-secret-secr")
BODY = GOOD.removeprefix(PREFIX)


@pytest.mark.parametrize(
    "bad",
    [
        Bad(BODY, 1),
        Bad(f"{GOOD}\n{GOOD[:-4]}", 2),
        Bad(f"{GOOD}A", 1),
        Bad(f"{GOOD}\n\n# x\n{GOOD} {GOOD}", 4),
        Bad(GOOD.upper(), 1),
        Bad(f"{PREFIX}{BODY[:-1]}=", 1),
        Bad(f"{PREFIX}", 1),
        Bad(f"x{GOOD}", 1),
        Bad(f"{PREFIX}{BODY[:20]}é{BODY[21:]}", 1),
    ],
)
def test_a_line_that_is_no_key_is_named_and_not_repeated(bad: Bad) -> None:
    with pytest.raises(BadRules) as raised:
        read_keys(bad.text)
    assert f"line {bad.line} " in raised.value.text
    assert BODY[:8] not in raised.value.text


def test_a_file_without_a_key_is_refused() -> None:
    for text in ("", "\n", "# nothing\n"):
        with pytest.raises(BadRules, match="0 cluster keys"):
            read_keys(text)


def test_a_key_that_is_printed_shows_no_secret() -> None:
    key = read_keys(GOOD)[0]
    assert len(key.key_id) == KEY_ID_BYTES
    for text in (repr(key), str(key), f"{key}", repr([key])):
        assert BODY[:8] not in text
        assert "secret-" not in text
        assert key.key_id.hex() in text
    assert key.key_id not in key.secret


def test_key_ids_tell_keys_apart() -> None:
    ids = {ClusterKey(bytes([n]) * KEY_BYTES).key_id for n in range(256)}
    assert len(ids) == 256
