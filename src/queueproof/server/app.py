"""The application: routes, errors and limits around one or several engines."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute, Route

from queueproof.contract.document import ContractDocument
from queueproof.contract.errors import QueueproofError
from queueproof.server.classes import ClassDesk
from queueproof.server.config import ServerConfig
from queueproof.server.errors import ApiError, answer_error
from queueproof.server.extension import Extension, Extensions, Receipts
from queueproof.server.gate import Gate
from queueproof.server.limits import Admission, Shutdown
from queueproof.server.protocol import ServedEngine
from queueproof.server.routes import generate, info, tokenize
from queueproof.server.state import AppState


def make_app(
    config: ServerConfig,
    engines: Sequence[ServedEngine],
    contract: ContractDocument,
    receipts: Receipts | None = None,
    extensions: Sequence[Extension] = (),
) -> Starlette:
    """An ASGI application. It does not own the engines: who made them closes them after it.

    receipts: makes and keeps receipts; also an extension. extensions: metrics, logs, traces, the page.
    Raises ContractError if the contract offers what no engine computes, UnsupportedClass for a default not on offer.
    """
    told = Extensions([*([receipts] if receipts is not None else []), *extensions])
    state = AppState(
        config=config,
        contract=contract,
        engines=tuple(engines),
        desk=ClassDesk(contract, engines, config.build, config.default_class),
        admission=Admission(config),
        shutdown=Shutdown(),
        receipts=receipts,
        extensions=told,
        started=int(time.time()),
    )
    routes: list[BaseRoute] = [*info.routes(config), *generate.routes(), *tokenize.routes()]
    for extension in told.all:
        routes += extension.routes()
    paths = {route.endpoint: route.path for route in routes if isinstance(route, Route)}
    middleware = [Middleware(Gate, api_keys=config.api_keys, extensions=told, paths=paths)]
    if config.allowed_origins:
        # Outside of the gate: a browser asks for permission without the key.
        middleware.insert(
            0,
            Middleware(
                CORSMiddleware,
                allow_origins=config.allowed_origins,
                allow_methods=["GET", "POST"],
                allow_headers=["Authorization", "Content-Type", "Queueproof-Determinism", "X-Request-Id"],
                expose_headers=["X-Request-Id", "Retry-After"],
            ),
        )

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None, None]:
        async with AsyncExitStack() as stack:
            for extension in told.all:
                await stack.enter_async_context(extension.running(state))
            yield

    app = Starlette(
        routes=routes,
        middleware=middleware,
        exception_handlers={
            ApiError: answer_error,
            HTTPException: answer_error,
            QueueproofError: answer_error,
        },
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False  # another URL is another route, and a 404
    app.state.queueproof = state
    return app
