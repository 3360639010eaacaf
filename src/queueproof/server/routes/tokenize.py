"""Text to token ids and back, as vLLM's server has it."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from queueproof.server.body import read_object
from queueproof.server.errors import bad_request
from queueproof.server.generation import check_length, encode
from queueproof.server.jsonio import JsonResponse
from queueproof.server.models import check_model
from queueproof.server.openai.chat import TemplateFields, encode_chat
from queueproof.server.openai.fields import NEUTRAL, Few, Integer, Strict, read_fields
from queueproof.server.state import state_of

_ALWAYS_DECODED = 1 << 16  # tokens: a fraction of a second


class TextFields(Strict):
    model: str | None = None
    prompt: str
    add_special_tokens: bool = True
    return_token_strs: bool = False


class ConversationFields(TemplateFields):
    model: str | None = None
    return_token_strs: bool = False


class IdFields(Strict):
    model: str | None = None
    tokens: Annotated[Few[Integer], Field(max_length=1 << 20)]


def routes() -> list[BaseRoute]:
    return [
        Route("/tokenize", tokenize, methods=["POST"]),
        Route("/detokenize", detokenize, methods=["POST"]),
    ]


async def tokenize(request: Request) -> Response:
    """Of a `prompt`, or of `messages` through the chat template."""
    state = state_of(request)
    config, engine = state.config, state.engines[0]
    body = await read_object(request)
    fields: TextFields | ConversationFields
    if "messages" in body:
        if body.get("prompt") is not None:
            raise bad_request("there are prompt and messages; give one of them", "prompt")
        fields = read_fields(ConversationFields, body, NEUTRAL["chat"], harmless=False)
        check_model(config, fields.model)
        ids = await encode_chat(fields, engine, config)
    else:
        fields = read_fields(TextFields, body, {}, harmless=False)
        check_model(config, fields.model)
        check_length(len(fields.prompt), engine, config, "prompt")
        call = partial(engine.encode, fields.prompt, add_special_tokens=fields.add_special_tokens)
        ids = await encode(call, len(fields.prompt))
    made: dict[str, Any] = {"count": len(ids), "max_model_len": engine.max_model_len, "tokens": ids}
    if fields.return_token_strs:
        tokens = state.desk.tokens_of(engine)
        made["token_strs"] = [tokens[token_id].text for token_id in ids]
    return JsonResponse(made)


async def detokenize(request: Request) -> Response:
    """The text of token ids, special tokens included."""
    state = state_of(request)
    engine = state.engines[0]
    fields = read_fields(IdFields, await read_object(request), {}, harmless=False)
    check_model(state.config, fields.model)
    limit = max(_ALWAYS_DECODED, engine.max_model_len)
    if len(fields.tokens) > limit:
        raise bad_request(f"tokens has {len(fields.tokens)} ids, this server takes {limit}", "tokens")
    if fields.tokens and not 0 <= min(fields.tokens) <= max(fields.tokens) < engine.vocab_size:
        raise bad_request(f"tokens has an id that is not from 0 to {engine.vocab_size - 1}", "tokens")
    text = await encode(partial(engine.decode, fields.tokens), len(fields.tokens))
    return JsonResponse({"prompt": text})
