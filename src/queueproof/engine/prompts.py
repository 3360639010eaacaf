"""What may be given as a prompt, in vLLM's shapes, and as token ids."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict

import numpy as np

from queueproof.contract.errors import InvalidParameter, ModelError
from queueproof.engine.protocols import Tokenizer
from queueproof.engine.sampling_params import as_integer


class TextPrompt(TypedDict):
    prompt: str
    cache_salt: NotRequired[str]


class TokensPrompt(TypedDict):
    prompt_token_ids: Sequence[int]
    cache_salt: NotRequired[str]


Prompt = str | Sequence[int] | TextPrompt | TokensPrompt


@dataclass(frozen=True, slots=True)
class ReadPrompt:
    """text: None for a prompt given as token ids. cache_salt: only requests with the same one share a prefix cache."""

    text: str | None
    token_ids: list[int]
    cache_salt: str | None = None


def salt_of_its_own() -> str:
    """A cache_salt that nobody else has: nothing that was computed before is found."""
    return secrets.token_hex(16)


def read_prompt(prompt: object, tokenizer: Tokenizer, vocab_size: int) -> ReadPrompt:
    """Checks a prompt and encodes text. Raises InvalidParameter for an empty one, another shape or an unknown id."""
    if isinstance(prompt, Mapping):
        return _read_mapping(prompt, tokenizer, vocab_size)
    if isinstance(prompt, str):
        ids = tokenizer.encode(prompt) if prompt else []
        if not ids:
            raise InvalidParameter("prompt", prompt, "it must not be empty")
        if max(ids) >= vocab_size:
            raise ModelError(f"the tokenizer gives the id {max(ids)}, the model's vocabulary ends at {vocab_size - 1}")
        return ReadPrompt(prompt, ids)
    if isinstance(prompt, Sequence | np.ndarray):
        return ReadPrompt(None, _checked_ids(prompt, vocab_size))
    raise InvalidParameter("prompt", prompt, "it must be a string, token ids, or a dict with one of them")


def is_one_prompt(prompts: object) -> bool:
    """Whether this is a prompt, and not a list of prompts."""
    if isinstance(prompts, str | Mapping | np.ndarray):
        return True
    if not isinstance(prompts, Sequence):
        raise InvalidParameter("prompts", prompts, "it must be a prompt (a string, token ids, a dict) or a list of them")
    return bool(prompts) and hasattr(prompts[0], "__index__")


def _read_mapping(prompt: Mapping[str, Any], tokenizer: Tokenizer, vocab_size: int) -> ReadPrompt:
    allowed = "its keys must be prompt or prompt_token_ids, and cache_salt if wanted"
    if set(prompt) - {"cache_salt"} not in ({"prompt"}, {"prompt_token_ids"}):
        raise InvalidParameter("prompt", prompt, allowed)
    salt = prompt.get("cache_salt")
    if salt is not None and not isinstance(salt, str):
        raise InvalidParameter("cache_salt", salt, "it must be a string")
    if "prompt" in prompt and not isinstance(prompt["prompt"], str):
        raise InvalidParameter("prompt", prompt["prompt"], "it must be a string; token ids go to prompt_token_ids")
    if "prompt_token_ids" in prompt and isinstance(prompt["prompt_token_ids"], str | Mapping):
        raise InvalidParameter("prompt_token_ids", prompt["prompt_token_ids"], "it must be a list of token ids")
    inner = read_prompt(prompt.get("prompt", prompt.get("prompt_token_ids")), tokenizer, vocab_size)
    return ReadPrompt(inner.text, inner.token_ids, salt)


def _checked_ids(ids: Any, vocab_size: int) -> list[int]:
    allowed = f"token ids must be integers from 0 to {vocab_size - 1}"
    if isinstance(ids, list) and set(map(type, ids)) == {int} and min(ids) >= 0 and max(ids) < vocab_size:
        return list(ids)  # the usual case, thirty times faster
    checked = [as_integer("prompt_token_ids", token, allowed, 0, vocab_size - 1) for token in ids]
    if not checked:
        raise InvalidParameter("prompt_token_ids", checked, "it must not be empty")
    return checked
