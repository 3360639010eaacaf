"""The routes that answer prompts."""

from __future__ import annotations

from starlette.routing import BaseRoute, Route

from queueproof.server.openai.endpoint import ChatEndpoint, CompletionEndpoint


def routes() -> list[BaseRoute]:
    return [
        Route("/v1/chat/completions", ChatEndpoint(), methods=["POST"]),
        Route("/v1/completions", CompletionEndpoint(), methods=["POST"]),
    ]
