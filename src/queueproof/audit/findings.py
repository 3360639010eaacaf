"""What attribution reads: the counts of all probes, against what changes anyway."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from queueproof.audit import names
from queueproof.audit.records import Difference, EndpointIdentity, Group, ProbeResult, Verdict
from queueproof.audit.statistics import clopper_pearson, fisher_greater, more_than_floor

WEAK = 0.25  # a p-value above it is no hint at all

_FIRST = "the first answer"
_CANNOT_FORGET = (None, "unique prefix")
_SETTLED = (names.CACHE, names.STREAM, names.LOGPROBS)  # where nothing forgets, these ask both sides anew

# Greedy probes: where one of these changes a token although everything before was equal, the choice of the token did it.
GREEDY = (
    names.ALONE,
    names.NEIGHBOURS,
    names.ORDER,
    names.LOAD,
    names.LENGTHS,
    names.CACHE,
    names.STREAM,
    names.DRIFT,
)


class Count(NamedTuple):
    """So many changed of so many compared."""

    changed: int
    compared: int

    @property
    def held(self) -> bool:
        return self.compared > 0 and self.changed == 0


def p_value(count: Count, control: Count) -> float:
    """How likely that many are if both had one share; 1.0 without a control."""
    return fisher_greater(*count, *control) if control.compared else 1.0


class Findings:
    """The results of a run by name. alpha: 1 minus the confidence of its intervals."""

    def __init__(self, results: Sequence[ProbeResult], identity: EndpointIdentity) -> None:
        self.identity = identity
        self.results = {result.name: result for result in results}
        self.level = next((r.interval.level for r in results if r.interval is not None), 0.95)
        self.alpha = 1 - self.level
        self.p = more_than_floor(results, {name: self.floor_of(name) for name in self.results})

    def groups(self, probe: str) -> tuple[Group, ...]:
        """In the order in which they were first asked; those that compared something."""
        result = self.results.get(probe)
        return tuple(group for group in result.groups if group.compared) if result is not None else ()

    def count(self, probe: str, *groups: str) -> Count:
        """Of these groups of a probe together; of all that it compared where none is named."""
        result = self.results.get(probe)
        if result is None:
            return Count(0, 0)
        if not groups:
            return Count(result.changed, result.compared)
        return total(group for group in result.groups if group.name in groups)

    @property
    def floor(self) -> Count:
        return self.count(names.ALONE)

    @property
    def cannot_forget(self) -> bool:
        """A prompt's first ask is cold, and the later ones are what the cache made of them."""
        return self.identity.cold_by in _CANNOT_FORGET

    def two_answers(self) -> tuple[int, int]:
        """Of prompts that got more than one answer alone: how many got two of them, each twice, and how many a third one.

        From the differences of `alone` and `drift`, which ask a prompt up to five times; 0, 0 where not all were kept. Two
        answers are one if text, place and size of their difference from the first are. Chance repeats no answer with its
        log-probabilities; one that is off among equal ones is not twice there.
        """
        second, third = self._of_alone(names.SECOND), self._of_alone(names.THIRD)
        end = {d.prompt: (_pair(d), d.group) for d in self._differences(names.DRIFT)}
        twice = more = 0
        for prompt in second.keys() | third.keys() | end.keys():
            seen: Counter[object] = Counter([_FIRST])
            of_second: object = second.get(prompt, _FIRST)
            seen[of_second] += 1
            if prompt in third:
                seen[_FIRST if third[prompt] == of_second else third[prompt]] += 1
            elif prompt in second:
                seen[of_second] += 1
            if prompt in end:
                pair, group = end[prompt]
                seen[pair] += 2 if group == names.FOR_GOOD else 1
                seen[_FIRST] += group == names.BACK_AND_FORTH
            twice += len(seen) == 2 and min(seen.values()) > 1
            more += len(seen) > 2
        return twice, more

    def _of_alone(self, group: str) -> dict[str, tuple[object, ...]]:
        return {d.prompt: _pair(d) for d in self._differences(names.ALONE) if d.group == group}

    def _differences(self, probe: str) -> tuple[Difference, ...]:
        """All of a probe, or none where some were not kept."""
        result = self.results.get(probe)
        return result.differences if result is not None and len(result.differences) == result.changed else ()

    def first_asks(self, limit: float = WEAK) -> tuple[Count, Count] | None:
        """Whether only what was asked first is special: no prompt's answer alone changes more than once, or back.

        Returns what then changes anyway against a first ask, and against a later one. limit: of the probability of that
        by chance; an answer that changes stays as it is with 1/2, at most.
        """
        second, third = self.count(names.ALONE, names.SECOND), self.count(names.ALONE, names.THIRD)
        if third.held:
            once = bool(second.changed)
        else:
            changed_then = self._of_alone(names.SECOND)
            once = bool(changed_then) and not changed_then.keys() & self._of_alone(names.THIRD).keys()
        if not once or not third.compared or 0.5**second.changed > limit:
            return None
        # Where second asks were still special, so were all first ones before them.
        stale = second.changed if third.held else second.compared
        return Count(stale, second.compared), Count(0, third.compared)

    def floor_of(self, probe: str) -> Count:
        """What changes anyway in this probe. Where only first asks are special, those that compare with them are too."""
        special = self.first_asks()
        if special is None:
            return self.floor
        pairs_of_its_own = probe == names.SEEDS or (self.cannot_forget and probe in _SETTLED)
        return special[1] if pairs_of_its_own else special[0]

    @property
    def drifted(self) -> bool:
        """The same requests alone are answered otherwise at the end of the run, more than they are anyway."""
        return self._beyond(self.count(names.DRIFT), self.floor_of(names.DRIFT))

    def above(self, probe: str, count: Count) -> bool:
        """Changes that neither asking alone twice nor the endpoint's change during the run accounts for."""
        baselines = [self.floor_of(probe)]
        if self.drifted and probe != names.DRIFT:
            baselines.append(self.count(names.DRIFT))
        return count.changed > 0 and all(self._beyond(count, baseline) for baseline in baselines)

    def _beyond(self, count: Count, baseline: Count) -> bool:
        return count.changed > 0 and (baseline.changed == 0 or p_value(count, baseline) <= self.alpha)

    def more(self, probe: str) -> bool:
        """The probe as a whole, or one of its groups, is above what changes anyway."""
        if self.floor_of(probe).changed == 0 and not self.drifted:
            return self.count(probe).changed > 0
        worst = [Count(group.changed, group.compared) for group in self.groups(probe)]
        return self.p.get(probe, 1.0) <= self.alpha and any(self.above(probe, c) for c in (self.count(probe), *worst))

    def certain(self, probe: str) -> bool:
        return self.p.get(probe, 1.0) <= self.alpha

    def proven(self, probe: str) -> bool:
        """Its witnesses show that its thing varied."""
        result = self.results.get(probe)
        return result is not None and bool(result.witnesses) and all(w.moved for w in result.witnesses)

    def holds(self, probe: str) -> bool:
        result = self.results.get(probe)
        return result is not None and result.verdict is Verdict.HOLDS

    def sampled(self, probe: str) -> int:
        """Changes that only the choice of a token explains, or 0 where less than nine tenths of the tellable ones are that.

        Tellable are those after the first token, with log-probabilities: all before them were equal to the last bit, and
        the token taken was not the best by a margin that nothing seen here closes.
        """
        result = self.results.get(probe)
        if result is None or probe not in GREEDY or not 0 < result.changed == result.tokens_changed:
            return 0
        tellable = [d for d in result.differences if d.position and d.margin is not None]
        chosen = [d for d in tellable if d.max_logprob_difference == 0 and d.near_tie is False]
        return len(chosen) if chosen and len(chosen) >= 0.9 * len(tellable) else 0

    def say(self, label: str, count: Count) -> str:
        """`label: 11 of 24 changed (26% to 67%)`."""
        low, high = (100 * share for share in _bounds(count, self.level))
        said = " to ".join(f"{bound:.0f}%" if bound >= 10 else f"{bound:.2g}%" for bound in (low, high))
        return f"{label}: {count.changed} of {count.compared} changed ({said})"


def total(groups: Iterable[Group]) -> Count:
    changed = compared = 0
    for group in groups:
        changed, compared = changed + group.changed, compared + group.compared
    return Count(changed, compared)


def _bounds(count: Count, level: float) -> tuple[float, float]:
    if not count.compared:
        return 0.0, 1.0
    interval = clopper_pearson(count.changed, count.compared, level)
    return interval.low, interval.high


def _pair(difference: Difference) -> tuple[object, ...]:
    texts = frozenset((difference.a, difference.b))
    return texts, difference.position, difference.logprob_position, difference.max_logprob_difference
