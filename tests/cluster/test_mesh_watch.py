"""Which missing links are told."""

from busnode.cluster.mesh import MissingLink
from busnode.cluster.mesh_watch import LINKS_MAX, SETTLE_S, MeshWatch

ONE, TWO = MissingLink("a", "b"), MissingLink("b", "a")


def test_one_that_is_missing_for_a_moment_is_not_told() -> None:
    watch = MeshWatch()
    assert watch.look([ONE], 0.0) == ([], [])
    assert watch.look([ONE], SETTLE_S - 0.1) == ([], [])
    assert watch.look([], SETTLE_S) == ([], [])
    assert watch.look([ONE], SETTLE_S + 0.1) == ([], []), "it begins anew"


def test_one_that_stays_missing_is_told_once_and_that_it_is_back_too() -> None:
    watch = MeshWatch()
    watch.look([ONE], 0.0)
    watch.look([ONE, TWO], 1.0)
    assert watch.look([ONE, TWO], SETTLE_S) == ([ONE], [])
    assert watch.look([ONE, TWO], SETTLE_S + 1) == ([TWO], [])
    assert watch.look([ONE, TWO], SETTLE_S + 2) == ([], [])
    assert watch.look([TWO], SETTLE_S + 3) == ([], [ONE])
    assert watch.look([TWO], SETTLE_S + 4) == ([], [])


def test_no_more_are_watched_than_may_be() -> None:
    watch = MeshWatch()
    many = [MissingLink("a", str(number)) for number in range(2 * LINKS_MAX)]
    watch.look(many, 0.0)
    assert len(watch.look(many, SETTLE_S).missing) == LINKS_MAX
