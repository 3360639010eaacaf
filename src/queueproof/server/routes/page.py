"""The live page: its files, and what it is told.

The files hold no data and are open to all; everything under /live/ needs the API key, as the API does. The page asks with
the key that its user typed; no cookie is set or read.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, suppress
from importlib import resources
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from queueproof.contract import codec
from queueproof.contract.axes import Axis
from queueproof.contract.errors import UsageError
from queueproof.server.errors import ApiError
from queueproof.server.extension import Extension, GenerationRecord
from queueproof.server.jsonio import dumps
from queueproof.server.protocol import ServedEngine
from queueproof.server.state import AppState, state_of
from queueproof.server.timeline import Timeline

TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
HEADERS = {
    # Nothing from elsewhere, no inline script or style, nobody's frame.
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-cache",  # ask each time whether it changed: a new version of the server has a new page
}


class PageExtension(Extension):
    """Serves the page and keeps the timeline that it draws."""

    def __init__(self, engines: Sequence[ServedEngine]) -> None:
        self.timeline = Timeline(engines)
        self._files = _read_files()
        self.public_paths = frozenset({"/", *(f"/page/{name}" for name in self._files)})
        self._chat = all(_has_chat_template(engine) for engine in engines)

    def routes(self) -> Sequence[BaseRoute]:
        return (
            Route("/", self._index, methods=["GET"]),
            Route("/page/{name}", self._file, methods=["GET"]),
            Route("/live/state", self._state, methods=["GET"]),
            Route("/live/events", self._events, methods=["GET"]),
        )

    def running(self, state: AppState) -> AbstractAsyncContextManager[None]:
        return self._sampling()

    @asynccontextmanager
    async def _sampling(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.timeline.run(), name="queueproof-timeline")
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    def started(self, record: GenerationRecord) -> None:
        self.timeline.started(record)

    def tokens(self, record: GenerationRecord, count: int, before: float | None, now: float) -> None:
        self.timeline.tokens(record, count, before, now)

    def finished(self, record: GenerationRecord) -> None:
        self.timeline.finished(record)

    async def _index(self, request: Request) -> Response:
        return self._answer(request, "index.html")

    async def _file(self, request: Request) -> Response:
        return self._answer(request, request.path_params["name"])

    def _answer(self, request: Request, name: str) -> Response:
        found = self._files.get(name)
        if found is None:
            raise ApiError(404, "not_found", f"the page has no file {name!r}")
        content, kind, tag = found
        headers = HEADERS | {"etag": tag}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=kind, headers=headers)

    async def _state(self, request: Request) -> Response:
        """What serves here, what it promises, and the timeline so far."""
        about = dumps(self._about(state_of(request)))
        text = f'{{"about":{about},"timeline":{self.timeline.snapshot()}}}'
        return Response(text, media_type="application/json", headers={"cache-control": "no-store"})

    def _about(self, state: AppState) -> dict[str, Any]:
        config = state.config
        default = state.desk.grant(None, None)
        return {
            "build": config.build,
            "model": config.model_names[0],
            "chat": self._chat,
            "receipts": "off" if state.receipts is None else config.receipts,
            "default_class": default.class_.value,
            "contract": codec.to_plain(state.contract),
            "axes": [{"name": axis.value, "meaning": axis.meaning} for axis in Axis],
            "engines": [
                {
                    "arithmetic": engine.arithmetic,
                    "class": engine.determinism_class,
                    "device": engine.device,
                    "max_num_seqs": engine.max_num_seqs,
                    "max_model_len": engine.max_model_len,
                    "running": engine.running,
                    "cache_queries": (load := engine.load()).prefix_cache_query_tokens,
                    "cache_hits": load.prefix_cache_hit_tokens,
                }
                for engine in state.engines
            ],
        }

    async def _events(self, request: Request) -> Response:
        """The timeline as server-sent events, from now on."""
        state = state_of(request)
        state.shutdown.refuse_new()
        if not self.timeline.has_room:
            raise ApiError(429, "too_many_listeners", "too many pages watch this server", headers={"Retry-After": "10"})
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(self._stream(state), media_type="text/event-stream", headers=headers)

    async def _stream(self, state: AppState) -> AsyncGenerator[bytes, None]:
        yield b"retry: 2000\n\n"  # at once, so that the page knows that it is connected
        async with aclosing(self.timeline.listen()) as events:
            async for event in events:
                if state.shutdown.begun:  # there is an event each second
                    return
                yield f"event: {event.kind}\ndata: {event.json}\n\n".encode()


def _read_files() -> dict[str, tuple[bytes, str, str]]:
    """Content, media type and entity tag of every file of the page, by name."""
    found = {}
    for entry in resources.files("queueproof.server").joinpath("page").iterdir():
        suffix = entry.name[entry.name.rfind(".") :]
        if suffix in TYPES:
            content = entry.read_bytes()
            found[entry.name] = (content, TYPES[suffix], f'"{hashlib.sha256(content).hexdigest()[:32]}"')
    return found


def _has_chat_template(engine: ServedEngine) -> bool:
    try:
        engine.encode_chat([{"role": "user", "content": "?"}])
    except UsageError:
        return False
    return True
