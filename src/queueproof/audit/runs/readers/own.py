"""answers.jsonl of an audit. A prompt is asked many times in it, under roles: a role is a task here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from queueproof.audit.runs.model import About, Sample
from queueproof.audit.runs.readers import values
from queueproof.audit.runs.readers.files import Record
from queueproof.audit.runs.readers.values import Logprobs


def recognises(value: dict[str, Any]) -> bool:
    return {"role", "ask", "prompt", "text"} <= value.keys()


def read(records: Iterator[Record], about: About, task: str) -> Iterator[Sample]:
    """Raises ContractError."""
    for record in records:
        where, line = record
        if not isinstance(line, dict) or not recognises(line) or not isinstance(line["ask"], dict):
            raise values.bad(where, line, "an answer of an audit has role, prompt, text and ask")
        try:
            about.model(line.get("model"))
            asked = line["ask"]
            # Seeds and lengths are part of the question.
            seed = "" if asked.get("seed") is None else f", seed {asked['seed']}"
            hot = f", temperature {asked['temperature']:g}" if asked.get("temperature") else ""
            found = Logprobs(
                _tuple(line, "tokens", str),
                _numbers(line, "logprobs"),
                _numbers(line, "margins"),
                _tuple(line, "ids", int),
            )
            if not isinstance(line["text"], str):
                raise TypeError("text is no text")
            yield Sample(
                where=where,
                task=str(line["role"]),
                id=f"{line['prompt']}, {asked.get('max_tokens')} tokens{hot}{seed}",
                answers=(values.answer(line["text"], found, line.get("finish_reason")),),
            )
        except (TypeError, ValueError, KeyError, OverflowError) as error:
            raise values.bad(where, line, f"not an answer as an audit writes it ({error!r})") from None


def _tuple(line: dict[str, Any], key: str, *kinds: type) -> Any:
    value = line.get(key)
    if value is None:
        return None
    if not isinstance(value, list) or any(type(item) not in kinds for item in value):
        raise TypeError(f"{key} is no list of {' and '.join(kind.__name__ for kind in kinds)}")
    return tuple(value)


def _numbers(line: dict[str, Any], key: str) -> tuple[float | None, ...] | None:
    found = _tuple(line, key, int, float, type(None))
    return None if found is None else tuple(None if item is None else float(item) for item in found)
