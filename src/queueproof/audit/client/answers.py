"""What came back: chunks of a stream, or one object, read into an Answer. Raises Failure for what is no whole answer."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from queueproof.audit.ask import Answer
from queueproof.audit.client.sse import Event
from queueproof.audit.client.trouble import Failure, Kind, from_error

_NONE = -9999.0  # how vLLM and Queueproof write minus infinity
_MOST = 1 << 40  # tokens: a larger count is none
# What reading a value of another type, or a number that is none, can raise.
_OTHER_FORM = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError)


@dataclass(slots=True)
class _Parts:
    """What the chunks have said so far."""

    text: list[str] = field(default_factory=list)
    finish_reason: str | None = None
    ids: list[int] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    margins: list[float | None] = field(default_factory=list)
    named_ids: list[int] = field(default_factory=list)  # of log-probability entries, where they have them
    gaps: bool = False  # a chunk's log-probabilities were fewer than its tokens
    prompt_ids: tuple[int, ...] | None = None
    prompt_logprobs: list[Any] | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    timings: dict[str, Any] = field(default_factory=dict)
    cached: int | None = None
    arrivals: list[float] = field(default_factory=list)
    fingerprint: str | None = None
    model: str | None = None


def from_stream(events: Sequence[Event], prompt: str, started: float, ended: float) -> Answer:
    """An answer from a stream that has ended. started, ended: by the clock of the events."""
    parts = _Parts()
    for event in events:
        if event.data == b"[DONE]":
            break
        try:
            chunk = json.loads(event.data)
        except (ValueError, RecursionError):
            if not event.complete:
                break  # the connection ended within a line
            raise Failure(Kind.BAD_ANSWER, f"an event that is no JSON: {_begin(event.data)}", again=True) from None
        if event.name == b"error" and isinstance(chunk, dict):
            chunk.setdefault("error", chunk)
        if _add(parts, chunk, "delta"):
            parts.arrivals.append(event.at)
    if parts.finish_reason is None:
        raise Failure(
            Kind.CUT, f"the stream ended after {len(parts.arrivals)} pieces without finish_reason", again=True
        )
    return _answer(parts, prompt, started, ended)


def from_whole(body: bytes, prompt: str, started: float, ended: float, echo: bool = False) -> Answer:
    """An answer from one JSON object. echo: the prompt comes before the answer, with its log-probabilities."""
    try:
        plain = json.loads(body)
    except (ValueError, RecursionError):
        raise Failure(Kind.BAD_ANSWER, f"no JSON: {_begin(body)}", again=True) from None
    parts = _Parts()
    _add(parts, plain, "message")
    if parts.finish_reason is None:
        raise Failure(Kind.BAD_ANSWER, f"no choice with a finish_reason: {_begin(body)}")
    if echo:
        with _form(parts.usage):
            _split_echo(parts)
    return _answer(parts, prompt, started, ended)


def _add(parts: _Parts, chunk: Any, inner: str) -> bool:
    """Takes a chunk in. Returns whether it has a piece of the answer."""
    if not isinstance(chunk, dict):
        raise Failure(Kind.BAD_ANSWER, f"an answer that is no object: {chunk!r:.200}")
    if chunk.get("error"):
        raise from_error(chunk["error"])
    with _form(chunk):
        _add_head(parts, chunk)
        return any(
            [_add_choice(parts, choice, inner) for choice in chunk.get("choices") or () if not choice.get("index")]
        )


@contextmanager
def _form(said: object) -> Iterator[None]:
    """What goes wrong within is a Failure that shows what was said: it has another form than these APIs have."""
    try:
        yield
    except _OTHER_FORM as error:
        raise Failure(Kind.BAD_ANSWER, f"an answer of another form ({error!r:.100}): {said!r:.300}") from None


def _add_head(parts: _Parts, chunk: dict[str, Any]) -> None:
    parts.model = _text(chunk, "model") or parts.model
    parts.fingerprint = _text(chunk, "system_fingerprint") or parts.fingerprint
    parts.usage = _object(chunk, "usage") or parts.usage
    parts.timings = _object(chunk, "timings") or parts.timings
    if "prompt_token_ids" in chunk:
        _add_prompt_ids(parts, chunk)
    if chunk.get("prompt_logprobs"):
        parts.prompt_logprobs = chunk["prompt_logprobs"]
    details = _object(chunk.get("sglext") or {}, "cached_tokens_details")
    if details:
        parts.cached = sum(v for v in details.values() if isinstance(v, int))


def _text(holder: dict[str, Any], name: str) -> str | None:
    value = holder.get(name)
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{name} is {value!r:.60}, no text")
    return value


def _object(holder: dict[str, Any], name: str) -> dict[str, Any]:
    value = holder.get(name)
    if value is not None and not isinstance(value, dict):
        raise TypeError(f"{name} is {value!r:.60}, no object")
    return value or {}


def _add_prompt_ids(parts: _Parts, holder: dict[str, Any]) -> None:
    if holder["prompt_token_ids"]:
        parts.prompt_ids = tuple(map(int, holder["prompt_token_ids"]))


def _add_choice(parts: _Parts, choice: dict[str, Any], inner: str) -> bool:
    said = choice.get(inner) or {}
    pieces = [said.get("reasoning_content") or said.get("reasoning"), said.get("content"), choice.get("text")]
    text = "".join([piece for piece in pieces if piece])
    parts.text.append(text)
    logprobs = choice.get("logprobs")
    if logprobs:
        _add_logprobs(parts, logprobs)
    ids = choice.get("token_ids")
    if ids:
        parts.ids += map(int, ids)
        # The last token, an end without a text, has none on some servers.
        parts.gaps |= len(parts.ids) > len(parts.logprobs) and not choice.get("finish_reason")
    if "prompt_token_ids" in choice:
        _add_prompt_ids(parts, choice)
    if choice.get("prompt_logprobs"):
        parts.prompt_logprobs = choice["prompt_logprobs"]
    reason = choice.get("finish_reason")
    if reason is not None:
        if reason in ("error", "abort"):
            raise Failure(Kind.SERVER_ERROR, f"the server ended the answer with finish_reason {reason!r}", again=True)
        parts.finish_reason = str(reason)
    return bool(text or logprobs or ids)


def _add_logprobs(parts: _Parts, logprobs: dict[str, Any]) -> None:
    if logprobs.get("content") is not None:  # chat, and llama.cpp's completions
        for entry in logprobs["content"]:
            parts.tokens.append(_text(entry, "token") or "")
            parts.logprobs.append(_finite(entry["logprob"]))
            parts.margins.append(_margin([top["logprob"] for top in entry.get("top_logprobs") or ()]))
            if "id" in entry:
                parts.named_ids.append(int(entry["id"]))
    elif logprobs.get("tokens") is not None:  # completions
        tops = logprobs.get("top_logprobs") or [None] * len(logprobs["tokens"])
        parts.tokens += map(str, logprobs["tokens"])
        parts.logprobs += map(_finite, logprobs["token_logprobs"])
        parts.margins += [_margin(list(top.values()) if top else []) for top in tops]


def _finite(value: Any) -> float | None:
    """A log-probability; None for minus infinity, however it is written."""
    if value is None or not math.isfinite(value) or value <= _NONE:
        return None
    return float(value)


def _margin(tops: list[Any]) -> float | None:
    """The best minus the second-best."""
    best = sorted((found for found in map(_finite, tops) if found is not None), reverse=True)
    return best[0] - best[1] if len(best) > 1 else None


def _split_echo(parts: _Parts) -> None:
    """Moves what belongs to the prompt out of the answer. The last completion_tokens are the answer's."""
    count = _count(parts.usage.get("completion_tokens"))
    if count is None or len(parts.tokens) <= count:
        return
    at = len(parts.tokens) - count
    parts.prompt_logprobs = list(parts.logprobs[:at])
    text = "".join(parts.text)
    head = "".join(parts.tokens[:at])
    parts.text = [text.removeprefix(head)]
    parts.tokens, parts.logprobs, parts.margins = parts.tokens[at:], parts.logprobs[at:], parts.margins[at:]


def _of_prompt(entries: list[Any], ids: tuple[int, ...] | None) -> tuple[float | None, ...] | None:
    """Log-probabilities of a prompt's own tokens. Of vLLM's form, {id: {logprob}} for each, by id, or where there is one."""
    found: list[float | None] = []
    for i, entry in enumerate(entries):
        if not isinstance(entry, dict):
            found.append(_finite(entry))
            continue
        own = entry.get(str(ids[i])) if ids is not None and i < len(ids) else None
        if own is None and len(entry) == 1:
            own = next(iter(entry.values()))
        if own is None:
            return None
        found.append(_finite(own["logprob"]))
    return tuple(found)


def _answer(parts: _Parts, prompt: str, started: float, ended: float) -> Answer:
    with _form(parts.usage):
        return _read(parts, prompt, started, ended)


def _read(parts: _Parts, prompt: str, started: float, ended: float) -> Answer:
    text = "".join(parts.text)
    # Where some are missing, the others cannot be laid beside those of another answer.
    missing = parts.gaps if parts.ids else len("".join(parts.tokens)) < len(text)
    logprobs = bool(parts.logprobs) and not missing
    ids = parts.ids or (parts.named_ids if logprobs and len(parts.named_ids) == len(parts.tokens) else [])
    prompt_logprobs = None
    if parts.prompt_logprobs is not None:
        with _form(parts.prompt_logprobs):
            prompt_logprobs = _of_prompt(parts.prompt_logprobs, parts.prompt_ids)
    count = _count(parts.usage.get("completion_tokens"), parts.timings.get("predicted_n"))
    if count is None and (ids or parts.tokens):
        count = len(ids) or len(parts.tokens)
    return Answer(
        prompt=prompt,
        text=text,
        finish_reason=parts.finish_reason,
        started=started,
        latency=ended - started,
        ids=tuple(ids) if ids else None,
        tokens=tuple(parts.tokens) if logprobs else None,
        logprobs=tuple(parts.logprobs) if logprobs else None,
        margins=tuple(parts.margins) if logprobs and any(m is not None for m in parts.margins) else None,
        prompt_ids=parts.prompt_ids,
        prompt_logprobs=prompt_logprobs,
        prompt_tokens=_count(parts.usage.get("prompt_tokens")),
        completion_tokens=count,
        cached_tokens=_cached(parts),
        ttft=parts.arrivals[0] - started if parts.arrivals else None,
        arrivals=tuple(parts.arrivals),
        fingerprint=parts.fingerprint,
        model=parts.model,
    )


def _cached(parts: _Parts) -> int | None:
    details = parts.usage.get("prompt_tokens_details")
    if not isinstance(details, dict):
        details = {}
    usual = details.get("cached_tokens")
    return _count(usual, parts.cached, parts.timings.get("cache_n"), parts.usage.get("prompt_cache_hit_tokens"))


def _count(*values: Any) -> int | None:
    """The first that is a count."""
    return next((value for value in values if type(value) is int and 0 <= value <= _MOST), None)


def _begin(data: bytes) -> str:
    return repr(data[:200].decode("utf-8", "replace"))
