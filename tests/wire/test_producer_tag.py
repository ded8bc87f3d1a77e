"""Whose a producerId is."""

from hypothesis import given
from hypothesis import strategies as st

from busnode.wire.fields import U64_MAX
from busnode.wire.producer_tag import TAG_SHIFT, tag_of, tagged

numbers = st.integers(0, U64_MAX)


@given(numbers, st.text(min_size=1, max_size=63))
def test_the_first_bits_are_the_identitys_and_the_others_stay(drawn: int, identity: str) -> None:
    found = tagged(drawn, identity)
    assert 0 <= found <= U64_MAX
    assert found >> TAG_SHIFT == tag_of(identity)
    rest = (1 << TAG_SHIFT) - 1
    assert found & rest == drawn & rest
    assert tagged(found, identity) == found, "whoever comes with its own keeps it"


@given(numbers)
def test_who_has_no_identity_keeps_its_own(drawn: int) -> None:
    assert tagged(drawn, "") == drawn


def test_a_tag_is_the_same_in_every_version() -> None:
    """Nodes of one cluster may be of different versions, and logs are read for years."""
    assert [tag_of(each) for each in ("ada", "billing", "anonymous")] == [
        0xFDEE, 0x0C95, 0x2F18,
    ]  # fmt: skip
