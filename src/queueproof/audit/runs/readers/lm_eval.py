"""What lm-eval writes with --log_samples: samples_TASK_DATE.jsonl, and results_DATE.json beside it.

A task with several filters has a line for each filter of a question. `resps` has for each request its repeats: texts, or
[log-likelihood, is greedy] of a continuation, or the log-likelihood of a whole text; all of them written as strings.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from queueproof.audit.runs.model import About, Option, Sample, Score
from queueproof.audit.runs.readers import values
from queueproof.audit.runs.readers.files import Record
from queueproof.contract.errors import ContractError, UsageError

NAME = re.compile(r"samples_(?P<task>.+)_(?P<date>\d{4}-\d\d-\d\dT[\d.:-]+?)\.jsonl(\.gz)?")
_KNOWN = frozenset(
    {"doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "filter", "metrics"}
    | {"doc_hash", "prompt_hash", "target_hash", "task_name"}
)


def recognises(value: dict[str, Any]) -> bool:
    return "doc_id" in value and "resps" in value


def read(records: Iterator[Record], about: About, task: str) -> Iterator[Sample]:
    """Raises ContractError."""
    for record in records:
        if not isinstance(record.value, dict) or not recognises(record.value):
            raise values.bad(record.where, record.value, "a sample of lm-eval has doc_id and resps")
        try:
            yield _sample(record, task)
        except (TypeError, ValueError, KeyError, AttributeError, IndexError) as error:
            if isinstance(error, ContractError):
                raise
            raise values.bad(record.where, record.value, f"not a sample as lm-eval writes it ({error!r})") from None


def _sample(record: Record, task: str) -> Sample:
    line, where = record.value, record.where
    asked = _arguments(line.get("arguments"))
    repeats = line["resps"]
    if not isinstance(repeats, list):
        raise values.bad(where, repeats, "resps is a list with the repeats of each request")
    prompt = _prompt(asked[0][0]) if asked and asked[0] else None
    answers, options = [], []
    for i, responses in enumerate(repeats):
        arguments = asked[i] if i < len(asked) else ()
        for response in responses if isinstance(responses, list) else [responses]:
            if isinstance(response, list):  # a continuation's
                text = arguments[1] if len(arguments) > 1 and isinstance(arguments[1], str) else f"option {i + 1}"
                options.append(Option(text, _number(response[0], where), _truth(response[1:2])))
            elif len(arguments) == 1 and _is_number(response):  # of a whole text
                options.append(Option("the whole text", _number(response, where)))
            else:
                answers.append(values.answer(response if isinstance(response, str) else json.dumps(response)))
    kind = line.get("filter", "none")
    named = line["metrics"] if "metrics" in line else [key for key in line if key not in _KNOWN]
    return Sample(
        where=where,
        task=task or str(line.get("task_name") or ""),
        id=str(line["doc_id"]),
        variant=str(kind),
        document=line.get("doc_hash"),
        prompt=prompt,
        prompt_digest=values.digest(prompt),
        target=_target(line.get("target")),
        answers=tuple(answers),
        options=tuple(options),
        scores=tuple(_score(name, line[name], kind) for name in named if name in line),
    )


def _score(metric: str, value: Any, kind: str) -> Score:
    return values.score(_named(metric, kind), value)


def _named(metric: str, kind: str) -> str:
    return metric if kind == "none" else f"{metric},{kind}"


def _target(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _arguments(value: Any) -> list[list[Any]]:
    """Of each request: {"gen_args_0": {"arg_0": ..., "arg_1": ...}}, or lists in older versions."""
    if isinstance(value, dict):
        return [list(arguments.values()) for arguments in value.values()]
    return [list(arguments) for arguments in value or ()]


def _prompt(value: Any) -> str | None:
    """A context; of a chat, messages as JSON, in a list of one."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, str) and value.startswith("[{"):
        try:
            return values.prompt(json.loads(value))
        except ValueError:
            return value
    return values.prompt(value)


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def _number(value: Any, where: str) -> float | None:
    if not _is_number(value):
        raise values.bad(where, value, "a log-likelihood is a number")
    return values.finite(float(value))


def _truth(value: list[Any]) -> bool | None:
    return None if not value else value[0] in (True, "True", "true")


def folder(path: Path, about: About) -> list[tuple[Path, str]]:
    """The files of samples under a folder with their tasks: of a task with several dates the newest.

    Raises UsageError for runs of several models.
    """
    found: dict[str, tuple[str, Path]] = {}
    homes = set()
    older = 0
    for file in sorted(path.rglob("samples_*.jsonl*")):
        name = NAME.fullmatch(file.name)
        if name is None:
            continue
        homes.add(file.parent)
        task, date = name["task"], name["date"]
        older += task in found
        if task not in found or found[task][0] < date:
            found[task] = (date, file)
    if len(homes) > 1:
        names = ", ".join(sorted(str(home.relative_to(path)) for home in homes))
        raise UsageError(f"{path} has runs of lm-eval in several folders; name one of them: {names}")
    if older:
        about.notes.append(
            f"{older} older file{'s' * (older > 1)} of the same tasks left out: the newest of each was read"
        )
    return [(file, task) for task, (_, file) in sorted(found.items())]


def task_of(path: Path) -> str:
    """By the file's name; empty where it is another."""
    name = NAME.fullmatch(path.name)
    return "" if name is None else name["task"]


def add_results(path: Path, about: About) -> None:
    """What results_DATE.json of the same evaluation as a file of samples says of its model and metrics."""
    name = NAME.fullmatch(path.name)
    file = None if name is None else path.with_name(f"results_{name['date']}.json")
    if file is None or name is None or not file.exists():
        return
    try:
        results = json.loads(file.read_text(encoding="utf-8"))
        about.model(results.get("model_name"))
        for key, value in results["results"].get(name["task"], {}).items():
            metric, _, kind = key.partition(",")
            if kind and not metric.endswith("_stderr") and type(value) in (int, float):
                about.reported[name["task"], _named(metric, kind)] = float(value)
    except (OSError, ValueError, KeyError, AttributeError) as error:
        about.notes.append(f"{file.name} was not understood ({error!r})")
