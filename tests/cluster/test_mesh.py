"""The mesh: every link that is missing has a name, and none that is there."""

from itertools import permutations

from hypothesis import given, settings
from hypothesis import strategies as st

from busnode.cluster.mesh import Member, Mesh, MissingLink
from busnode.wire.ids import BrokerId


def member(number: int, name: str | None = None) -> Member:
    return Member(BrokerId(bytes([number]) * 16), name or f"node-{number}")


def mesh_of(links: set[tuple[int, int]], nodes: range) -> list[MissingLink]:
    """What node 0 finds missing when these links are there, each from its dialler to another."""
    mesh = Mesh(member(0))
    linked = {who: [member(to) for to in nodes if (who, to) in links] for who in nodes}
    for who in nodes[1:]:
        mesh.report(member(who), linked[who])
    return mesh.missing(linked[0])


def test_a_node_alone_misses_nobody() -> None:
    assert Mesh(member(0)).missing([]) == []


def test_a_full_mesh_has_nothing_missing() -> None:
    nodes = range(6)
    assert mesh_of(set(permutations(nodes, 2)), nodes) == []


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_every_missing_link_is_named_once_and_no_other(data: st.DataObject) -> None:
    nodes = range(5)
    every = set(permutations(nodes, 2))
    missing = data.draw(st.sets(st.sampled_from(sorted(every))))
    found = mesh_of(every - missing, nodes)
    assert sorted(found) == sorted(MissingLink(f"node-{a}", f"node-{b}") for a, b in missing)


def test_a_node_that_only_others_see_is_missing_here() -> None:
    mesh = Mesh(member(0))
    mesh.report(member(1), [member(0), member(2)])
    assert mesh.missing([member(1)]) == [MissingLink("node-0", "node-2")]


def test_a_node_that_has_not_reported_yet_is_blamed_for_nothing() -> None:
    mesh = Mesh(member(0))
    mesh.report(member(1), [member(0), member(2)])
    assert mesh.missing([member(1), member(2)]) == []


def test_nodes_of_one_name_are_told_apart() -> None:
    mesh = Mesh(member(0))
    mesh.report(member(1, "twin"), [member(0)])
    mesh.report(member(2, "twin"), [member(0), member(1, "twin")])
    missing = mesh.missing([member(1, "twin"), member(2, "twin")])
    assert missing == [MissingLink("twin (01010101)", "twin (02020202)")]


def test_who_is_forgotten_is_neither_missed_nor_missing_anybody() -> None:
    mesh = Mesh(member(0))
    mesh.report(member(1), [member(0)])
    mesh.report(member(2), [member(0), member(1)])
    assert mesh.missing([member(1), member(2)]) == [MissingLink("node-1", "node-2")]
    mesh.forget(member(1).broker_id)
    mesh.report(member(2), [member(0)])
    assert mesh.missing([member(2)]) == []


def test_a_report_takes_the_place_of_the_one_before() -> None:
    mesh = Mesh(member(0))
    mesh.report(member(1), [member(0), member(2)])
    mesh.report(member(1), [member(0)])
    assert mesh.missing([member(1)]) == []
