"""A bounded amount of something that publishers share: bytes that are buffered or un-acked."""

from collections import deque

from busnode.client.bell import Bell


class Claim:
    """Somebody who waits for room. Whoever made it leaves it, granted or not."""

    __slots__ = ("amount", "bell", "granted")

    def __init__(self, amount: int) -> None:
        self.amount = amount
        self.granted = False
        self.bell = Bell()


class Room:
    """Amounts are taken and given back; who finds no room waits in turn.

    One amount that is larger than the whole is let in when nothing else is, so that nothing waits
    for ever.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._claims: deque[Claim] = deque()

    def _fits(self, amount: int) -> bool:
        return self.used + amount <= self.limit or not self.used

    def take(self, amount: int) -> bool:
        """Take it now, unless there is no room or others wait for theirs."""
        if self._claims or not self._fits(amount):
            return False
        self.used += amount
        return True

    def give_back(self, amount: int) -> None:
        self.used -= amount
        assert self.used >= 0
        while self._claims and self._fits(self._claims[0].amount):
            claim = self._claims.popleft()
            self.used += claim.amount
            claim.granted = True
            claim.bell.ring()

    def claim(self, amount: int) -> Claim:
        """Wait in turn; the bell rings when it is granted, and may ring before."""
        claim = Claim(amount)
        self._claims.append(claim)
        return claim

    def withdraw(self, claim: Claim) -> None:
        """Whoever waited has given up."""
        if claim.granted:
            self.give_back(claim.amount)
        else:
            self._claims.remove(claim)
            self.give_back(0)  # a smaller one behind it may fit

    def ring(self) -> None:
        """Something else has changed: let everybody who waits look."""
        for claim in self._claims:
            claim.bell.ring()
