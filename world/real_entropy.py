"""Real randomness, from the kernel."""

import os
import random

from busnode.wire.ids import BROKER_ID_BYTES, BrokerId


class RealEntropy:
    """What must be unique or hard to guess comes from the kernel; jitter is cheap."""

    def random(self) -> float:
        return random.random()

    def u64(self) -> int:
        return int.from_bytes(os.urandom(8), "little")

    def broker_id(self) -> BrokerId:
        return BrokerId(os.urandom(BROKER_ID_BYTES))
