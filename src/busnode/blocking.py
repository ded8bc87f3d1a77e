"""`busnode.blocking.connect(…)`: the client for code without async."""

from busnode.client.blocking import (
    BlockingBus,
    BlockingProvider,
    BlockingPublisher,
    BlockingSubscription,
    connect,
)

__all__ = [
    "BlockingBus",
    "BlockingProvider",
    "BlockingPublisher",
    "BlockingSubscription",
    "connect",
]
