"""When a copy that a disk has failed may be tried again."""

from busnode.replication.setbacks import FORGOTTEN_S, PAUSE_S_FIRST, PAUSE_S_MAX, Setbacks
from busnode.wire.ids import BrokerId

ONE, OTHER = BrokerId(bytes(16)), BrokerId(bytes(range(16)))


def test_who_never_failed_does_not_rest_and_has_nothing_to_try() -> None:
    setbacks = Setbacks()
    assert setbacks.left_s(ONE, 0.0) == 0
    assert not setbacks.may_try(ONE, 0.0)


def test_it_rests_and_is_then_tried_once() -> None:
    setbacks = Setbacks()
    setbacks.add(ONE, 100.0)
    assert setbacks.left_s(ONE, 101.0) == PAUSE_S_FIRST - 1
    assert not setbacks.may_try(ONE, 101.0)
    assert setbacks.left_s(OTHER, 101.0) == 0
    over = 100.0 + PAUSE_S_FIRST
    assert setbacks.left_s(ONE, over) == 0
    assert setbacks.may_try(ONE, over)
    assert setbacks.may_try(ONE, over), "each of its logs"
    setbacks.tried(ONE)
    assert not setbacks.may_try(ONE, over), "what fails now has failed anew"


def test_it_rests_longer_each_time_and_begins_anew_when_it_was_well_for_long() -> None:
    setbacks = Setbacks()
    now, rests = 0.0, list[float]()
    for _ in range(6):
        setbacks.add(ONE, now)
        setbacks.add(ONE, now)  # a second log of the same failure
        rests.append(setbacks.left_s(ONE, now))
        now += rests[-1]
        setbacks.tried(ONE)
    assert rests == [5.0, 10.0, 20.0, 40.0, PAUSE_S_MAX, PAUSE_S_MAX]
    now += FORGOTTEN_S
    setbacks.add(ONE, now)
    assert setbacks.left_s(ONE, now) == PAUSE_S_FIRST


def test_what_was_long_ago_is_not_kept() -> None:
    setbacks = Setbacks()
    for number in range(100):
        setbacks.add(BrokerId(number.to_bytes(16)), number * FORGOTTEN_S)
    assert len(setbacks) <= 2
