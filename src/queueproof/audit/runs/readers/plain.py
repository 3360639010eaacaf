"""JSON lines (or a list) of objects with an answer and something to find it by. The first of these keys counts:

id: id, key, custom_id, doc_id, index. prompt: prompt, question, messages, input. answer: answer, text, output, response,
completion, generated_text, prediction; or OpenAI's choices. Also: target (expected, reference), scores (an object) or
score or correct, epoch, task, model, ids (token_ids), tokens, logprobs, finish_reason, error.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from queueproof.audit.ask import Answer
from queueproof.audit.runs.model import About, Sample, Score
from queueproof.audit.runs.readers import values
from queueproof.audit.runs.readers.files import Record
from queueproof.audit.runs.readers.values import Logprobs

IDS = ("id", "key", "custom_id", "doc_id", "index")
PROMPTS = ("prompt", "question", "messages", "input")
ANSWERS = ("answer", "text", "output", "response", "completion", "generated_text", "prediction")
_TARGETS = ("target", "expected", "reference")


def recognises(value: dict[str, Any]) -> bool:
    said = _first(value, (*ANSWERS, "choices", "error"))
    return said is not None and _first(value, IDS + PROMPTS) is not None


def read(records: Iterator[Record], about: About, task: str) -> Iterator[Sample]:
    """Raises ContractError."""
    for record in records:
        where, line = record
        if not isinstance(line, dict):
            raise values.bad(where, line, "a sample is an object")
        key, asked = _first(line, IDS), _first(line, PROMPTS)
        if key is None and asked is None:
            raise values.bad(where, line, f"a sample has one of {', '.join(IDS + PROMPTS)}")
        failed = None if not line.get("error") else str(line["error"])
        about.model(line.get("model"))
        prompt = values.prompt(line[asked]) if asked else None
        target = _first(line, _TARGETS)
        epoch = line.get("epoch")
        if epoch is not None and (type(epoch) is not int or epoch < 0):
            raise values.bad(where, epoch, "an epoch is a number from 0 or 1 up")
        yield Sample(
            where=where,
            task=str(line.get("task", task)),
            id=None if key is None else str(line[key]),
            epoch=epoch,
            prompt=prompt,
            prompt_digest=values.digest(prompt),
            target=values.content(line[target]) if target else None,
            answers=() if failed else _answers(line, where),
            scores=tuple(_scores(line, where)),
            failed=failed,
        )


def _first(line: dict[str, Any], keys: tuple[str, ...]) -> str | None:
    return next((key for key in keys if line.get(key) is not None), None)


def _answers(line: dict[str, Any], where: str) -> tuple[Answer, ...]:
    if "choices" in line and _first(line, ANSWERS) is None:
        return values.choices(line, where)
    key = _first(line, ANSWERS)
    if key is None:
        raise values.bad(where, line, f"a sample has one of {', '.join(ANSWERS)}")
    said = line[key]
    if isinstance(said, dict):  # a message, or a whole response
        return values.choices(said, where) if "choices" in said else (values.answer(values.spoken(said)),)
    if isinstance(said, list) and said and all(isinstance(one, str) for one in said):
        return tuple(map(values.answer, said))
    if isinstance(said, bool | int | float):
        said = str(said)
    if not isinstance(said, str):
        raise values.bad(where, said, f"{key} is a text")
    ids = _list(line, "ids", int, where) or _list(line, "token_ids", int, where)
    tokens = _list(line, "tokens", str, where)
    if isinstance(line.get("logprobs"), dict):
        found = values.logprobs(line["logprobs"], where)
    else:
        numbers = _list(line, "logprobs", (int, float, type(None)), where)
        found = Logprobs(tokens, None if numbers is None else tuple(map(values.finite, numbers)))
    return (values.answer(said, found, line.get("finish_reason"), ids),)


def _list(line: dict[str, Any], key: str, kind: Any, where: str) -> tuple[Any, ...] | None:
    value = line.get(key)
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(item, kind) for item in value):
        raise values.bad(where, value, f"{key} is a list, an entry for each token of the answer")
    return tuple(value)


def _scores(line: dict[str, Any], where: str) -> Iterator[Score]:
    scores = line.get("scores")
    if scores is not None and not isinstance(scores, dict):
        raise values.bad(where, scores, "scores is an object: a value for each metric")
    for name, value in (scores or {}).items():
        yield values.score(str(name), value)
    for name in ("score", "correct"):
        if line.get(name) is not None:
            yield values.score(name, line[name])
