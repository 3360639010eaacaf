"""Runs the application under uvicorn, and ends it with a grace period for answers that are under way."""

from __future__ import annotations

import asyncio
import math
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from queueproof.contract.errors import UsageError
from queueproof.server.config import ServerConfig
from queueproof.server.openai.stream import WIRE
from queueproof.server.state import AppState

_LAST_WORDS = 5.0  # seconds that interrupted answers have to say so, before their tasks are cancelled


class _Wire:
    """The connection under an answer (openai.stream.Wire)."""

    def __init__(self, protocol: H11Protocol, chunked: bool) -> None:
        self._protocol, self.chunked = protocol, chunked
        self._transport, self._flow = protocol.transport, protocol.flow

    @property
    def full(self) -> bool:
        return self._flow.write_paused and not self._protocol.cycle.disconnected

    async def drain(self) -> None:
        await self._flow.drain()

    def write_chunk(self, data: bytes) -> None:
        # A connection is parsed no further while an answer is on its way: the cycle is that of the answer.
        if not self._protocol.cycle.disconnected:
            self._transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    def abort(self) -> None:
        self._transport.abort()


class _Protocol(H11Protocol):
    """Closes connections that are open and send no whole request head in time, and hands answers their connection."""

    head_timeout: float
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        app = self.app

        async def with_wire(scope: Scope, receive: Receive, send: Send) -> None:
            scope[WIRE] = _Wire(self, chunked=scope["http_version"] == "1.1")
            await app(scope, receive, send)

        self.app = with_wire
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_timer()

    def _watch_head(self) -> None:
        """The time runs from the first byte of a head, and for a new connection from its start."""
        answering = self.cycle is not None and not self.cycle.response_complete
        if answering:
            self._stop_timer()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_timeout, self.transport.abort)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, state: AppState, started: Callable[[], None] | None) -> None:
        super().__init__(config)
        self._state, self._started = state, started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._started is not None and not self.should_exit:
            self._started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._state.shutdown.begin(self._state.config.grace)
        await super().shutdown(sockets)


def new_event_loop() -> asyncio.AbstractEventLoop:
    """For asyncio.Runner. libuv's loop takes half of the processor's time for the chunks of streams; Windows has none."""
    if sys.platform == "win32":
        return asyncio.new_event_loop()
    import uvloop

    return uvloop.new_event_loop()


def make_server(
    app: Starlette,
    started: Callable[[], None] | None = None,
    log_config: dict[str, Any] | None = None,
) -> uvicorn.Server:
    """A server for an application of `make_app`. started: called when it listens. log_config: of module logging."""
    state: AppState = app.state.queueproof
    config: ServerConfig = state.config
    protocol = type("Protocol", (_Protocol,), {"head_timeout": config.body_timeout})
    options = uvicorn.Config(
        app,
        host=config.host,
        port=config.port,
        http=protocol,
        ws="none",
        lifespan="on",
        log_config=log_config,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=config.max_connections,
        timeout_keep_alive=math.ceil(config.keep_alive),
        timeout_graceful_shutdown=math.ceil(config.grace + _LAST_WORDS),
    )
    return _Server(options, state, started)


def listen(config: ServerConfig) -> socket.socket:
    """A bound socket, before anything slow is loaded: with port 0 its `getsockname()` tells the port.

    Raises UsageError if the address is taken or is none of this machine's.
    """
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    # The protocol is named, or asyncio would not see that it is TCP and leave Nagle's algorithm on: 40 ms for an answer.
    found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((config.host, config.port))
        found.listen(2048)
    except OSError as error:
        found.close()
        raise UsageError(
            f"cannot listen on {config.host}:{config.port}: {error.strerror}; choose another --host or --port"
        ) from error
    return found


async def serve(
    app: Starlette,
    sockets: Sequence[socket.socket] | None = None,
    started: Callable[[], None] | None = None,
    log_config: dict[str, Any] | None = None,
) -> bool:
    """Until SIGINT or SIGTERM; a second one ends it at once. sockets: of `listen`, in place of config.host and port.

    Returns whether it ever listened: False if the port is taken or the application could not start.
    """
    server = make_server(app, started, log_config)
    await server.serve(list(sockets) if sockets is not None else None)
    return server.started
