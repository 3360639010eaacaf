"""What a probe writes down while it runs: comparisons, witnesses, trouble. Closed at any time, it is a ProbeResult."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable

from queueproof.audit.ask import Answer
from queueproof.audit.compare import Comparison, compare
from queueproof.audit.records import Difference, Group, ProbeResult, Problem, Series, Unit, Verdict, Witness
from queueproof.audit.statistics import clopper_pearson
from queueproof.contract.axes import Axis

KEPT = 40  # differences that are kept whole, of each probe
_UNITS = list(Unit)


class Book:
    """Of one probe. needs_witness: False only where nothing is varied, as in asking alone twice."""

    def __init__(
        self,
        name: str,
        question: str,
        axis: Axis | None,
        needs_witness: bool = True,
        confidence: float = 0.95,
    ) -> None:
        self.name, self.question, self.axis = name, question, axis
        self._needs_witness, self._confidence = needs_witness, confidence
        self._groups: dict[str, Group] = {}
        self._differences: list[Difference] = []
        self._unit = 0  # the worst that was used
        self._witnesses: list[Witness] = []
        self._counted: dict[tuple[str, str], tuple[int, int]] = {}
        self._notes: list[str] = []
        self._series: list[Series] = []
        self._problems: Counter[str] = Counter()
        self._examples: dict[str, str] = {}
        self._impossible: str | None = None
        self._watch: Callable[[int, int], None] | None = None

    def watch(self, watch: Callable[[int, int], None]) -> None:
        """Is told, after each comparison, how many there were and how many of them changed."""
        self._watch = watch

    @property
    def compared(self) -> int:
        """Pairs of answers so far."""
        return sum(group.compared for group in self._groups.values())

    def compare(
        self, a: Answer | None, b: Answer | None, group: str, a_name: str, b_name: str, x: float | None = None
    ) -> Comparison | None:
        """Counts two answers to one request in a group. None, and not counted, where either did not come."""
        if a is None or b is None:
            return None
        found = compare(a, b)
        self._unit = max(self._unit, _UNITS.index(found.unit))
        old = self._groups.get(group, Group(group, 0, 0, 0, 0.0, x))
        self._groups[group] = Group(
            group,
            old.compared + 1,
            old.changed + found.changed,
            old.tokens_changed + found.tokens_changed,
            max(old.max_logprob_difference, found.max_logprob_difference),
            x,
        )
        if found.changed and len(self._differences) < KEPT:
            self._differences.append(
                Difference(
                    a.prompt,
                    group,
                    found.unit,
                    a_name,
                    b_name,
                    a.text,
                    b.text,
                    found.split,
                    found.max_logprob_difference,
                    found.position,
                    found.logprob_position,
                    found.margin,
                )
            )
        if self._watch is not None:
            self._watch(self.compared, sum(g.changed for g in self._groups.values()))
        return found

    def witness(self, claim: str, source: str, value: float, needed: float) -> None:
        """Writes down what shows that the probe's thing varied: it did if value reached what was needed."""
        self._witnesses.append(Witness(claim, source, value >= needed, value, needed))

    def counted(self, claim: str, source: str, count: int, of: int, share: float) -> None:
        """A witness that is a count, and needs that share of its whole. Later ones of the same claim and source add up.

        claim: has {count} and {of} in it.
        """
        old_count, old_of = self._counted.get((claim, source), (0, 0))
        count, of = old_count + count, old_of + of
        if old_of:
            said = claim.format(count=old_count, of=old_of)
            self._witnesses = [w for w in self._witnesses if (w.claim, w.source) != (said, source)]
        self._counted[claim, source] = count, of
        self.witness(claim.format(count=count, of=of), source, count, max(1, math.ceil(share * of)))

    def no_witness(self, claim: str, why: str) -> None:
        """Says that nothing at this endpoint can show it."""
        self._witnesses.append(Witness(f"{claim}: {why}", "none", False, 0.0, 1.0))

    def impossible(self, why: str) -> None:
        """This probe cannot be made at this endpoint."""
        self._impossible = why

    def note(self, text: str) -> None:
        if text not in self._notes:
            self._notes.append(text)

    def series(self, name: str, unit: str, values: Iterable[float]) -> None:
        self._series.append(Series(name, unit, tuple(values)))

    def problem(self, kind: str, example: str) -> None:
        self._problems[kind] += 1
        self._examples.setdefault(kind, example)

    def close(self, seconds: float, requests: int, tokens: int, partial: bool) -> ProbeResult:
        """The result so far. partial: the probe was ended before it was done."""
        groups = tuple(self._groups.values())
        compared = self.compared
        changed = sum(g.changed for g in groups)
        verdict, reason = self._verdict(compared, changed, partial)
        return ProbeResult(
            name=self.name,
            question=self.question,
            verdict=verdict,
            reason=reason,
            compared=compared,
            changed=changed,
            tokens_changed=sum(g.tokens_changed for g in groups),
            max_logprob_difference=max((g.max_logprob_difference for g in groups), default=0.0),
            seconds=seconds,
            requests=requests,
            tokens=tokens,
            partial=partial,
            axis=self.axis,
            unit=_UNITS[self._unit] if compared else None,
            interval=clopper_pearson(changed, compared, self._confidence) if compared else None,
            groups=groups,
            witnesses=tuple(self._witnesses),
            differences=tuple(self._differences),
            series=tuple(self._series),
            problems=tuple(Problem(kind, count, self._examples[kind]) for kind, count in self._problems.items()),
            notes=tuple(self._notes),
        )

    def _verdict(self, compared: int, changed: int, partial: bool) -> tuple[Verdict, str]:
        if changed:
            return Verdict.CHANGES, f"{changed} of {compared} answers changed"
        if not compared:
            if self._impossible is not None:
                return Verdict.NOT_RUN, self._impossible
            if self._problems:
                return Verdict.FAILED, f"no two answers to compare: {', '.join(sorted(self._problems))}"
            return (Verdict.NOT_RUN, "ended before it began") if partial else (Verdict.INCONCLUSIVE, "nothing compared")
        still = [w for w in self._witnesses if not w.moved]
        if self._needs_witness and not self._witnesses:
            return Verdict.INCONCLUSIVE, f"0 of {compared} changed, and nothing shows that anything varied"
        if still:
            return Verdict.INCONCLUSIVE, f"0 of {compared} changed, but not shown: {still[0].claim}"
        return Verdict.HOLDS, f"0 of {compared} changed"
