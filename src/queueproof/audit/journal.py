"""The folder of a run: audit.json, written anew after each probe, and answers.jsonl, a line for each answer as it comes.

A run that was ended goes on from it. What is read back is checked: a record of another plan is refused.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from queueproof.audit.ask import Answer, Ask, Cache, Prompt
from queueproof.audit.records import AuditRecord
from queueproof.contract.errors import ContractError

RECORD, ANSWERS = "audit.json", "answers.jsonl"
_ASKED = ("max_tokens", "temperature", "seed", "stream", "logprobs", "cache", "namespace", "prompt_logprobs", "exact_tokens")
_SEQUENCES = frozenset({"ids", "tokens", "logprobs", "margins", "prompt_ids", "prompt_logprobs", "arrivals"})


class Journal:
    """folder: is made if it is not there. Answers are appended; a line that a killed run left half is dropped first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / ANSWERS
        if path.exists():
            _drop_half_line(path)
        self._answers = path.open("a", encoding="utf-8")

    def answered(self, answer: Answer, ask: Ask, role: str) -> None:
        """Writes an answer down."""
        self._answers.write(json.dumps(_line(answer, ask, role), ensure_ascii=False, allow_nan=False) + "\n")

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
        return AuditRecord.from_json(path.read_text(encoding="utf-8")) if path.exists() else None

    def references(self, prompts: Sequence[Prompt]) -> Iterator[tuple[Ask, Answer]]:
        """The reference answers of the run so far, of these prompts. Raises ContractError, naming the line."""
        by_key = {prompt.key: prompt for prompt in prompts}
        with (self.folder / ANSWERS).open(encoding="utf-8") as file:
            for number, text in enumerate(file, 1):
                try:
                    line = json.loads(text)
                    if line["role"] == "reference" and line["prompt"] in by_key:
                        yield _read(line, by_key[line["prompt"]])
                except (ValueError, KeyError, TypeError) as error:
                    where = f"{self.folder / ANSWERS}, line {number}"
                    raise ContractError(f"{where} is no answer of an audit: {error!r}") from None


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
