"""What a client shows: given, or from the environment, and never printed."""

from collections.abc import Mapping

import pytest

from busnode.client.credentials import PASSWORD, TOKEN, USER, Credentials, make_credentials
from busnode.wire.errors import Refused
from busnode.wire.producer_tag import TAG_SHIFT, tag_of

NOTHING: Mapping[str, str] = {}


def test_what_is_given_goes_before_the_environment() -> None:
    around = {USER: "env", PASSWORD: "env-password", TOKEN: "env.token"}
    assert make_credentials("ada", "pw", None, around) == Credentials("ada", "pw")
    assert make_credentials(None, None, "bot.x", around) == Credentials(token="bot.x")
    assert make_credentials("", "", "", around) == Credentials(), "who gives none wants none"


def test_the_environment_serves_who_gives_nothing() -> None:
    found = make_credentials(None, None, None, {USER: "ada", PASSWORD: "pw"})
    assert (found.identity, found.secret) == ("ada", "pw")
    found = make_credentials(None, None, None, {TOKEN: "a.b.secret"})
    assert (found.identity, found.user, found.secret) == ("a.b", "", "a.b.secret")
    assert make_credentials(None, None, None, NOTHING) == Credentials()


@pytest.mark.parametrize(
    ("user", "password", "token"),
    [
        ("ada", "hunter22", "ada.hunter22"),
        ("ada", None, None),
        (None, "hunter22", None),
        (None, None, "hunter22"),
        (None, None, ".hunter22"),
        (None, "hunter22", "ada.hunter22"),
    ],
)
def test_what_does_not_fit_is_refused_without_the_secret(
    user: str | None, password: str | None, token: str | None
) -> None:
    with pytest.raises(Refused) as raised:
        make_credentials(user, password, token, NOTHING)
    assert "hunter22" not in repr(raised.value)


def test_they_are_printed_without_the_secret() -> None:
    for found in (Credentials("ada", "hunter22"), Credentials(token="ada.hunter22")):
        for text in (repr(found), str(found), f"{found}", repr([found])):
            assert "hunter22" not in text
            assert "ada" in text


def test_a_producer_id_is_one_of_the_identity() -> None:
    drawn = 0x1234_5678_9ABC_DEF0
    assert Credentials().producer_id(drawn) == drawn
    for found in (Credentials("ada", "pw"), Credentials(token="ada.x")):
        assert found.producer_id(drawn) >> TAG_SHIFT == tag_of("ada")
