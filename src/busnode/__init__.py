"""Busnode, a clustered message bus: what was acknowledged is on two disks.

Names are loaded when they are first used, so that `import busnode` costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from busnode.client import (
        Attempt,
        Bus,
        CursorStore,
        DeadLetter,
        FileCursorStore,
        Gap,
        MemoryCursorStore,
        Message,
        MessageBatch,
        NotSettled,
        Pending,
        Position,
        Publisher,
        Queue,
        QueueStatus,
        Receipt,
        Receipts,
        Reject,
        Reply,
        Request,
        Service,
        ServiceCall,
        ServiceReply,
        Subscription,
        Task,
        TaskEvent,
        TaskReceipt,
        connect,
    )
    from busnode.node.embedding import Node
    from busnode.wire.errors import (
        BadPattern,
        BadTask,
        BadTopic,
        BatchTooLarge,
        BusnodeError,
        Disconnected,
        Draining,
        Forbidden,
        LeaseExpired,
        LimitReached,
        NoProvider,
        NotMirrored,
        ProtocolError,
        Refused,
        RequestFailed,
        StorageError,
        TimedOut,
        TlsFailed,
        Unavailable,
        UnknownQueue,
    )

__version__ = "0.1.0"

__all__ = [
    "Attempt",
    "BadPattern",
    "BadTask",
    "BadTopic",
    "BatchTooLarge",
    "Bus",
    "BusnodeError",
    "CursorStore",
    "DeadLetter",
    "Disconnected",
    "Draining",
    "FileCursorStore",
    "Forbidden",
    "Gap",
    "LeaseExpired",
    "LimitReached",
    "MemoryCursorStore",
    "Message",
    "MessageBatch",
    "NoProvider",
    "Node",
    "NotMirrored",
    "NotSettled",
    "Pending",
    "Position",
    "ProtocolError",
    "Publisher",
    "Queue",
    "QueueStatus",
    "Receipt",
    "Receipts",
    "Refused",
    "Reject",
    "Reply",
    "Request",
    "RequestFailed",
    "Service",
    "ServiceCall",
    "ServiceReply",
    "StorageError",
    "Subscription",
    "Task",
    "TaskEvent",
    "TaskReceipt",
    "TimedOut",
    "TlsFailed",
    "Unavailable",
    "UnknownQueue",
    "__version__",
    "connect",
]

_CLIENT = {
    "Attempt",
    "Bus",
    "CursorStore",
    "DeadLetter",
    "FileCursorStore",
    "Gap",
    "MemoryCursorStore",
    "Message",
    "MessageBatch",
    "NotSettled",
    "Pending",
    "Position",
    "Publisher",
    "Queue",
    "QueueStatus",
    "Receipt",
    "Receipts",
    "Reject",
    "Reply",
    "Request",
    "Service",
    "ServiceCall",
    "ServiceReply",
    "Subscription",
    "Task",
    "TaskEvent",
    "TaskReceipt",
    "connect",
}
_MODULES = {"blocking", "client", "pipeline", "testing"}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"busnode.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'busnode' has no attribute {name!r}")
    if name in _CLIENT:
        home = "busnode.client"
    elif name == "Node":
        home = "busnode.node.embedding"
    else:
        home = "busnode.wire.errors"
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES})
