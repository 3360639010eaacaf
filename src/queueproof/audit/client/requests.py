"""What is sent: an Ask as the body of a chat or completions request, with the fields that this endpoint takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from queueproof.audit.ask import Ask, Cache, Cold, Prompt

TOP = 2  # the best tokens asked for at each step: enough for a margin


class Route(StrEnum):
    """Where a request goes, after the address of the API."""

    CHAT = "/chat/completions"
    COMPLETIONS = "/completions"


class PromptLogprobs(StrEnum):
    """How a prompt's log-probabilities are had: by vLLM's field, or by `echo` of completions."""

    FIELD = "prompt_logprobs"
    ECHO = "echo"


@dataclass(frozen=True, slots=True)
class Dialect:
    """What one route of an endpoint takes. Of the fields that not all servers know, those of `taken` are sent.

    limit: its name for max_tokens. temperature: whether one may be sent.
    """

    taken: frozenset[str] = frozenset()
    limit: str = "max_tokens"
    temperature: bool = True


STREAM_OPTIONS, LOGPROBS, TOP_LOGPROBS = "stream_options", "logprobs", "top_logprobs"
TOKEN_IDS, SALT, CACHE_PROMPT, IGNORE_EOS = "return_token_ids", "cache_salt", "cache_prompt", "ignore_eos"
CACHED_DETAILS = "return_cached_tokens_details"  # of SGLang


def route_of(prompt: Prompt) -> Route:
    return Route.CHAT if prompt.messages is not None else Route.COMPLETIONS


def content_of(prompt: Prompt) -> dict[str, Any]:
    """The field that holds the prompt."""
    if prompt.messages is not None:
        return {"messages": [{"role": role, "content": content} for role, content in prompt.messages]}
    return {"prompt": prompt.text if prompt.text is not None else list(prompt.ids or ())}


def body_of(
    ask: Ask,
    model: str,
    dialect: Dialect,
    cold_by: Cold | None,
    prompt_logprobs: PromptLogprobs | None,
    salt: str,
) -> dict[str, Any]:
    """A request's body. salt: names the part of the cache that it may share, where a salt can. Prompt log-probabilities
    are asked for where there is a way."""
    route = route_of(ask.prompt)
    stream = ask.stream and not ask.prompt_logprobs  # no server streams those
    body: dict[str, Any] = {"model": model, **content_of(ask.prompt), dialect.limit: ask.max_tokens, "stream": stream}
    if dialect.temperature:
        body["temperature"] = ask.temperature
    if ask.seed is not None:
        body["seed"] = ask.seed
    extra: dict[str, Any] = {TOKEN_IDS: True, CACHED_DETAILS: True}
    if stream:
        extra[STREAM_OPTIONS] = {"include_usage": True}
    if ask.logprobs:
        extra |= {LOGPROBS: True, TOP_LOGPROBS: TOP} if route is Route.CHAT else {LOGPROBS: TOP}
    if ask.exact_tokens:
        extra[IGNORE_EOS] = True
    extra |= _cache(ask, cold_by, salt)
    body |= {name: value for name, value in extra.items() if name in dialect.taken}
    if ask.prompt_logprobs and prompt_logprobs is PromptLogprobs.FIELD:
        body["prompt_logprobs"] = 1
    elif ask.prompt_logprobs and prompt_logprobs is PromptLogprobs.ECHO and route is Route.COMPLETIONS:
        body |= {"echo": True, "logprobs": TOP}
    return body


def _cache(ask: Ask, cold_by: Cold | None, salt: str) -> Mapping[str, Any]:
    if ask.cache is Cache.FREE:
        return {}
    if cold_by is Cold.SALT:
        return {SALT: salt}
    if cold_by is Cold.FIELD:
        return {CACHE_PROMPT: ask.cache is Cache.WARM}
    return {}
