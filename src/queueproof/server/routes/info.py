"""What the server is: health, version, models, the contract; and the administrator's route."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from queueproof.contract import codec
from queueproof.server.config import ServerConfig
from queueproof.server.errors import ApiError
from queueproof.server.jsonio import JsonResponse
from queueproof.server.models import check_model
from queueproof.server.state import AppState, state_of


def routes(config: ServerConfig) -> list[BaseRoute]:
    """Without `config.admin` the administrator's route does not exist."""
    found: list[BaseRoute] = [
        Route("/health", health, methods=["GET"]),
        Route("/version", version, methods=["GET"]),
        Route("/v1/models", models, methods=["GET"]),
        Route("/v1/models/{model:path}", model, methods=["GET"]),
        Route("/v1/contract", contract, methods=["GET"]),
        Route("/.well-known/queueproof", contract, methods=["GET"]),
    ]
    if config.admin:
        found.append(Route("/reset_prefix_cache", reset_prefix_cache, methods=["POST"]))
    return found


async def health(request: Request) -> Response:
    """200 while every engine runs and the server is not about to end."""
    state = state_of(request)
    state.shutdown.refuse_new()
    ended = [engine.arithmetic for engine in state.engines if not engine.running]
    if ended:
        raise ApiError(503, "engine", f"the engine of {', '.join(ended)} has ended; restart the server")
    return JsonResponse({"status": "ok"})


async def version(request: Request) -> Response:
    return JsonResponse({"version": state_of(request).config.build})


async def models(request: Request) -> Response:
    state = state_of(request)
    return JsonResponse({"object": "list", "data": [_model(state, name) for name in state.config.model_names]})


async def model(request: Request) -> Response:
    state = state_of(request)
    name = request.path_params["model"]
    check_model(state.config, name)
    return JsonResponse(_model(state, name))


async def contract(request: Request) -> Response:
    return JsonResponse(codec.to_plain(state_of(request).contract))


async def reset_prefix_cache(request: Request) -> Response:
    """Of every engine. Running requests keep the blocks they use."""
    for engine in state_of(request).engines:
        engine.reset_prefix_cache()
    return JsonResponse({"status": "ok"})


def _model(state: AppState, name: str) -> dict[str, object]:
    return {
        "id": name,
        "object": "model",
        "created": state.started,
        "owned_by": "queueproof",
        "root": state.engines[0].model.name,
        "parent": None,
        "max_model_len": min(engine.max_model_len for engine in state.engines),
        "determinism": {"default": state.desk.default.value, "offers": state.desk.offers},
    }
