"""Limits that keep memory bounded: sequences that wait, bodies on their way in, deadlines, and the end of the server."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Literal, Self

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

from queueproof.server.config import ServerConfig
from queueproof.server.errors import ApiError
from queueproof.server.protocol import ServedEngine

Reason = Literal["disconnect", "deadline", "shutdown"]


class Admission:
    """Counts the sequences that each engine has, and the bytes of the requests in hand."""

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self._sequences: dict[str, int] = {}
        self._bytes = 0

    @contextmanager
    def sequences(self, engine: ServedEngine, count: int) -> Iterator[None]:
        """Raises ApiError 429 if the engine has enough to do. One request alone is never refused."""
        have = self._sequences.get(engine.arithmetic, 0)
        limit = engine.max_num_seqs + self._config.max_waiting
        if have and have + count > limit:
            raise self._busy(f"{have} answers run or wait and {limit} may")
        self._sequences[engine.arithmetic] = have + count
        try:
            yield
        finally:
            self._sequences[engine.arithmetic] -= count

    @contextmanager
    def body(self) -> Iterator[Callable[[int], None]]:
        """Counts the bytes of a body: gives what is to be called with the size of each part that came.

        That raises ApiError 429 if all bodies together are too large. A body alone is never refused.
        """
        mine = 0

        def more(size: int) -> None:
            nonlocal mine
            if self._bytes > mine and self._bytes + size > self._config.max_bodies:
                raise self._busy("it has too many bytes of requests in hand")
            self._bytes += size
            mine += size

        try:
            yield more
        finally:
            self._bytes -= mine

    def _busy(self, why: str) -> ApiError:
        return try_later(self._config, "server_busy", f"the server is busy: {why}")


def try_later(config: ServerConfig, code: str, why: str) -> ApiError:
    """429, and when to come again."""
    seconds = max(1, math.ceil(config.retry_after))
    return ApiError(429, code, f"{why}; try again after {seconds} s", headers={"Retry-After": str(seconds)})


def due(config: ServerConfig, arrival: float) -> float | None:
    """When the deadline of a request passes, on the event loop's clock. arrival: of time.monotonic."""
    if config.deadline is None:
        return None
    return asyncio.get_running_loop().time() + config.deadline - (time.monotonic() - arrival)


class Shutdown:
    """The end of the server: new requests are refused, running ones have a grace period."""

    def __init__(self) -> None:
        self.begun = False
        self._watches: set[Watch] = set()

    def begin(self, grace: float) -> None:
        """Called on the event loop."""
        if not self.begun:
            self.begun = True
            asyncio.get_running_loop().call_later(grace, self._cut)

    def refuse_new(self) -> None:
        """Raises ApiError 503 once the server is ending."""
        if self.begun:
            raise ApiError(503, "shutting_down", "the server is shutting down; try again", headers={"Retry-After": "5"})

    def add(self, watch: Watch) -> None:
        self._watches.add(watch)

    def remove(self, watch: Watch) -> None:
        self._watches.discard(watch)

    def _cut(self) -> None:
        for watch in list(self._watches):
            watch.end("shutdown")


class Interrupted(Exception):
    """The work for a request was ended early."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason = reason

    def api_error(self, deadline: float | None) -> ApiError:
        if self.reason == "disconnect":
            return ApiError(499, "client_closed_request", "the client left before the answer was complete")
        if self.reason == "deadline":
            return ApiError(
                504, "deadline_exceeded", f"the answer was not complete after {deadline:g} s, the limit for one request"
            )
        return ApiError(503, "shutting_down", "the server shut down before the answer was complete; try again")


class Watch:
    """Ends what runs inside it when the client leaves, the deadline passes or the server stops: raises Interrupted.

    until: on the event loop's clock.
    """

    def __init__(self, receive: Receive, shutdown: Shutdown, until: float | None) -> None:
        self._receive, self._shutdown, self._until = receive, shutdown, until
        self.reason: Reason | None = None

    async def __aenter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None
        self._task, self._cancelling = task, task.cancelling()
        loop = asyncio.get_running_loop()
        self._timer = None if self._until is None else loop.call_at(self._until, self.end, "deadline")
        self._listener = loop.create_task(self._listen())
        self._shutdown.add(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._shutdown.remove(self)
        self._listener.cancel()
        if self._timer is not None:
            self._timer.cancel()
        if self.reason is not None and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise Interrupted(self.reason) from None

    def end(self, reason: Reason) -> None:
        """Once; later reasons do not count."""
        if self.reason is None:
            self.reason = reason
            self._task.cancel()

    async def _listen(self) -> None:
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self.end("disconnect")
                return


async def read_body(request: Request, admission: Admission, config: ServerConfig) -> bytes:
    """The body, if it has at most `config.max_body` bytes and comes in time. It counts until the exchange ends: its text may
    wait as long for an engine.

    Raises ApiError 413 as soon as it is known to be larger, 408 if it is late, 429; ClientDisconnect.
    """
    too_large = ApiError(
        413,
        "body_too_large",
        f"the body has more than {config.max_body} bytes, the limit of this server",
        headers={"Connection": "close"},  # the rest of it is not read
    )
    declared = request.headers.get("content-length")
    if declared is not None and declared.isdecimal() and int(declared) > config.max_body:
        raise too_large
    chunks: list[bytes] = []
    size = 0
    # What came is counted, not what was announced: who announces much and sends nothing takes no room from others.
    held: ExitStack = request.scope["queueproof"].held
    count = held.enter_context(admission.body())
    try:
        async with asyncio.timeout(config.body_timeout):
            while True:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect()
                chunk = message.get("body", b"")
                size += len(chunk)
                if size > config.max_body:
                    raise too_large
                count(len(chunk))
                chunks.append(chunk)
                if not message.get("more_body", False):
                    return b"".join(chunks)
    except TimeoutError:
        raise ApiError(
            408,
            "body_timeout",
            f"the body did not arrive within {config.body_timeout:g} s",
            headers={"Connection": "close"},
        ) from None
