"""Who is chosen as a mirror: the same everywhere, spread over all, and no change without need."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from busnode.replication.mirror_choice import choose_mirrors, rendezvous
from busnode.wire.ids import BrokerId

broker_ids = st.binary(min_size=16, max_size=16).map(BrokerId)
members = st.lists(broker_ids, max_size=12, unique=True)


def broker(number: int) -> BrokerId:
    return BrokerId(number.to_bytes(16, "big"))


@given(broker_ids, members, st.randoms())
def test_the_order_does_not_depend_on_how_members_became_known(
    origin: BrokerId, known: list[BrokerId], random: object
) -> None:
    shuffled = list(known)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert rendezvous(origin, shuffled) == rendezvous(origin, known)
    assert sorted(rendezvous(origin, known)) == sorted(known)


@given(broker_ids, members, members)
def test_who_comes_or_goes_changes_nothing_between_the_others(
    origin: BrokerId, known: list[BrokerId], more: list[BrokerId]
) -> None:
    order = rendezvous(origin, {*known, *more})
    assert [each for each in order if each in known] == rendezvous(origin, known)


def test_the_order_is_fixed_for_all_versions() -> None:
    """Nodes of two versions must agree: who repairs a log depends on it."""
    order = rendezvous(broker(1), map(broker, range(2, 8)))
    assert [int.from_bytes(each, "big") for each in order] == [7, 5, 4, 3, 2, 6]


def test_the_load_of_many_origins_is_spread_over_all() -> None:
    nodes = [broker(7919 * number) for number in range(1, 11)]
    load: Counter[BrokerId] = Counter()
    for number in range(2000):
        load.update(rendezvous(broker(1 << 64 | number), nodes)[:1])
    assert set(load) == set(nodes)
    assert max(load.values()) < 2 * min(load.values())


def test_each_node_of_a_cluster_mirrors_some_other() -> None:
    """Nobody is his own mirror, since nobody has a link to himself; the rest is up to the hash."""
    nodes = [broker(7919 * number) for number in range(1, 21)]
    chosen = [choose_mirrors(o, [], [n for n in nodes if n != o], 1)[0] for o in nodes]
    assert len(set(chosen)) > len(nodes) // 3, "not all choose the same"


@given(broker_ids, members, st.integers(0, 5), st.data())
def test_whoever_is_chosen_stays_as_long_as_it_lives(
    origin: BrokerId, live: list[BrokerId], count: int, data: st.DataObject
) -> None:
    current = data.draw(st.lists(st.sampled_from(live), unique=True, max_size=count) if live
                        else st.just(list[BrokerId]()))  # fmt: skip
    chosen = choose_mirrors(origin, current, live, count)
    assert set(current) <= set(chosen)
    newcomers = [each for each in rendezvous(origin, live) if each not in current]
    assert chosen == current + newcomers[: count - len(current)]


@given(broker_ids, members, st.lists(broker_ids, max_size=4, unique=True), st.integers(0, 15))
def test_there_are_as_many_as_wanted_or_as_there_are_and_nobody_twice(
    origin: BrokerId, live: list[BrokerId], current: list[BrokerId], count: int
) -> None:
    chosen = choose_mirrors(origin, current, live, count)
    assert len(chosen) == len(set(chosen)) == min(count, len(live))
    assert set(chosen) <= set(live), "who is gone is no mirror"


def test_one_that_has_died_is_replaced_and_the_others_stay() -> None:
    nodes = list(map(broker, range(2, 10)))
    first, second, third, *_ = rendezvous(broker(1), nodes)
    live = [each for each in nodes if each != first]
    assert choose_mirrors(broker(1), [first, second], live, 2) == [second, third]
    # It comes back: who took its place keeps it, and need not be sent everything for nothing.
    assert choose_mirrors(broker(1), [second, third], nodes, 2) == [second, third]


def test_a_named_one_comes_before_all_others() -> None:
    nodes = list(map(broker, range(2, 10)))
    order = rendezvous(broker(1), nodes)
    named = order[-1]
    assert choose_mirrors(broker(1), [], nodes, 1, named) == [named]
    assert choose_mirrors(broker(1), order[:2], nodes, 2, named) == [named, order[0]]
    assert choose_mirrors(broker(1), [named], nodes, 2, named) == [named, order[0]]


def test_while_a_named_one_is_away_another_is_taken() -> None:
    nodes = list(map(broker, range(2, 5)))
    order = rendezvous(broker(1), nodes)
    assert choose_mirrors(broker(1), [], nodes, 1, broker(99)) == order[:1]


def test_with_none_wanted_or_none_there_nobody_is_chosen() -> None:
    assert choose_mirrors(broker(1), [], [], 2) == []
    assert choose_mirrors(broker(1), [broker(2)], [], 2) == []
    assert choose_mirrors(broker(1), [broker(2)], [broker(2)], 0) == []
