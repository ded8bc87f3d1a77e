"""The client library: one core for trio and asyncio, and a blocking façade over it."""

from busnode.client.bus import Bus, BusStatistics, connect
from busnode.client.cursor_store import CursorStore, FileCursorStore, MemoryCursorStore
from busnode.client.gaps import Gap
from busnode.client.messages import Message, MessageBatch
from busnode.client.poll import Poll, PollMany
from busnode.client.positions import Position
from busnode.client.providers import Provider, Request
from busnode.client.publisher import NotAcked, Publisher
from busnode.client.queue import Queue
from busnode.client.receipts import Receipt, ReceiptRange, Receipts
from busnode.client.reply import Reply
from busnode.client.requests import Replies
from busnode.client.service import Service
from busnode.client.service_letters import Pending, ServiceCall, ServiceReply
from busnode.client.settlement import NotSettled
from busnode.client.subscription import Subscription, SubscriptionStatistics
from busnode.client.task import Reject, Task, TaskReceipt
from busnode.client.task_admin import DeadLetter, DeadLetters, QueueStatus
from busnode.client.task_event import Attempt, TaskEvent

__all__ = [
    "Attempt",
    "Bus",
    "BusStatistics",
    "CursorStore",
    "DeadLetter",
    "DeadLetters",
    "FileCursorStore",
    "Gap",
    "MemoryCursorStore",
    "Message",
    "MessageBatch",
    "NotAcked",
    "NotSettled",
    "Pending",
    "Poll",
    "PollMany",
    "Position",
    "Provider",
    "Publisher",
    "Queue",
    "QueueStatus",
    "Receipt",
    "ReceiptRange",
    "Receipts",
    "Reject",
    "Replies",
    "Reply",
    "Request",
    "Service",
    "ServiceCall",
    "ServiceReply",
    "Subscription",
    "SubscriptionStatistics",
    "Task",
    "TaskEvent",
    "TaskReceipt",
    "connect",
]
