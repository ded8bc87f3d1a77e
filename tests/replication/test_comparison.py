"""Who compares with whom, and what comes of it."""

from itertools import combinations

from busnode.replication.comparison import Verdict, judge, partners
from busnode.wire.ids import BrokerId


def test_each_two_holders_compare_once() -> None:
    nodes = [BrokerId(bytes([number]) * 16) for number in (3, 1, 4, 2)]
    asked = [{me, other} for me in nodes for other in partners(me, nodes)]
    assert len(asked) == 6
    for pair in combinations(nodes, 2):
        assert set(pair) in asked


def test_only_two_good_copies_can_differ() -> None:
    assert judge(b"a", b"a") is Verdict.SAME
    assert judge(b"a", b"b") is Verdict.DIFFERENT
    for mine, other in ((b"", b"a"), (b"a", b""), (b"", b"")):
        assert judge(mine, other) is Verdict.LACKING
