"""Whether nodes of one process are linked to each other as they should be."""

from collections.abc import Callable, Iterator, Sequence

from busnode.node.peers import Peers
from busnode.wire.control import Interest


def not_meshed(nodes: Sequence[Peers], is_cut: Callable[[str, str], bool]) -> list[str]:
    """What is not yet so: each node has links to and from each other one that it is not cut from,
    has been told what that one's clients want, and has links to and from nobody else."""
    return [
        f"{one.me.name} {what}"
        for one in nodes
        for what in _missing_at(
            one,
            [
                other
                for other in nodes
                if other is not one and not is_cut(one.me.name, other.me.name)
            ],
        )
    ]


def _missing_at(node: Peers, others: Sequence[Peers]) -> Iterator[str]:
    for other in others:
        broker_id, name = other.me
        session = node.sessions.get(broker_id)
        wanted = sum(isinstance(each, Interest) for each in other.interests.everything())
        if broker_id not in node.links:
            yield f"has no link to {name}"
        if session is None:
            yield f"has no link from {name}"
        elif session.interests != wanted:
            yield f"was told {session.interests} of {wanted} interests of {name}"
    expected = {other.me.broker_id for other in others}
    for broker_id, link in node.links.items():
        if broker_id not in expected:
            yield f"still has a link to {link.name}"
    for broker_id, session in node.sessions.items():
        if broker_id not in expected:
            yield f"still has a link from {session.name}"
