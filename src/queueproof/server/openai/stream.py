"""Server-sent events: one answer, chunk by chunk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Protocol, TypeVar

from starlette.types import Scope, Send

from queueproof.server.openai.answers import DONE, error_event

T = TypeVar("T")

WIRE = "queueproof.wire"
"""Key of the scope under which a server of ours puts the `Wire` of an exchange."""

_FIRST_SIGN = 10.0  # seconds without a token until the client hears that it is waited for, and how often after
_LAST_WORDS = 2.0  # seconds for the error event of a stream whose client may read nothing
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # proxies of nginx's kind shall pass chunks on as they come
]


class Wire(Protocol):
    """The connection under an answer, past the layers of ASGI: they do nothing for the chunks of a stream but take time."""

    @property
    def chunked(self) -> bool:
        """Whether the body of the answer is sent in HTTP's chunks."""
        ...

    @property
    def full(self) -> bool:
        """Whether the client has to read before more may be written."""
        ...

    async def drain(self) -> None:
        """Until it is not full, or gone."""
        ...

    def write_chunk(self, data: bytes) -> None:
        """One chunk that is not empty; nothing once the client is gone."""
        ...

    def abort(self) -> None:
        """Drops the connection at once, whatever its reader has not read."""
        ...


class EventStream:
    """Begins with the first chunk: what goes wrong before it is still an answer with its own status."""

    def __init__(self, scope: Scope, send: Send, headers: Mapping[str, str]) -> None:
        self._send = send
        self._wire: Wire | None = scope.get(WIRE)
        self._headers = [*_HEADERS, *((k.lower().encode(), v.encode()) for k, v in headers.items())]
        self.started = False

    async def send(self, data: bytes) -> None:
        """Waits while the client reads too slowly."""
        if not self.started:
            self.started = True
            await self._send({"type": "http.response.start", "status": 200, "headers": self._headers})
        wire = self._wire
        if wire is not None and wire.chunked:
            if wire.full:
                await wire.drain()
            wire.write_chunk(data)
            return
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes) -> None:
        """The end of an answer that is complete."""
        await self._send({"type": "http.response.body", "body": data + DONE, "more_body": False})

    async def fail(self, body: dict[str, Any]) -> None:
        """The end of one that is not: an error event, without [DONE]. A client that does not read it is cut off."""
        try:
            async with asyncio.timeout(_LAST_WORDS):
                await self._send({"type": "http.response.body", "body": error_event(body), "more_body": False})
        except TimeoutError:
            if self._wire is not None:
                self._wire.abort()
                await asyncio.sleep(0)  # so that the protocol knows of it before the application returns

    async def first(self, outputs: AsyncGenerator[T, None]) -> T:
        """The first of the outputs. While it is awaited, comments tell the client and all proxies that all is well."""
        first = asyncio.ensure_future(anext(outputs))
        try:
            while not (await asyncio.wait({first}, timeout=_FIRST_SIGN))[0]:
                await self.send(b": waiting\n\n")
            return first.result()
        finally:
            if not first.done():
                first.cancel()
                await asyncio.wait({first})
