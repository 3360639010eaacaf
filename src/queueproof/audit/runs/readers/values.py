"""Pieces that several formats share: scores, prompts, spoken answers and log-probabilities, from their JSON."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from queueproof.audit.ask import Answer
from queueproof.audit.runs.model import Score
from queueproof.contract.errors import ContractError

_NO_LOGPROB = -9999.0  # how vLLM and Queueproof write minus infinity


class Logprobs(NamedTuple):
    """Of an answer's tokens; see ask.Answer."""

    tokens: tuple[str, ...] | None = None
    logprobs: tuple[float | None, ...] | None = None
    margins: tuple[float | None, ...] | None = None
    ids: tuple[int, ...] | None = None


def bad(where: str, value: object, expected: str) -> ContractError:
    """An error for a value that is not of its format's form."""
    return ContractError(f"{where}: {expected}; found {json.dumps(value, ensure_ascii=False, default=str):.200}")


def answer(
    text: str,
    logprobs: Logprobs = Logprobs(),  # noqa: B008 - immutable
    finish_reason: object = None,
    ids: Sequence[int] | None = None,
    prompt_tokens: object = None,
) -> Answer:
    """An answer that was read. ids: where they are known apart from the log-probabilities."""
    return Answer(
        prompt="",
        text=text,
        finish_reason=finish_reason if isinstance(finish_reason, str) else None,
        started=0.0,
        latency=0.0,
        ids=tuple(ids) if ids else logprobs.ids,
        tokens=logprobs.tokens,
        logprobs=logprobs.logprobs,
        margins=logprobs.margins,
        prompt_tokens=prompt_tokens if type(prompt_tokens) is int else None,
    )


def score(name: str, value: Any) -> Score:
    """Numbers and truth values are numbers; anything else is compared as it is written."""
    if isinstance(value, bool | int | float):
        return Score(name, float(value), f"{value:g}" if isinstance(value, float) else str(value))
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)
    return Score(name, None, text)


def content(value: Any) -> str:
    """The text of a message's content: a string, or parts of which those with text count."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        return json.dumps(value, ensure_ascii=False, sort_keys=True)
    pieces = []
    for part in value:
        if isinstance(part, str):
            pieces.append(part)
        elif isinstance(part, dict) and isinstance(part.get("text"), str):
            pieces.append(part["text"])
        elif isinstance(part, dict) and isinstance(part.get("reasoning"), str):
            pieces.append(thought(part["reasoning"]))
        else:
            pieces.append(json.dumps(part, ensure_ascii=False, sort_keys=True))
    return "".join(pieces)


def thought(text: str) -> str:
    """Reasoning as a part of the answer's text: where two answers part in it, they part there."""
    return f"<think>{text}</think>\n"


def spoken(message: Mapping[str, Any]) -> str:
    """All that a message says: reasoning, content, then calls of tools, one a line. Ids of calls are random: left out."""
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    text = (thought(reasoning) if isinstance(reasoning, str) else "") + content(message.get("content"))
    for call in message.get("tool_calls") or ():
        inner = call.get("function") if isinstance(call, dict) else None
        named = inner if isinstance(inner, dict) else call if isinstance(call, dict) else {}
        name = named.get("name") or (inner if isinstance(inner, str) else "?")
        arguments = named.get("arguments", "")
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False, sort_keys=True)
        text += f"{chr(10) if text else ''}[call of {name}: {arguments}]"
    return text


def prompt(value: Any) -> str | None:
    """A prompt as one text, the same in every format: a text, token ids, or messages.

    A conversation of one message is that message's text.
    """
    if value is None or isinstance(value, str):
        return value or None
    if isinstance(value, list) and value and all(isinstance(message, dict) for message in value):
        if len(value) == 1:
            return spoken(value[0])
        return "\n".join(f"[{message.get('role', '?')}] {spoken(message)}" for message in value)
    return json.dumps(value, ensure_ascii=False)


def digest(text: str | None) -> str | None:
    """SHA-256, hex, of a prompt."""
    return None if text is None else hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def finite(value: Any) -> float | None:
    """A log-probability; None for minus infinity, however it is written."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not math.isfinite(value)
        or value <= _NO_LOGPROB
    ):
        return None
    return float(value)


def _margin(tops: Iterable[Any]) -> float | None:
    best = sorted((found for found in map(finite, tops) if found is not None), reverse=True)
    return best[0] - best[1] if len(best) > 1 else None


def logprobs(value: Any, where: str) -> Logprobs:
    """OpenAI's two forms, of chat ({content: [...]}) and of completions ({tokens, token_logprobs}). Raises ContractError."""
    if not value:
        return Logprobs()
    try:
        if value.get("content") is not None:
            entries = value["content"]
            margins = tuple(_margin(top["logprob"] for top in e.get("top_logprobs") or ()) for e in entries)
            ids = tuple(int(e["id"]) for e in entries if "id" in e)
            return Logprobs(
                tuple(str(e["token"]) for e in entries),
                tuple(finite(e["logprob"]) for e in entries),
                margins if any(m is not None for m in margins) else None,
                ids if ids and len(ids) == len(entries) else None,
            )
        if value.get("tokens") is not None:
            tops = value.get("top_logprobs") or ()
            margins = tuple(_margin(top.values()) if top else None for top in tops)
            return Logprobs(
                tuple(map(str, value["tokens"])),
                tuple(map(finite, value["token_logprobs"])),
                margins if any(m is not None for m in margins) else None,
            )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise bad(
            where, value, f"log-probabilities are {{content: [...]}} or {{tokens, token_logprobs}} ({error!r})"
        ) from None
    return Logprobs()


def choices(body: Any, where: str) -> tuple[Answer, ...]:
    """The answers of an OpenAI response, chat or completions, in the order of their index. Raises ContractError."""
    found = body.get("choices") if isinstance(body, dict) else None
    if not isinstance(found, list) or not found or not all(isinstance(choice, dict) for choice in found):
        raise bad(where, body, "an answer has choices, as chat completions and completions do")
    read = []
    asked = (body.get("usage") or {}).get("prompt_tokens")
    for choice in sorted(found, key=lambda choice: choice.get("index") or 0):
        message = choice.get("message")
        if isinstance(message, dict):
            text = spoken(message)
        elif isinstance(choice.get("text"), str):
            text = choice["text"]
        else:
            raise bad(where, choice, "a choice has a message or a text")
        ids = choice.get("token_ids")
        read.append(answer(text, logprobs(choice.get("logprobs"), where), choice.get("finish_reason"), ids, asked))
    return tuple(read)
