"""Numbers of what a sink publishes: the same again for the same, another for anything else."""

from busnode.pipeline.numbering import Numbering


def numbers(query: str, epoch: int, partition: int, contents: list[bytes]) -> list[tuple[int, int]]:
    numbering = Numbering(query, epoch, partition)
    return [(numbering.producer_id, numbering.next_seq(content)) for content in contents]


def test_the_same_task_has_the_same_numbers() -> None:
    assert numbers("q", 3, 1, [b"a", b"b"]) == numbers("q", 3, 1, [b"a", b"b"])


def test_any_other_task_has_others() -> None:
    tasks = [("q", 3, 1), ("q", 4, 1), ("q", 3, 2), ("r", 3, 1), ("q", 3 + 2**23, 1)]
    found = [pair for task in tasks for pair in numbers(*task, [b"a", b"a"])]
    assert len(set(found)) == len(found)


def test_other_content_in_the_same_place_has_another() -> None:
    assert numbers("q", 3, 1, [b"a"]) != numbers("q", 3, 1, [b"b"])


def test_numbers_rise_and_fit() -> None:
    numbering = Numbering("q", 2**23 - 1, 1)
    found: list[int] = []
    while not numbering.is_full:
        found.append(numbering.next_seq(b"%d" % len(found)))
    assert len(found) == 65_535
    assert found == sorted(found)
    assert 0 < found[0] < found[-1] < 2**63
