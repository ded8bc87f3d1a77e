"""A throttle keeps to its rate over time, whatever the pieces are."""

from hypothesis import given
from hypothesis import strategies as st

from busnode.replication.throttle import BURST_S, Throttle


@given(st.lists(st.integers(1, 300_000), min_size=1, max_size=200))
def test_over_any_time_no_more_goes_out_than_the_rate_and_one_burst(sizes: list[int]) -> None:
    throttle = Throttle(1_000_000)
    now = 0.0
    total = 0
    for size in sizes:
        now += throttle.wait_s(now)
        assert throttle.wait_s(now) < 1e-9
        throttle.sent(size, now)
        total += size
        assert total <= 1_000_000 * (now + BURST_S) + size + 1


def test_a_pause_is_not_made_up_for() -> None:
    throttle = Throttle(1000)
    throttle.sent(1000, 100.0)
    assert 0.9 < throttle.wait_s(100.0) < 1.0
    assert throttle.wait_s(200.0) == 0.0
    throttle.sent(1000, 200.0)
    assert throttle.wait_s(200.0) > 0.9


def test_pieces_are_as_large_as_the_rate_lets_them_be_even() -> None:
    assert Throttle(1_000_000).piece_bytes(128_000, 1_000_000) == 128_000
    assert Throttle(64_000_000).piece_bytes(128_000, 1_000_000) == 400_000
    assert Throttle(1_000_000_000).piece_bytes(128_000, 1_000_000) == 1_000_000
