"""What an audit needs of an endpoint: a client gives it, a test may too."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from queueproof.audit.ask import Answer, Ask, Cold, Prompt
from queueproof.contract.errors import ServerError


class Trouble(ServerError):
    """The endpoint did not answer a request as it should, after what retries were right. kind: one word to count by."""

    code = "endpoint"

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class BudgetSpent(Exception):
    """No request more may be sent, or none may be waited for any longer (late)."""

    def __init__(self, what: str, late: bool = False) -> None:
        super().__init__(what)
        self.late = late


class Counters(NamedTuple):
    """What a server says about itself. None where it does not. running, waiting: requests now; the rest since its start."""

    running: float | None = None
    waiting: float | None = None
    cache_hit_tokens: float | None = None
    cache_query_tokens: float | None = None
    preemptions: float | None = None
    prompt_tokens: float | None = None


class Endpoint(Protocol):
    """What a lab needs of a client."""

    @property
    def abilities(self) -> frozenset[str]:
        """Names, see client.abilities."""

    @property
    def cold_by(self) -> Cold | None: ...

    @property
    def block_size(self) -> int | None: ...

    async def ask(self, ask: Ask) -> Answer:
        """Raises Trouble, or BudgetSpent before anything is sent."""

    async def forget(self) -> bool:
        """Empties the prefix cache through a route, where there is one (Cold.RESET)."""

    async def counters(self) -> Counters | None:
        """None where there are none."""

    async def count(self, prompt: Prompt) -> int | None:
        """Tokens of a prompt, template included. None where it cannot be told."""
