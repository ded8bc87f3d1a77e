"""Users: who is known by what, and files that make no sense. No secret is ever repeated."""

import tomllib
from typing import Any

import pytest

from busnode.security import users as users_module
from busnode.security.rules import BadRules
from busnode.security.users import (
    ANONYMOUS,
    NOBODYS_PASSWORD,
    TOKEN_BYTES,
    User,
    Users,
    check_identity,
    digest_token,
    hash_password,
    is_password,
    make_token,
    read_users,
)

SALT = bytes(range(16))
RANDOM = bytes(range(100, 100 + TOKEN_BYTES))


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users_module, "MEMORY_KIB", 8)
    monkeypatch.setattr(users_module, "ITERATIONS", 1)


def users(text: str) -> Users:
    return read_users(tomllib.loads(text))


# Tokens -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["billing", "a.b", "x@y.example", "A-1_2"])
def test_a_token_says_whose_it_is_and_only_it_is_one(name: str) -> None:
    token = make_token(name, RANDOM)
    found = users(f'["{name}"]\ntokens = ["{digest_token(token)}"]')
    assert token.startswith(f"{name}.")
    assert found.by_token(token) == name
    for wrong in (
        "",
        ".",
        name,
        f"{name}.",
        token[:-1],
        token + "A",
        token.swapcase(),
        f"other.{token.rpartition('.')[2]}",
        token.rpartition(".")[2],
        f"{name}.{digest_token(token)}",
        digest_token(token),
        f"{name}.\ud800",
        f"{token}\0",
        f" {token}",
    ):
        assert found.by_token(wrong) is None, wrong


def test_a_token_of_one_does_not_let_another_in() -> None:
    """Not even where the other's file of users has its hash by mistake."""
    token = make_token("ada", RANDOM)
    found = users(f'[bob]\ntokens = ["{digest_token(token)}"]')
    assert found.by_token(token) is None


def test_one_of_several_tokens_can_be_taken_out() -> None:
    one, two = make_token("ada", RANDOM), make_token("ada", bytes(TOKEN_BYTES))
    both = users(f'[ada]\ntokens = ["{digest_token(one)}", "{digest_token(two)}"]')
    assert both.by_token(one) == both.by_token(two) == "ada"
    left = users(f'[ada]\ntokens = ["{digest_token(two)}"]')
    assert left.by_token(one) is None
    assert left.by_token(two) == "ada"


# Passwords ----------------------------------------------------------------------------------------


def test_a_password_is_known_by_its_hash_alone() -> None:
    encoded = hash_password("correct horse", SALT)
    assert "correct" not in encoded
    assert is_password("correct horse", encoded)
    for wrong in ("", "correct horse ", "Correct horse", "correct horse\0", encoded, "\ud800"):
        assert not is_password(wrong, encoded)
    assert hash_password("correct horse", bytes(16)) != encoded


def test_who_is_unknown_takes_the_same_path_as_who_is_known() -> None:
    """An Argon2id hash of the same cost is computed: the time tells nothing."""
    found = Users({"ada": User(password=hash_password("x" * 8, SALT)), "bot": User(tokens=("t",))})
    assert found.password_of("nobody") == found.password_of("bot") == NOBODYS_PASSWORD
    assert found.password_of("ada") != NOBODYS_PASSWORD
    assert users(f"[x]\npassword = '{NOBODYS_PASSWORD}'").names() == ["x"], "it is a right one"
    for guess in ("", "nobody", "the password of nobody at all!!!", NOBODYS_PASSWORD):
        assert not is_password(guess, NOBODYS_PASSWORD)


def test_the_password_of_nobody_costs_what_a_new_one_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    real = hash_password("some password", SALT)
    assert real.split("$")[:4] == NOBODYS_PASSWORD.split("$")[:4]
    assert [len(each) for each in real.split("$")] == [
        len(each) for each in NOBODYS_PASSWORD.split("$")
    ]


# Names --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["", "*", ANONYMOUS, "a b", "a:b", "a/b", "../x", ".x", "a\n", "a\0", "é", "x" * 64, "-x", "а"],
)
def test_some_names_cannot_be_users(name: str) -> None:
    with pytest.raises(BadRules):
        check_identity(name)
    with pytest.raises(BadRules):
        read_users({name: {"certificate": True}})


def test_names_of_all_users_are_sorted() -> None:
    found = users("[b]\ncertificate = true\n[a]\ncertificate = true")
    assert found.names() == ["a", "b"]
    assert len(found) == 2
    assert "a" in found
    assert "c" not in found
    assert found.get("c") is None


# Files --------------------------------------------------------------------------------------------

SECRET = "hunter2-hunter2"

BAD: dict[str, tuple[str, str]] = {
    "no table": (f"ada = '{SECRET}'", "[ada] is no table"),
    "an unknown field": (f"[ada]\nsecret = '{SECRET}'", "[ada] secret is unknown"),
    "a password in plain": (f"[ada]\npassword = '{SECRET}'", "[ada] password"),
    "a password of another kind": (
        f"[ada]\npassword = '$argon2i$v=19$m=8,t=1,p=1$c2FsdHNhbHRzYWx0$ {SECRET}'",
        "[ada] password",
    ),
    "a password that takes all memory": (
        "[ada]\npassword = '" + NOBODYS_PASSWORD.replace("m=19456", "m=9999999") + "'",
        "[ada] password",
    ),
    "a token in plain": (f"[ada]\ntokens = ['ada.{SECRET}']", "[ada] tokens"),
    "tokens that are no list": (f"[ada]\ntokens = '{SECRET}'", "[ada] tokens"),
    "a certificate that is a text": (f"[ada]\ncertificate = '{SECRET}'", "[ada] certificate"),
    "no way in": ("[ada]\ntokens = []", "[ada] has no way to come in"),
    "nothing": ("[ada]", "[ada] has no way to come in"),
}


@pytest.mark.parametrize(("text", "place"), BAD.values(), ids=list(BAD))
def test_a_file_that_makes_no_sense_is_refused_without_a_secret(text: str, place: str) -> None:
    with pytest.raises(BadRules) as raised:
        users(text)
    assert place in raised.value.text
    assert SECRET not in repr(raised.value)
    assert SECRET not in str(raised.value)


def test_an_encoded_password_that_argon2_cannot_take_is_refused_when_the_file_is_read() -> None:
    """Else everybody who tries it would make the node fail."""
    head = "$argon2id$v=19$"
    for row in (
        f"{head}m=0,t=0,p=0$c2FsdHNhbHRzYWx0$" + "A" * 43,
        f"{head}m=8,t=0,p=1$c2FsdHNhbHRzYWx0$" + "A" * 43,
        f"{head}m=19456,t=2,p=0$c2FsdHNhbHRzYWx0$" + "A" * 43,
        f"{head}m=1,t=1,p=9$c2FsdHNhbHRzYWx0$" + "A" * 43,
    ):
        with pytest.raises(BadRules):
            read_users({"ada": {"password": row}})


@pytest.mark.parametrize(
    "row",
    [
        "$argon2id$v=19$m=8,t=1,p=1$c2FsdHNhbHRz$" + "A" * 43,
        "$argon2id$v=19$m=8,t=1,p=1$c2FsdHNhbHRzY$" + "A" * 43,
        "$argon2id$v=19$m=8,t=1,p=1$c2FsdHNhbHRzYWx0$" + "A" * 22,
        "$argon2id$v=19$m=8,t=1,p=1$c2FsdHNhbHRzYWx0$" + "A" * 41,
    ],
)
def test_whatever_a_file_may_hold_verifies_or_does_not_and_never_fails(row: str) -> None:
    try:
        read_users({"ada": {"password": row}})
    except BadRules:
        return
    assert not is_password("whatever", row)


def test_a_user_that_is_printed_shows_no_secret() -> None:
    hashed = hash_password("some password", SALT)
    row: dict[str, Any] = {"password": hashed, "tokens": [digest_token("x")]}
    found = read_users({"ada": row}).get("ada")
    for text in (repr(found), str(found), f"{found}"):
        assert hashed not in text
        assert digest_token("x") not in text
