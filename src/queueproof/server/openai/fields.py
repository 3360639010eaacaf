"""Reading the fields of a request: known ones are checked, the rest is an error that says what to do."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, FailFast, Field, ValidationError

from queueproof.server.errors import ApiError, bad_request, brief, unsupported_field

T = TypeVar("T")


class _FailFast(FailFast):
    def __hash__(self) -> int:  # pydantic's has none, which unions of types need
        return hash(self.fail_fast)


Few = Annotated[list[T], _FailFast()]
"""A list. Its first wrong item is the only one that is told: a body has room for a million of them."""

Integer = Annotated[int, Field(ge=-(1 << 63), le=(1 << 64) - 1)]
"""Bounded, so that nothing has to print thousands of digits. What is allowed within is for the engine to say."""


class Strict(BaseModel):
    """Unknown fields are errors, "1" is no number and 1 no boolean."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


Fields = TypeVar("Fields", bound=Strict)


@dataclass(frozen=True, slots=True)
class Neutral:
    """A field that is not supported, and those of its values that ask for nothing."""

    values: tuple[object, ...]
    advice: str


_TOOLS = "describe the tools in the messages and read the calls out of the answer"
_GUIDED = 'use response_format={"type": "json_schema", ...}'
_NO_EFFECT = "leave it out"
_COMMON_NEUTRAL = {
    "suffix": Neutral(("",), "put all of the text into the prompt"),
    "length_penalty": Neutral((1, 1.0), "there is no beam search; leave it out"),
    "use_beam_search": Neutral((False,), "there is no beam search; use n and temperature"),
    "spaces_between_special_tokens": Neutral((True,), _NO_EFFECT),
    "truncate_prompt_tokens": Neutral((), "shorten the prompt; /tokenize counts its tokens"),
    "allowed_token_ids": Neutral((), "use logit_bias or response_format"),
    "bad_words": Neutral(([],), "use logit_bias"),
    "guided_json": Neutral((), _GUIDED),
    "guided_regex": Neutral((), _GUIDED),
    "guided_choice": Neutral((), _GUIDED),
    "guided_grammar": Neutral((), _GUIDED),
    "guided_decoding_backend": Neutral((), _NO_EFFECT),
    "guided_whitespace_pattern": Neutral((), _NO_EFFECT),
    "structured_outputs": Neutral((), _GUIDED),
    "structural_tag": Neutral((), _GUIDED),
    "priority": Neutral((0,), "requests are served by the server's own policy"),
    "request_id": Neutral((), "send the header X-Request-Id"),
    "logits_processors": Neutral(([],), "use logit_bias"),
    "kv_transfer_params": Neutral((), _NO_EFFECT),
    "vllm_xargs": Neutral((), _NO_EFFECT),
    "service_tier": Neutral(("auto", "default"), "there is one tier; leave it out"),
    "store": Neutral((False,), "answers are not kept; keep them yourself"),
}
_CHAT_NEUTRAL = _COMMON_NEUTRAL | {
    "tools": Neutral(([],), _TOOLS),
    "tool_choice": Neutral(("none",), _TOOLS),
    "functions": Neutral(([],), _TOOLS),
    "function_call": Neutral(("none",), _TOOLS),
    "modalities": Neutral((["text"],), "answers are text"),
    "audio": Neutral((), "answers are text"),
    "prediction": Neutral((), _NO_EFFECT),
    "reasoning_effort": Neutral((), "use chat_template_kwargs if the model's template has an option for it"),
    "include_reasoning": Neutral((True,), "thoughts are a part of the answer"),
    "verbosity": Neutral((), "ask for it in the messages"),
    "web_search_options": Neutral((), "put what the model shall know into the messages"),
    "continue_final_message": Neutral((False,), "use /v1/completions with the text so far"),
    "add_special_tokens": Neutral((False,), "the chat template adds them"),
    "documents": Neutral(([],), "put them into the messages"),
    "chat_template": Neutral((), "use the model's own, with chat_template_kwargs, or /v1/completions"),
    "mm_processor_kwargs": Neutral((), "messages are text"),
    "echo": Neutral((False,), "use /v1/completions"),
}
_COMPLETION_NEUTRAL = _COMMON_NEUTRAL | {
    "prompt_embeds": Neutral((), "give the prompt as text or token ids"),
}
NEUTRAL: Mapping[str, Mapping[str, Neutral]] = {"chat": _CHAT_NEUTRAL, "completion": _COMPLETION_NEUTRAL}

HARMLESS: Mapping[str, type] = {
    "user": str,
    "metadata": dict,
    "safety_identifier": str,
    "prompt_cache_key": str,
    "prompt_cache_retention": str,
    "parallel_tool_calls": bool,  # there are no tools to call
}
"""Fields of OpenAI's that cannot change an answer: their type is checked, and nothing else is done with them."""


def read_fields(kind: type[Fields], body: Mapping[str, Any], neutral: Mapping[str, Neutral], harmless: bool) -> Fields:
    """The fields of a request. null stands for an absent field, as OpenAI's clients send it.

    Raises ApiError 400: unknown, not supported, of another type, out of range.
    """
    known = kind.model_fields
    values: dict[str, Any] = {}
    for name, value in body.items():
        if name in known:
            if value is not None:
                values[name] = value
        elif name in neutral:
            _check_neutral(name, value, neutral[name])
        elif harmless and name in HARMLESS:
            if value is not None and type(value) is not HARMLESS[name]:
                raise bad_request(f"{name}={brief(value)} must be of type {HARMLESS[name].__name__}", name)
        else:
            raise _unknown(name, [*known, *(HARMLESS if harmless else ())])
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise of_validation(error) from None


def of_validation(error: ValidationError) -> ApiError:
    """All that is wrong, at most five things of it; `param` is the first."""
    found = error.errors(include_url=False, include_context=False)
    lines = []
    for item in found[:5]:
        where = ".".join(str(part) for part in item["loc"]) or "body"
        given = "" if item["type"] == "missing" else f"={brief(item['input'])}"
        lines.append(f"{where}{given}: {item['msg']}")
    if len(found) > 5:
        lines.append(f"and {len(found) - 5} more")
    first = found[0]["loc"]
    return bad_request("; ".join(lines), ".".join(str(part) for part in first) or None)


def _check_neutral(name: str, value: object, neutral: Neutral) -> None:
    if value is None or any(type(v) is type(value) and v == value for v in neutral.values):
        return
    allowed = ", ".join(["null", *(repr(v) for v in neutral.values)])
    raise unsupported_field(name, value, f"only {allowed} is", neutral.advice)


def _unknown(name: str, known: list[str]) -> ApiError:
    close = difflib.get_close_matches(name, known, 1) if len(name) <= 64 else []
    hint = f"did you mean {close[0]!r}? " if close else ""
    return bad_request(
        f"there is no field {brief(name)}; {hint}the fields are {', '.join(sorted(known))}",
        name[:64],
        "unknown_parameter",
    )
