"""`busnode.blocking.connect(…)`: the client for code without async."""

from busnode.client.blocking import (
    BlockingBus,
    BlockingProvider,
    BlockingPublisher,
    BlockingService,
    BlockingSubscription,
    connect,
)
from busnode.client.blocking_queue import BlockingQueue, BlockingTask

__all__ = [
    "BlockingBus",
    "BlockingProvider",
    "BlockingPublisher",
    "BlockingQueue",
    "BlockingService",
    "BlockingSubscription",
    "BlockingTask",
    "connect",
]
