"""What a comparison of two runs finds, as data: the JSON of `queueproof diff` is these classes, by `contract.codec`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from queueproof.audit.records import Interval
from queueproof.audit.runs.join import By
from queueproof.contract import codec

SCHEMA_VERSION = "queueproof/diff/1"


class Outcome(StrEnum):
    """SAME: all that was joined, answers, log-probabilities and scores. NOTHING: no sample met one of the other run, or
    none of those that did has an answer in both."""

    SAME = "same"
    DIFFERENT = "different"
    NOTHING = "nothing to compare"


class Change(StrEnum):
    """Of a sample's answer. LOGPROBS: the same answer with other log-probabilities, or log-likelihoods of options."""

    NONE = "same"
    LOGPROBS = "log-probabilities"
    ANSWER = "answer"


class Unit(StrEnum):
    """By what two answers were compared: token ids, the tokens' text, the whole text, or the options of a choice."""

    IDS = "ids"
    TOKENS = "tokens"
    TEXT = "text"
    OPTIONS = "options"


@dataclass(frozen=True, slots=True)
class Side:
    """One of the runs. failed: samples without an answer for trouble of their own. path: as it was named."""

    path: str
    format: str
    files: tuple[str, ...]
    models: tuple[str, ...]
    tasks: tuple[str, ...]
    samples: int
    failed: int
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Join:
    """How samples met. by_task: tasks had to be the same. only_a, only_b: samples without a partner, of which `first_`
    names some. repeated: samples with a key and epoch that an earlier one has. asked_otherwise: joined, though the question
    is another as far as the files tell."""

    by: By
    by_task: bool
    joined: int
    only_a: int
    only_b: int
    first_only_a: tuple[str, ...]
    first_only_b: tuple[str, ...]
    repeated_a: int
    repeated_b: int
    asked_otherwise: int


@dataclass(frozen=True, slots=True)
class Units:
    """How many samples were compared by a unit."""

    unit: Unit
    samples: int


@dataclass(frozen=True, slots=True)
class Answers:
    """Of a task, or of all. compared: joined samples with an answer in both runs; failed: joined ones without.

    changed: another answer; logprobs_changed: the same answer with other log-probabilities; with_logprobs: compared samples
    that had some in both. max_logprob_difference: while the tokens agree.
    """

    task: str
    joined: int
    compared: int
    failed: int
    changed: int
    logprobs_changed: int
    with_logprobs: int
    max_logprob_difference: float
    units: tuple[Units, ...] = ()


@dataclass(frozen=True, slots=True)
class Metric:
    """A score of a task's joined samples that both runs have.

    mean_a, mean_b: over those that are finite numbers in both, `numbers` of `scored`. delta: mean_b - mean_a, the sum of
    by_answers, by_logprobs and by_neither: what samples add whose answer changed, whose log-probabilities alone did, and
    whose did not (another target or scorer). moved: scores that changed, counted likewise; target_moved: of
    moved_neither, those with another target. p: that as many go up as down by chance alone: McNemar's exact test where all
    are 0 or 1 (binary), else the paired t-test. interval: of delta, of the same kind. reported: as the runs themselves have it.
    """

    task: str
    name: str
    scored: int
    numbers: int
    binary: bool
    moved: int
    moved_with_answer: int
    moved_with_logprobs: int
    moved_neither: int
    target_moved: int
    up: int
    down: int
    mean_a: float | None = None
    mean_b: float | None = None
    delta: float | None = None
    by_answers: float | None = None
    by_logprobs: float | None = None
    by_neither: float | None = None
    p: float | None = None
    interval: Interval | None = None
    reported_a: float | None = None
    reported_b: float | None = None


@dataclass(frozen=True, slots=True)
class Reported:
    """A number that the runs themselves report, such as an aggregate that is no mean."""

    task: str
    name: str
    a: float | None = None
    b: float | None = None


@dataclass(frozen=True, slots=True)
class Move:
    """A score that changed, as the files have it."""

    name: str
    a: str
    b: str


@dataclass(frozen=True, slots=True)
class Difference:
    """A joined sample that is not the same in both runs.

    position: the first token (of text: character, of options: the one chosen in A) that differs; word: the word it is in,
    from 0. logprob_position: the first token or option with another log-probability. margin: at position, of the first
    answer's best token over its second. turn: which of several answers, from 0. a, b: the texts, which part at `split`.
    """

    task: str
    id: str
    epoch: int
    where_a: str
    where_b: str
    change: Change
    unit: Unit
    a: str
    b: str
    split: int
    max_logprob_difference: float
    moves: tuple[Move, ...]
    turn: int = 0
    position: int | None = None
    word: int | None = None
    logprob_position: int | None = None
    margin: float | None = None
    prompt: str | None = None
    target_a: str | None = None
    target_b: str | None = None


@dataclass(frozen=True, slots=True)
class DiffRecord:
    """Two runs, compared. differences: the first of them, those that moved a score before others."""

    tool: str
    outcome: Outcome
    a: Side
    b: Side
    join: Join
    total: Answers
    tasks: tuple[Answers, ...]
    metrics: tuple[Metric, ...]
    reported: tuple[Reported, ...]
    differences: tuple[Difference, ...]
    schema: str = SCHEMA_VERSION

    def to_json(self) -> str:
        """Pretty JSON in field order, with a final newline."""
        return codec.to_text(self)

    @classmethod
    def from_json(cls, text: str) -> DiffRecord:
        """Raises ContractError: not JSON, another schema, unknown or missing keys, wrong types."""
        return codec.from_text(cls, text, "record of a diff", SCHEMA_VERSION)


def json_schema() -> dict[str, Any]:
    """The JSON schema (2020-12) of a diff's record."""
    return codec.document_schema(DiffRecord, "Queueproof diff of two runs", SCHEMA_VERSION)
