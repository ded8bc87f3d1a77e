"""Where each task of a queue is."""

import pytest

from busnode.tasks.places import Places


def places(extent: int) -> Places:
    found = Places(dead_keep_us=10**12)
    found.extent = extent
    return found


@pytest.mark.parametrize("count", [1, 1023, 1024, 5000])
def test_the_first_that_is_alive_stands_behind_all_that_are_dead_or_finished(count: int) -> None:
    found = places(2 * count)
    assert found.first_alive() == 1
    for number in range(1, count + 1):
        found.bury(number, 0)
    assert found.first_alive() == count + 1
    found.finished.add_run(count + 1, 2 * count)
    assert found.first_alive() is None
    found.extent += 1
    assert found.first_alive() == 2 * count + 1


def test_a_dead_letter_that_is_requeued_is_alive_again() -> None:
    found = places(3000)
    for number in range(1, 3001):
        found.bury(number, 0)
    assert found.first_alive() is None
    found.withdraw(1500)
    found.put(1500, 0, 1)
    assert found.first_alive() == 1500
    found.withdraw(1500)
    found.bury(1500, 0)
    assert found.first_alive() is None
