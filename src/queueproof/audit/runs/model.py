"""A run as every reader gives it: samples, each with what was answered and how that was scored."""

from __future__ import annotations

from dataclasses import dataclass, field

from queueproof.audit.ask import Answer


@dataclass(frozen=True, slots=True)
class Score:
    """Of one metric. value: where it is a number (NaN too); text: how the file has it, for those that are none."""

    name: str
    value: float | None
    text: str


@dataclass(frozen=True, slots=True)
class Option:
    """A continuation that was not generated but judged: its log-likelihood, and whether greedy decoding would say it."""

    text: str
    logprob: float | None
    greedy: bool | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """One question of a run and what became of it.

    where: file and line. id: as the file names it, None where it has no name that another run would give again.
    epoch: of several answers to one question, from 1; None: in the order of the file. variant: lines of a file with the
    same question and answer, but scores of their own (of lm-eval: the filter). document, prompt_digest: SHA-256, hex, of
    the question's record and of its prompt. answers: several where the model spoke several times. options: of multiple
    choice. failed: why there is no answer.
    """

    where: str
    task: str
    id: str | None
    epoch: int | None = None
    variant: str = ""
    document: str | None = None
    prompt: str | None = None
    prompt_digest: str | None = None
    target: str | None = None
    answers: tuple[Answer, ...] = ()
    options: tuple[Option, ...] = ()
    scores: tuple[Score, ...] = ()
    failed: str | None = None


@dataclass(slots=True)
class About:
    """What a reader learns of a run beside its samples. reported: by task and metric, as the run itself has it."""

    path: str
    format: str = ""
    files: list[str] = field(default_factory=list)
    models: dict[str, None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    reported: dict[tuple[str, str], float] = field(default_factory=dict)

    def model(self, name: object) -> None:
        """Takes a model's name down, once."""
        if isinstance(name, str) and name:
            self.models.setdefault(name)
