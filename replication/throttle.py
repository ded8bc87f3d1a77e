"""Sending no faster than so many bytes a second, for work that can wait."""

from typing import Final

BURST_S: Final = 0.05
"""What may go out at once after a pause, as time: smooth enough for others on the same wire."""

PIECES_A_BURST: Final = 8


class Throttle:
    """It knows no clock: it is told the time."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at = 0.0

    def piece_bytes(self, least: int, most: int) -> int:
        """How much goes out in one piece, so that it is even at this rate."""
        return min(most, max(least, round(self._bytes_per_s * BURST_S / PIECES_A_BURST)))

    def wait_s(self, now: float) -> float:
        """How long to wait before something may be sent; 0 when it may be now."""
        return max(0.0, self._free_at - now - BURST_S)

    def sent(self, size_bytes: int, now: float) -> None:
        self._free_at = max(self._free_at, now) + size_bytes / self._bytes_per_s
