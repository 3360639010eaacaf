"""Requests as the server's extensions are told of them, for tests that have no server."""

from __future__ import annotations

from typing import Any

from queueproof.contract.classes import DeterminismClass
from queueproof.server.extension import Exchange, Extension, GenerationRecord

RESPONSE_ID = "chatcmpl-0123456789abcdef0123456789abcdef"


def record(**changes: Any) -> GenerationRecord:
    """A request that arrived at 100.0 and was answered with 5 tokens until 101.0."""
    values: dict[str, Any] = {
        "request_id": "req-1",
        "response_id": RESPONSE_ID,
        "kind": "chat",
        "class_": DeterminismClass.PORTABLE,
        "arithmetic": "ieee/1",
        "owner": None,
        "stream": True,
        "n": 1,
        "max_tokens": 64,
        "arrival": 100.0,
        "engine_ids": ("engine-1",),
        "prompt_tokens": 12,
        "cached_tokens": 8,
        "generated_tokens": 5,
        "scheduled": 100.05,
        "first_token": 100.2,
        "last_token": 101.0,
        "finished": 101.01,
        "finish_reasons": ["stop"],
        "receipts": ["rcpt-" + "0" * 32],
    }
    return GenerationRecord(**(values | changes))


def exchange(**changes: Any) -> Exchange:
    values: dict[str, Any] = {
        "request_id": "req-1",
        "method": "POST",
        "route": "/v1/chat/completions",
        "status": 200,
        "seconds": 1.05,
        "client": "127.0.0.1",
        "error": None,
    }
    return Exchange(**(values | changes))


def tell(extension: Extension, told: GenerationRecord) -> None:
    """The life of an answer of five tokens, two of which came together."""
    extension.started(told)
    extension.tokens(told, 1, None, 100.2)
    extension.tokens(told, 1, 100.2, 100.4)
    extension.tokens(told, 2, 100.4, 100.8)
    extension.tokens(told, 1, 100.8, 101.0)
    extension.finished(told)
