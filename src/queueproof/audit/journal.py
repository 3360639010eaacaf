"""The folder of a run: audit.json, written anew after each probe, and answers.jsonl, a line for each answer as it comes.

A run that was ended goes on from it. What is read back is checked: a record of another plan is refused.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Self

from queueproof.audit.ask import Answer, Ask, Cache, Prompt
from queueproof.audit.records import AuditRecord
from queueproof.contract import codec
from queueproof.contract.errors import ContractError, UsageError

RECORD, ANSWERS = "audit.json", "answers.jsonl"
_ASKED = ("max_tokens", "temperature", "seed", "stream", "logprobs", "cache", "namespace", "prompt_logprobs", "exact_tokens")
_SEQUENCES = frozenset({"ids", "tokens", "logprobs", "margins", "prompt_ids", "prompt_logprobs", "arrivals"})


class Journal:
    """folder: is made if it is not there, and is this journal's alone until it is closed. Answers are appended, each
    written as it comes; a line that a killed run left half is dropped first, and answers of a run that left no record
    are put aside. Raises UsageError where the folder cannot be used."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = folder / ANSWERS
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._answers = _alone(path)
            if not (folder / RECORD).exists() and path.stat().st_size:
                self._answers.close()
                os.replace(path, _free(folder))
                self._answers = _alone(path)
            _drop_half_line(path)
        except OSError as error:
            raise UsageError(f"{folder} cannot hold the results ({error.strerror}): name another folder") from None

    def answered(self, answer: Answer, ask: Ask, role: str) -> None:
        """Writes an answer down."""
        self._answers.write(codec.encodable_json(_line(answer, ask, role)) + "\n")

    def write(self, record: AuditRecord) -> None:
        """Replaces audit.json in one step: a reader finds the old one or the new one, whole."""
        self._answers.flush()
        new = self.folder / (RECORD + ".new")
        new.write_text(record.to_json(), encoding="utf-8")
        os.replace(new, self.folder / RECORD)

    def close(self) -> None:
        self._answers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def record(self) -> AuditRecord | None:
        """The record of the run so far, None before the first. Raises ContractError for one that cannot be read."""
        path = self.folder / RECORD
        if not path.exists():
            return None
        try:
            return AuditRecord.from_json(path.read_text(encoding="utf-8"))
        except (ContractError, UnicodeDecodeError, OSError, RecursionError) as error:
            raise ContractError(f"{path} is no record to go on from ({error}): name another folder") from None

    def references(self, prompts: Sequence[Prompt]) -> Iterator[tuple[Ask, Answer]]:
        """The reference answers of the run so far, of these prompts. Raises ContractError, naming the line."""
        by_key = {prompt.key: prompt for prompt in prompts}
        with (self.folder / ANSWERS).open("rb") as file:
            for number, text in enumerate(file, 1):
                try:
                    line = json.loads(text)
                    if line["role"] == "reference" and line["prompt"] in by_key:
                        yield _read(line, by_key[line["prompt"]])
                except (ValueError, KeyError, TypeError, RecursionError) as error:
                    where = f"{self.folder / ANSWERS}, line {number}"
                    raise ContractError(f"{where} is no answer of an audit: {error!r}") from None


def _alone(path: Path) -> IO[str]:
    """The file, open to be appended to by nobody else. Raises UsageError where another does so now."""
    file = path.open("a", encoding="utf-8", buffering=1)  # a killed run loses no answer
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise UsageError(f"another audit writes into {path.parent} now: name another folder, or wait for it") from None
    return file


def _free(folder: Path) -> Path:
    """A name for answers that are put aside."""
    number = 1
    while (path := folder / f"answers-{number}.jsonl").exists():
        number += 1
    return path


def _line(answer: Answer, ask: Ask, role: str) -> dict[str, Any]:
    said = {f.name: value for f in dataclasses.fields(answer) if (value := getattr(answer, f.name)) is not None}
    return {"role": role, **said, "ask": {name: getattr(ask, name) for name in _ASKED}}


def _read(line: dict[str, Any], prompt: Prompt) -> tuple[Ask, Answer]:
    asked = dict(line["ask"])
    asked["cache"] = Cache(asked["cache"])
    said = {key: value for key, value in line.items() if key not in ("role", "ask")}
    said = {key: tuple(value) if key in _SEQUENCES else value for key, value in said.items()}
    return Ask(prompt, **asked), Answer(**said)


def _drop_half_line(path: Path) -> None:
    with path.open("rb+") as file:
        content = file.read()
        file.truncate(content.rfind(b"\n") + 1)
