"""Runs from files: which format it is, and its samples one after the other."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from queueproof.audit.runs.model import About, Sample
from queueproof.audit.runs.readers import guidellm, inspect_log, lm_eval, openai_batch, own, plain, vllm_bench
from queueproof.audit.runs.readers.files import Progress, Record, is_zip, no_progress, records
from queueproof.contract.errors import ContractError, QueueproofError, UsageError


class Format(NamedTuple):
    """name: for --format. title: in words. recognises: by the first value of a file."""

    name: str
    title: str
    recognises: Callable[[dict[str, Any]], bool]
    read: Callable[[Iterator[Record], About, str], Iterator[Sample]]


FORMATS = (
    Format("lm-eval", "samples of lm-eval (--log_samples)", lm_eval.recognises, lm_eval.read),
    Format("inspect", "a log of Inspect", inspect_log.recognises, inspect_log.read),
    Format("audit", "answers.jsonl of an audit", own.recognises, own.read),
    Format("openai-batch", "output of an OpenAI batch", openai_batch.recognises, openai_batch.read),
    Format("vllm-bench", "a result of vllm bench serve (--save-detailed)", vllm_bench.recognises, vllm_bench.read),
    Format("guidellm", "a report of guidellm", guidellm.recognises, guidellm.read),
    Format("plain", "JSON lines with an answer and an id or prompt", plain.recognises, plain.read),
)
NAMES = tuple(format.name for format in FORMATS)
EMPTY = "empty"


def open_run(path: Path, name: str | None = None, progress: Progress = no_progress) -> tuple[About, Iterator[Sample]]:
    """A run from a file or a folder. name: of the format; None: by content. What is said `about` it is whole at the end.

    Raises UsageError (no such file, not a run), ContractError (a malformed line, while it is read).
    """
    if name is not None and name not in NAMES:
        raise UsageError(f"no format {name!r}; known are: {', '.join(NAMES)}")
    about = About(str(path))
    if not path.exists():
        raise UsageError(f"{path} is not there")
    files = _folder(path, name, about) if path.is_dir() else [(path, lm_eval.task_of(path))]
    return about, _samples(files, name, about, progress)


def _samples(files: list[tuple[Path, str]], name: str | None, about: About, progress: Progress) -> Iterator[Sample]:
    for path, task in files:
        about.files.append(str(path))
        if name in (None, "inspect") and is_zip(path):
            about.format = "inspect"
            yield from inspect_log.read_eval(path, about, progress)
            continue
        found = records(path, progress)
        first = next(found, None)
        if first is None:
            about.format = about.format or name or EMPTY
            about.notes.append(f"{path.name} is empty")
            continue
        format = _format(path, first, name)
        about.format = format.name
        if format.name == "lm-eval":
            lm_eval.add_results(path, about)
        yield from _formed(format, itertools.chain([first], found), about, task)


def _formed(format: Format, found: Iterator[Record], about: About, task: str) -> Iterator[Sample]:
    """The samples. What has another form than a reader looked for is a ContractError that says where."""
    where = ""

    def watched() -> Iterator[Record]:
        nonlocal where
        for record in found:
            where = record.where
            yield record

    try:
        yield from format.read(watched(), about, task)
    except QueueproofError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise ContractError(f"{where} is not {format.title}, as it should be ({error!r:.200})") from None


def _format(path: Path, first: Record, name: str | None) -> Format:
    for format in FORMATS:
        if format.name == name or (name is None and isinstance(first.value, dict) and format.recognises(first.value)):
            return format
    keys = f"an object with {', '.join(map(str, first.value))}" if isinstance(first.value, dict) else repr(first.value)
    if isinstance(first.value, dict) and {"results", "configs"} <= first.value.keys():
        raise UsageError(f"{path} has the results of lm-eval without its samples: name the folder, or samples_*.jsonl")
    known = "; ".join(f"{format.name}: {format.title}" for format in FORMATS)
    raise ContractError(f"{first.where} is of no known format: {keys:.300}. Known are {known}")


def _folder(path: Path, name: str | None, about: About) -> list[tuple[Path, str]]:
    """The files of a folder's run, with their tasks. Raises UsageError where it holds none."""
    if name in (None, "lm-eval") and (files := lm_eval.folder(path, about)):
        return files
    if name in (None, "audit") and (path / "answers.jsonl").exists():
        return [(path / "answers.jsonl", "")]
    if name in (None, "inspect") and (logs := _logs(path, about)):
        return logs
    inside = ", ".join(sorted(child.name for child in path.iterdir())[:8]) or "nothing"
    looked = "samples_*.jsonl of lm-eval, answers.jsonl of an audit, logs of Inspect"
    raise UsageError(f"{path} is a folder without a run ({looked}): it has {inside}; name a file of it")


def _logs(path: Path, about: About) -> list[tuple[Path, str]]:
    newest: dict[str, Path] = {}
    older = 0
    for file in sorted(path.iterdir()):
        name = inspect_log.NAME.fullmatch(file.name)
        if name is not None:
            older += name["task"] in newest
            newest[name["task"]] = file  # names begin with the date
    if older:
        about.notes.append(
            f"{older} older log{'s' * (older > 1)} of the same tasks left out: the newest of each was read"
        )
    return [(file, "") for file in newest.values()]
