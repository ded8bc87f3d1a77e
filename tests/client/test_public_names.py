"""What users import, and that it costs little."""

import subprocess
import sys

import pytest

import busnode
import busnode.blocking
import busnode.client
import busnode.testing


def test_the_public_names_are_these() -> None:
    assert sorted(busnode.__all__) == sorted(
        """
        Attempt BadPattern BadTask BadTopic BatchTooLarge Bus BusnodeError CursorStore
        DeadLetter Disconnected Draining FileCursorStore Forbidden Gap LeaseExpired
        LimitReached MemoryCursorStore Message MessageBatch NoProvider Node NotMirrored
        NotSettled Pending Position ProtocolError Publisher Queue QueueStatus Receipt
        Receipts Refused Reject Reply Request RequestFailed Service ServiceCall ServiceReply
        StorageError Subscription Task TaskEvent TaskReceipt TimedOut TlsFailed Unavailable
        UnknownQueue __version__ connect
        """.split()
    )


def test_every_name_can_be_had() -> None:
    for name in busnode.__all__:
        if name != "Node":  # it brings the whole node along: see tests/node
            assert getattr(busnode, name) is not None
    assert busnode.connect is busnode.client.connect
    for name in busnode.client.__all__:
        assert getattr(busnode.client, name) is not None
    assert set(busnode.__all__) <= set(dir(busnode))
    with pytest.raises(AttributeError):
        _ = busnode.nonsense


def test_those_for_tests_are_these() -> None:
    assert sorted(busnode.testing.__all__) == ["BusCluster", "ClusterNode"]
    for name in busnode.testing.__all__:
        assert getattr(busnode.testing, name) is not None


def test_importing_it_loads_nothing_else() -> None:
    loaded = subprocess.run(
        [sys.executable, "-c", "import busnode, sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert [name for name in loaded if name.split(".")[0] in ("anyio", "trio", "msgpack")] == []
    assert [name for name in loaded if name.startswith("busnode.")] == []
