"""The client library: one core for trio and asyncio, and a blocking façade over it."""

from busnode.client.bus import Bus, BusStatistics, connect
from busnode.client.cursor_store import CursorStore, FileCursorStore, MemoryCursorStore
from busnode.client.gaps import Gap
from busnode.client.messages import Message, MessageBatch
from busnode.client.positions import Position
from busnode.client.providers import Provider, Request
from busnode.client.publisher import NotAcked, Publisher
from busnode.client.receipts import Receipt, ReceiptRange, Receipts
from busnode.client.reply import Reply
from busnode.client.requests import Replies
from busnode.client.subscription import Subscription, SubscriptionStatistics

__all__ = [
    "Bus",
    "BusStatistics",
    "CursorStore",
    "FileCursorStore",
    "Gap",
    "MemoryCursorStore",
    "Message",
    "MessageBatch",
    "NotAcked",
    "Position",
    "Provider",
    "Publisher",
    "Receipt",
    "ReceiptRange",
    "Receipts",
    "Replies",
    "Reply",
    "Request",
    "Subscription",
    "SubscriptionStatistics",
    "connect",
]
