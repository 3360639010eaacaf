"""Two samples that belong together: where their answers part, and which scores moved."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from queueproof.audit import compare as answers
from queueproof.audit.ask import Answer
from queueproof.audit.runs.model import Option, Sample, Score
from queueproof.audit.runs.record import Change, Unit


@dataclass(frozen=True, slots=True)
class Compared:
    """What is between two samples' answers; see record.Difference for the fields."""

    change: Change
    unit: Unit
    a: str
    b: str
    split: int
    max_logprob_difference: float
    logprobs: bool
    turn: int = 0
    position: int | None = None
    logprob_position: int | None = None
    margin: float | None = None

    @property
    def word(self) -> int | None:
        """The word, from 0, in which the texts part: words are what white space separates."""
        if self.position is None or self.unit is Unit.OPTIONS:
            return None
        head = self.a[: self.split]
        return max(0, len(head.split()) - (bool(head) and not head[-1].isspace()))


def compare(a: Sample, b: Sample) -> Compared | None:
    """None where one of them has no answer."""
    if a.failed is not None or b.failed is not None:
        return None
    if a.options and b.options:
        return _options(a.options, b.options)
    if not a.answers or not b.answers:
        return None
    return _turns(a.answers, b.answers)


def moved(a: Score, b: Score) -> bool:
    """Whether a score changed. Not a number is the same as not a number."""
    if a.value is None or b.value is None:
        return a.value is not b.value or a.text != b.text
    return a.value != b.value and not (math.isnan(a.value) and math.isnan(b.value))


def _turns(a: Sequence[Answer], b: Sequence[Answer]) -> Compared:
    """The first turn that changed, else the first whose log-probabilities did, else the last."""
    shown: Compared | None = None
    largest, logprobs = 0.0, False
    for turn, (one, other) in enumerate(zip(a, b, strict=False)):
        found = _answers(one, other, turn)
        largest, logprobs = max(largest, found.max_logprob_difference), logprobs or found.logprobs
        if shown is None or shown.change is Change.NONE:
            shown = found
        if found.change is Change.ANSWER:
            shown = found
            break
    assert shown is not None  # there is a first turn
    if shown.change is not Change.ANSWER and len(a) != len(b):  # one of them went on
        turn = min(len(a), len(b))
        text_a, text_b = (run[turn].text if turn < len(run) else "" for run in (a, b))
        shown = Compared(Change.ANSWER, Unit.TEXT, text_a, text_b, 0, largest, logprobs, turn, position=0)
    return replace(shown, max_logprob_difference=largest, logprobs=logprobs)


def _answers(a: Answer, b: Answer, turn: int) -> Compared:
    if a.finish_reason is None or b.finish_reason is None:  # only one file says it
        a, b = replace(a, finish_reason=None), replace(b, finish_reason=None)
    found = answers.compare(a, b)
    change = Change.ANSWER if found.tokens_changed else Change.LOGPROBS if found.changed else Change.NONE
    return Compared(
        change,
        Unit(found.unit.value),
        a.text,
        b.text,
        found.split,
        found.max_logprob_difference,
        found.logprobs,
        turn,
        found.position,
        found.logprob_position,
        found.margin,
    )


def _options(a: Sequence[Option], b: Sequence[Option]) -> Compared:
    """An answer is the likeliest option (of one alone: whether greedy decoding says it)."""
    chosen_a, chosen_b = _chosen(a), _chosen(b)
    differing = [i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x.logprob != y.logprob]
    finite = [(a[i].logprob, b[i].logprob) for i in differing]
    largest = max((abs(x - y) for x, y in finite if x is not None and y is not None), default=0.0)
    single = len(a) == 1 and a[0].greedy != b[0].greedy
    changed = chosen_a != chosen_b or len(a) != len(b) or single
    first = differing[0] if differing else None
    change = Change.ANSWER if changed else Change.LOGPROBS if differing else Change.NONE
    text_a, text_b = _shown(a, chosen_a), _shown(b, chosen_b)
    return Compared(
        change,
        Unit.OPTIONS,
        text_a,
        text_b,
        _split(text_a, text_b),
        largest,
        True,
        position=chosen_a if changed else None,
        logprob_position=first,
        margin=_margin(a),
    )


def _chosen(options: Sequence[Option]) -> int:
    """The first of the likeliest."""
    return max(range(len(options)), key=lambda i: _number(options[i].logprob))


def _number(logprob: float | None) -> float:
    return -math.inf if logprob is None else logprob


def _margin(options: Sequence[Option]) -> float | None:
    best = sorted((o.logprob for o in options if o.logprob is not None), reverse=True)
    return best[0] - best[1] if len(best) > 1 else None


def _shown(options: Sequence[Option], chosen: int) -> str:
    """A line for each option; the chosen one is marked."""
    lines = []
    for i, option in enumerate(options):
        greedy = ", greedy" if option.greedy else ""
        lines.append(f"{'>' if i == chosen else ' '} {option.text.strip()} ({option.logprob}{greedy})")
    return "\n".join(lines)


def _split(a: str, b: str) -> int:
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))
