"""Counts of a comparison: by task and by metric, and the first differences."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from queueproof.audit.records import Interval
from queueproof.audit.runs import paired
from queueproof.audit.runs.compare import Compared, moved
from queueproof.audit.runs.model import Sample, Score
from queueproof.audit.runs.record import Answers, Change, Difference, Metric, Move, Reported, Unit, Units

_LONGEST = 4000  # characters of a text that a record keeps on either side of where two part
_PROMPT = 400
Numbers = Mapping[tuple[str, str], float]


@dataclass(slots=True)
class _Scores:
    """One metric of one task so far. changes: what became of the answer, by sample (index into _CHANGES)."""

    scored: int = 0
    a: array[float] = field(default_factory=lambda: array("d"))
    b: array[float] = field(default_factory=lambda: array("d"))
    changes: array[int] = field(default_factory=lambda: array("b"))
    moved: dict[Change, int] = field(default_factory=lambda: dict.fromkeys(Change, 0))
    target_moved: int = 0
    up: int = 0
    down: int = 0


_CHANGES = tuple(Change)


class Tally:
    """kept: how many differences are held on to: those that moved a score first, then other answers, then
    log-probabilities; each kind in the order of the run."""

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._tasks: dict[str, Answers] = {}
        self._scores: dict[tuple[str, str], _Scores] = {}
        self._units: Counter[tuple[str, Unit]] = Counter()
        self._found: tuple[list[Difference], ...] = ([], [], [])

    @property
    def different(self) -> bool:
        """Whether any answer, log-probability or score changed."""
        total = self.total()
        return bool(total.changed or total.logprobs_changed) or any(
            any(s.moved.values()) for s in self._scores.values()
        )

    @property
    def scored(self) -> bool:
        """Whether any score was compared."""
        return bool(self._scores)

    def add(self, a: Sample, b: Sample, found: Compared | None, name: str, epoch: int) -> None:
        """Two samples that belong together, and what is between their answers. name: what a reader knows them by."""
        task = a.task or b.task
        before = self._tasks.get(task) or Answers(task, 0, 0, 0, 0, 0, 0, 0.0)
        change = Change.NONE if found is None else found.change
        if found is not None:
            self._units[task, found.unit] += 1
        self._tasks[task] = replace(
            before,
            joined=before.joined + 1,
            compared=before.compared + (found is not None),
            failed=before.failed + (found is None),
            changed=before.changed + (change is Change.ANSWER),
            logprobs_changed=before.logprobs_changed + (change is Change.LOGPROBS),
            with_logprobs=before.with_logprobs + (found is not None and found.logprobs),
            max_logprob_difference=max(before.max_logprob_difference, found.max_logprob_difference if found else 0.0),
        )
        if a.failed is not None or b.failed is not None:
            return  # trouble is no difference, nor is a score that it got
        moves = []
        theirs = {score.name: score for score in b.scores}
        for score in a.scores:
            other = theirs.get(score.name)
            if other is not None and self._add_score(task, score, other, change, a.target != b.target):
                moves.append(Move(score.name, score.text, other.text))
        if moves or change is not Change.NONE:
            self._keep(a, b, found, name, epoch, tuple(moves))

    def _add_score(self, task: str, a: Score, b: Score, change: Change, other_target: bool) -> bool:
        scores = self._scores.setdefault((task, a.name), _Scores())
        scores.scored += 1
        if a.value is not None and b.value is not None and math.isfinite(b.value - a.value):
            scores.a.append(a.value)
            scores.b.append(b.value)
            scores.changes.append(_CHANGES.index(change))
            scores.up += b.value > a.value
            scores.down += b.value < a.value
        if not moved(a, b):
            return False
        scores.moved[change] += 1
        scores.target_moved += change is Change.NONE and other_target
        return True

    def _keep(
        self, a: Sample, b: Sample, found: Compared | None, name: str, epoch: int, moves: tuple[Move, ...]
    ) -> None:
        rank = 0 if moves else 1 if found is not None and found.change is Change.ANSWER else 2
        if len(self._found[rank]) >= self._kept:
            return
        if found is None:  # scores without answers
            found = Compared(Change.NONE, Unit.TEXT, "", "", 0, 0.0, False)
        start = max(0, found.split - _LONGEST)
        self._found[rank].append(
            Difference(
                task=a.task or b.task,
                id=name,
                epoch=epoch,
                where_a=a.where,
                where_b=b.where,
                change=found.change,
                unit=found.unit,
                a=_cut(found.a, start, found.split + _LONGEST),
                b=_cut(found.b, start, found.split + _LONGEST),
                split=found.split - start + bool(start),
                max_logprob_difference=found.max_logprob_difference,
                moves=moves,
                turn=found.turn,
                position=found.position,
                word=found.word,
                logprob_position=found.logprob_position,
                margin=found.margin,
                prompt=_cut(a.prompt or b.prompt or "", 0, _PROMPT) or None,
                target_a=a.target,
                target_b=b.target,
            )
        )

    def differences(self) -> tuple[Difference, ...]:
        """The first, those that moved a score before others."""
        return tuple(found for kind in self._found for found in kind)[: self._kept]

    def tasks(self) -> tuple[Answers, ...]:
        return tuple(replace(task, units=self._by(task.task)) for task in self._tasks.values())

    def total(self) -> Answers:
        """Of all tasks."""
        tasks = self._tasks.values()
        return Answers(
            "",
            joined=sum(t.joined for t in tasks),
            compared=sum(t.compared for t in tasks),
            failed=sum(t.failed for t in tasks),
            changed=sum(t.changed for t in tasks),
            logprobs_changed=sum(t.logprobs_changed for t in tasks),
            with_logprobs=sum(t.with_logprobs for t in tasks),
            max_logprob_difference=max((t.max_logprob_difference for t in tasks), default=0.0),
            units=self._by(None),
        )

    def _by(self, task: str | None) -> tuple[Units, ...]:
        """Of a task, or of all."""
        counts = Counter[Unit]()
        for (name, unit), samples in self._units.items():
            if task is None or name == task:
                counts[unit] += samples
        return tuple(Units(unit, samples) for unit, samples in counts.items())

    def metrics(self, reported_a: Numbers, reported_b: Numbers) -> tuple[Metric, ...]:
        return tuple(
            replace(
                _metric(*key, scores), reported_a=_finite(reported_a.get(key)), reported_b=_finite(reported_b.get(key))
            )
            for key, scores in self._scores.items()
        )

    def only_reported(self, a: Numbers, b: Numbers) -> tuple[Reported, ...]:
        """What the runs report of themselves under names that no sample's score has, where either has it."""
        keys = [key for key in dict.fromkeys([*a, *b]) if key not in self._scores]
        return tuple(
            Reported(task, name, _finite(a.get((task, name))), _finite(b.get((task, name)))) for task, name in keys
        )


def _metric(task: str, name: str, scores: _Scores) -> Metric:
    n = len(scores.a)
    metric = Metric(
        task,
        name,
        scored=scores.scored,
        numbers=n,
        binary=n > 0 and {*scores.a, *scores.b} <= {0.0, 1.0},
        moved=sum(scores.moved.values()),
        moved_with_answer=scores.moved[Change.ANSWER],
        moved_with_logprobs=scores.moved[Change.LOGPROBS],
        moved_neither=scores.moved[Change.NONE],
        target_moved=scores.target_moved,
        up=scores.up,
        down=scores.down,
    )
    if not n:
        return metric
    differences = [y - x for x, y in zip(scores.a, scores.b, strict=True)]
    parts = {
        change: paired.mean([d for d, c in zip(differences, scores.changes, strict=True) if c == i], n)
        for i, change in enumerate(_CHANGES)
    }
    p, interval = _chance(metric, differences)
    return replace(
        metric,
        mean_a=paired.mean(scores.a, n),
        mean_b=paired.mean(scores.b, n),
        delta=paired.mean(differences, n),
        by_answers=parts[Change.ANSWER],
        by_logprobs=parts[Change.LOGPROBS],
        by_neither=parts[Change.NONE],
        p=p,
        interval=interval,
    )


def _chance(metric: Metric, differences: list[float]) -> tuple[float | None, Interval | None]:
    if metric.binary:
        interval = paired.binary_interval(metric.up, metric.down, metric.numbers)
        return paired.mcnemar(metric.up, metric.down), interval
    found = paired.paired_t(differences)
    return (None, None) if found is None else found


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _cut(text: str, start: int, end: int) -> str:
    """Of a long text, the part from start to end."""
    return ("…" if start else "") + text[start:end] + ("…" if end < len(text) else "")
