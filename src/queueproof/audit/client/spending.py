"""What a budget still allows: counted before a request is sent, so that many at once cannot spend it twice."""

from __future__ import annotations

import asyncio

from queueproof.audit.budget import Budget
from queueproof.audit.endpoint import BudgetSpent

_GRACE, _GRACE_SHARE = 10.0, 0.1  # seconds, and of the budget: an answer under way at its end may be whole soon


class Spending:
    """Of one endpoint, from now on. Each try counts as a request; pages such as /metrics do not."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._clock = asyncio.get_running_loop().time
        self.began = self._clock()
        self.requests = self.tokens = 0
        self._held = 0  # tokens that requests under way may need

    def reserve(self, tokens: int) -> None:
        """Holds a request and so many tokens. Raises BudgetSpent."""
        budget = self._budget
        if budget.requests is not None and self.requests >= budget.requests:
            raise BudgetSpent(f"{budget.requests} requests")
        if budget.tokens is not None and self.tokens + self._held + tokens > budget.tokens:
            raise BudgetSpent(f"{budget.tokens} tokens")
        if not self.lasts(0.0):
            raise BudgetSpent(f"{budget.seconds:g} s")
        self.requests += 1
        self._held += tokens

    def settle(self, reserved: int, used: int) -> None:
        """A request has ended: what it used takes the place of what was held for it."""
        self._held -= reserved
        self.tokens += used

    @property
    def ends(self) -> float | None:
        """Until when an answer is waited for that was asked for in time, by the loop's clock. None: without end."""
        seconds = self._budget.seconds
        return None if seconds is None else self.began + seconds + min(_GRACE, _GRACE_SHARE * seconds)

    def lasts(self, seconds: float) -> bool:
        """Whether there is a request left, and time beyond that many seconds."""
        budget = self._budget
        if budget.requests is not None and self.requests >= budget.requests:
            return False
        return budget.seconds is None or self._clock() - self.began + seconds < budget.seconds
