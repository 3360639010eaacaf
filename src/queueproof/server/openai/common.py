"""The fields that chat and completions share, and the sampling parameters they stand for."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from queueproof.server.config import ServerConfig
from queueproof.server.errors import bad_request, unsupported_field
from queueproof.server.openai.fields import Few, Integer, Strict
from queueproof.server.openai.structured import ResponseFormat, guide_of
from queueproof.server.protocol import ServedEngine

MAX_ENTRIES = 1 << 16


def _not_huge(value: object) -> object:
    """Before the entries are looked at, each of which may be an error of its own."""
    if isinstance(value, dict) and len(value) > MAX_ENTRIES:
        raise ValueError(f"it has {len(value)} entries, at most {MAX_ENTRIES} are possible")
    return value


class StreamOptions(Strict):
    """include_usage: a last chunk with the counts. continuous_usage_stats: the counts so far in every chunk."""

    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: Annotated[bool, Field(description="only false: chunks are not padded")] = False


class AskedClass(Strict):
    class_: Annotated[str, Field(alias="class")]


class SamplingFields(Strict):
    """Names, meanings and defaults of OpenAI's API, and beyond it of vLLM's."""

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: Integer = 1
    best_of: Integer | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: Integer = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Annotated[dict[str, float], BeforeValidator(_not_huge)] | None = None
    seed: Integer | None = None
    stop: str | Few[str] | None = None
    stop_token_ids: Few[Integer] | None = None
    ignore_eos: bool = False
    min_tokens: Integer = 0
    max_tokens: Integer | None = None
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    prompt_logprobs: Integer | None = None
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    cache_salt: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    response_format: ResponseFormat | None = None
    determinism: str | AskedClass | None = None

    @property
    def asked_class(self) -> str | None:
        return self.determinism.class_ if isinstance(self.determinism, AskedClass) else self.determinism

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def usage_in_chunks(self) -> bool:
        return self.stream_options is not None and self.stream_options.continuous_usage_stats


def check_common(fields: SamplingFields, config: ServerConfig) -> None:
    """What a server limits, and what fields say about each other. Raises ApiError 400."""
    if fields.stream_options is not None and not fields.stream:
        raise bad_request("stream_options needs stream=true; leave it out or stream the answer", "stream_options")
    if fields.stream_options is not None and fields.stream_options.include_obfuscation:
        raise unsupported_field("include_obfuscation", True, "only false is", "leave it out: chunks are not padded")
    if not 1 <= fields.n <= config.max_n:
        raise bad_request(f"n={fields.n} must be from 1 to {config.max_n}, the limit of this server", "n")
    if fields.best_of is not None and fields.best_of != fields.n:
        raise unsupported_field("best_of", fields.best_of, f"only n={fields.n} is", "use n and choose yourself")
    if fields.stream and fields.prompt_logprobs is not None:
        raise bad_request("prompt_logprobs is not there for stream=true; do not stream, or use echo", "prompt_logprobs")
    check_logprobs("prompt_logprobs", fields.prompt_logprobs, config)
    stops = len(fields.stop) if isinstance(fields.stop, list) else 1
    if stops > config.max_stops:
        raise bad_request(f"stop has {stops} strings, this server takes {config.max_stops}", "stop")
    if isinstance(fields.stop, list | str) and sum(map(len, fields.stop)) > config.max_stop_text:
        raise bad_request(f"stop has more than {config.max_stop_text} characters, the limit of this server", "stop")
    for name in ("logit_bias", "stop_token_ids"):
        given = getattr(fields, name)
        if given is not None and len(given) > config.max_biases:
            raise bad_request(f"{name} has {len(given)} entries, this server takes {config.max_biases}", name)


def check_logprobs(name: str, count: int | None, config: ServerConfig) -> None:
    if count is not None and not 0 <= count <= config.max_logprobs:
        raise bad_request(f"{name}={count} must be from 0 to {config.max_logprobs}, the limit of this server", name)


def sampling_options(
    fields: SamplingFields,
    engine: ServedEngine,
    config: ServerConfig,
    logprobs: int | None,
    prompt_logprobs: int | None,
) -> dict[str, Any]:
    """Options of `ServedEngine.params` but max_tokens. Raises ApiError 400."""
    return {
        "n": fields.n,
        "temperature": fields.temperature,
        "top_k": 0 if fields.top_k == -1 else fields.top_k,  # vLLM's older way to say: all tokens
        "top_p": fields.top_p,
        "min_p": fields.min_p,
        "repetition_penalty": fields.repetition_penalty,
        "presence_penalty": fields.presence_penalty,
        "frequency_penalty": fields.frequency_penalty,
        "logit_bias": _bias(fields.logit_bias, engine),
        "seed": fields.seed,
        "stop": fields.stop,
        "stop_token_ids": fields.stop_token_ids,
        "ignore_eos": fields.ignore_eos,
        "include_stop_str_in_output": fields.include_stop_str_in_output,
        "min_tokens": fields.min_tokens,
        "logprobs": logprobs,
        "prompt_logprobs": prompt_logprobs,
        "skip_special_tokens": fields.skip_special_tokens,
    } | ({} if (guide := guide_of(fields.response_format, config.max_schema)) is None else {"guide": guide})


def _bias(given: dict[str, float] | None, engine: ServedEngine) -> dict[int, float] | None:
    if not given:
        return None
    found: dict[int, float] = {}
    for key, value in given.items():
        if not (key.isascii() and key.isdecimal() and len(key) < 12) or int(key) >= engine.vocab_size:
            raise bad_request(
                f"logit_bias has the key {key[:20]!r}; keys are token ids from 0 to {engine.vocab_size - 1}",
                "logit_bias",
            )
        if int(key) in found:
            raise bad_request(f"logit_bias has the token {int(key)} twice", "logit_bias")
        found[int(key)] = value
    return found


def usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }
