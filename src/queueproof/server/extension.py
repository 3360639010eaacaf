"""Parts of the server beside the API (receipts, metrics, logs, traces, the page), and what they are told."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from starlette.routing import BaseRoute

from queueproof.contract.classes import DeterminismClass
from queueproof.server.protocol import Choice, Output, Params, ServedEngine

if TYPE_CHECKING:
    from queueproof.server.state import AppState

Outcome = Literal["ok", "error", "disconnect", "deadline", "shutdown"]


@dataclass(slots=True)
class GenerationRecord:
    """One request for answers, from its admission on. Times are of time.monotonic.

    request_id: of the HTTP exchange (X-Request-Id). response_id: `id` of the answer. engine_ids: one for each prompt, as in
    Load.batch. owner: SHA-256, hex, of the API key, None where keys are not asked for.
    scheduled: when the first of its prompts joined a batch. error: code of the error that ended it.
    """

    request_id: str
    response_id: str
    kind: Literal["chat", "completion"]
    class_: DeterminismClass
    arithmetic: str
    owner: str | None
    stream: bool
    n: int
    max_tokens: int
    arrival: float
    engine_ids: tuple[str, ...] = ()
    scheduled: float | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    first_token: float | None = None
    last_token: float | None = None
    finished: float | None = None
    finish_reasons: list[str] = field(default_factory=list)
    receipts: list[str] = field(default_factory=list)
    outcome: Outcome = "ok"
    error: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    """Headers of the request that traces are continued from: traceparent, tracestate."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One HTTP exchange that has ended. route: the path's pattern ("" if there is none). status: 0 if none was sent."""

    request_id: str
    method: str
    route: str
    status: int
    seconds: float
    client: str
    error: str | None


@dataclass(frozen=True, slots=True)
class FinishedAnswer:
    """One choice that has ended, with all that a receipt needs. index: of the choice in the response.

    created: seconds since 1970.
    """

    response_id: str
    index: int
    created: int
    owner: str | None
    class_: DeterminismClass
    engine: ServedEngine
    params: Params
    output: Output
    choice: Choice


class Extension:
    """Every method may be left as it is. They are called on the event loop, and must be quick and raise nothing."""

    public_paths: Collection[str] = ()
    """Paths of its routes that are open without an API key, since they hold no data."""

    def routes(self) -> Sequence[BaseRoute]:
        """Routes of its own. Endpoints find the server's parts through `state_of(request)`."""
        return ()

    def running(self, state: AppState) -> AbstractAsyncContextManager[None]:
        """Entered before the first request and left after the last."""
        return nullcontext()

    def started(self, record: GenerationRecord) -> None:
        """A request was admitted."""

    def tokens(self, record: GenerationRecord, count: int, before: float | None, now: float) -> None:
        """`count` tokens arrived at `now`, of all answers to one of its prompts; before: when that prompt's last ones did,
        None for its first."""

    def finished(self, record: GenerationRecord) -> None:
        """A request ended, in whatever way."""

    def exchange(self, exchange: Exchange) -> None:
        """An HTTP exchange ended."""

    def replayed(self, verdict: str, class_: DeterminismClass, own: bool) -> None:
        """A receipt was replayed: "same", "different" or "unknown". own: this server made it, so that it is no forgery."""


class Receipts(Extension):
    """Makes and keeps receipts."""

    async def keep(self, answer: FinishedAnswer) -> str | None:
        """The id of the receipt, which is safe on disk; None where no receipts are made."""
        raise NotImplementedError


class Extensions:
    """Tells all of them. Those that do not listen cost nothing: `tokens` is called for every step of every request."""

    def __init__(self, extensions: Sequence[Extension]) -> None:
        self.all = tuple(extensions)
        self._started = self._listening(Extension.started)
        self._tokens = self._listening(Extension.tokens)
        self._finished = self._listening(Extension.finished)
        self._exchange = self._listening(Extension.exchange)
        self._replayed = self._listening(Extension.replayed)

    def started(self, record: GenerationRecord) -> None:
        for tell in self._started:
            tell(record)

    def tokens(self, record: GenerationRecord, count: int, before: float | None, now: float) -> None:
        for tell in self._tokens:
            tell(record, count, before, now)

    def finished(self, record: GenerationRecord) -> None:
        for tell in self._finished:
            tell(record)

    def exchange(self, exchange: Exchange) -> None:
        for tell in self._exchange:
            tell(exchange)

    def replayed(self, verdict: str, class_: DeterminismClass, own: bool) -> None:
        for tell in self._replayed:
            tell(verdict, class_, own)

    def _listening(self, method: Callable[..., None]) -> list[Callable[..., None]]:
        name = method.__name__
        return [getattr(e, name) for e in self.all if getattr(type(e), name) is not method]
