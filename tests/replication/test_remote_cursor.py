"""A place in another node's log: what is taken, passed over and fetched."""

import pytest

from busnode.replication.remote_cursor import RemoteCursor


def test_who_stands_right_before_what_comes_takes_it() -> None:
    cursor = RemoteCursor(10, 10)
    assert not cursor.wants()
    assert cursor.arrived(11, 15, has_room=True)
    assert cursor.arrived(16, 16, has_room=True)
    assert (cursor.next_no, cursor.behind) == (17, 0)
    assert not cursor.wants()


def test_what_lies_beyond_the_next_number_is_fetched_and_not_taken() -> None:
    cursor = RemoteCursor(10, 10)
    assert not cursor.arrived(12, 15, has_room=True)
    assert cursor.next_no == 11
    assert cursor.wants()
    assert cursor.behind == 5


def test_what_lies_below_the_next_number_is_dropped_and_not_fetched() -> None:
    cursor = RemoteCursor(10, 10)
    assert not cursor.arrived(5, 10, has_room=True)
    assert not cursor.fetched(1, 9)
    assert cursor.next_no == 11
    assert not cursor.wants()


def test_a_batch_that_begins_below_is_taken_whole() -> None:
    cursor = RemoteCursor(10, 20)
    assert cursor.fetched(8, 12)
    assert cursor.next_no == 13


def test_what_comes_while_something_is_fetched_is_passed_over_and_then_fetched() -> None:
    cursor = RemoteCursor(0, 5)
    cursor.asked()
    assert not cursor.wants()
    assert not cursor.arrived(1, 2, has_room=True)
    assert not cursor.arrived(6, 7, has_room=True)
    assert cursor.fetched(1, 5)
    cursor.answered()
    assert cursor.wants()
    assert not cursor.arrived(8, 8, has_room=True)
    assert cursor.behind == 3


def test_what_comes_when_there_is_no_room_is_fetched_later() -> None:
    cursor = RemoteCursor(0, 0)
    assert not cursor.arrived(1, 3, has_room=False)
    assert cursor.wants()
    assert cursor.next_no == 1


def test_before_it_has_a_place_nothing_is_taken() -> None:
    cursor = RemoteCursor(0, 9, since_us=1000)
    assert cursor.wants()
    assert not cursor.arrived(10, 12, has_room=True)
    cursor.placed(7)
    assert cursor.is_placed
    assert (cursor.next_no, cursor.end_no) == (8, 12)
    assert cursor.wants()


def test_a_range_that_nobody_can_serve_is_passed_over_once() -> None:
    cursor = RemoteCursor(0, 9)
    cursor.skipped(4)
    assert cursor.next_no == 5
    cursor.skipped(2)
    assert cursor.next_no == 5


def test_when_the_longest_copy_is_gone_nothing_more_is_asked_of_a_shorter_one() -> None:
    cursor = RemoteCursor(0, 20)
    cursor.asked()
    assert cursor.fetched(1, 10)
    cursor.answered()
    cursor.ends(10)
    assert not cursor.wants()
    assert cursor.behind == 0


@pytest.mark.parametrize("by_itself", [True, False])
def test_what_was_heard_since_asking_outlives_an_answer_that_does_not_reach_as_far(
    by_itself: bool,
) -> None:
    """The one who answers has a short copy; meanwhile another one turns up with a longer one, and
    then falls silent: if that were forgotten, nothing would ever fetch the rest."""
    cursor = RemoteCursor(0, 20)
    cursor.asked()
    if by_itself:
        cursor.arrived(11, 15, has_room=True)
    else:
        cursor.reaches(15)
    assert cursor.fetched(1, 10)
    cursor.answered()
    cursor.ends(10)
    assert cursor.end_no == 15
    assert cursor.wants()
    cursor.asked()
    cursor.answered()
    cursor.ends(10)
    assert not cursor.wants()


def test_an_end_before_its_place_does_not_move_it() -> None:
    cursor = RemoteCursor(30, 40)
    cursor.asked()
    cursor.answered()
    cursor.ends(10)
    assert (cursor.next_no, cursor.end_no) == (31, 30)
