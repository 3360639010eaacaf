"""Counts with exact intervals, several at once, and how many comparisons are needed to see a share.

The comparisons of a probe are counted as independent of one another. Those of one prompt at several loads are less than
that: a prompt with a near tie is more likely to change each time. An interval is then too narrow, not off centre.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from scipy.special import betaincinv, gammaln

from queueproof.audit import names
from queueproof.audit.records import Interval, ProbeResult


def clopper_pearson(changed: int, compared: int, level: float = 0.95) -> Interval:
    """The exact two-sided interval of a share of which `changed` of `compared` were seen (Clopper and Pearson 1934).

    Of 0 (or all) seen, the interval is one-sided at the same level: (0, 1 - (1 - level)^(1/n)).
    Raises ValueError unless 0 <= changed <= compared, compared > 0 and 0 < level < 1.
    """
    if not (0 <= changed <= compared and compared > 0 and 0 < level < 1):
        raise ValueError(f"no interval of {changed} of {compared} at level {level}")
    alpha = 1 - level
    tail = alpha if changed in (0, compared) else alpha / 2
    low = 0.0 if changed == 0 else float(betaincinv(changed, compared - changed + 1, tail))
    high = 1.0 if changed == compared else float(betaincinv(changed + 1, compared - changed, 1 - tail))
    return Interval(low, high, level)


def corrected(results: Sequence[ProbeResult], confidence: float) -> list[ProbeResult]:
    """The results with `corrected` intervals: all of them hold at once with that confidence.

    Of m probes that compared anything, each gets the level 1 - (1 - confidence)/m (Bonferroni; Holm's sharper steps
    belong to tests, see `more_than_floor`, and give no intervals).
    """
    tried = sum(1 for result in results if result.compared)
    level = 1 - (1 - confidence) / max(tried, 1)
    return [
        replace(result, corrected=clopper_pearson(result.changed, result.compared, level) if result.compared else None)
        for result in results
    ]


def fisher_greater(changed: int, compared: int, floor_changed: int, floor_compared: int) -> float:
    """The probability of `changed` or more in the first of two samples if both had one share (Fisher's exact test, 1935).

    One-sided: given the sum of both, the count of the first is hypergeometric. 1.0 where there is nothing to tell.
    """
    total, hits = compared + floor_compared, changed + floor_changed
    most = min(compared, hits)
    logs = [_choose(hits, k) + _choose(total - hits, compared - k) for k in range(changed, most + 1)]
    return min(1.0, math.fsum(math.exp(log - _choose(total, compared)) for log in logs))


def _choose(n: int, k: int) -> float:
    """log of n over k; -inf where there is none."""
    if not 0 <= k <= n:
        return -math.inf
    return float(gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1))


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Adjusted p-values (Holm 1979): reject those at or below alpha, and all together err with at most alpha."""
    ordered = sorted(p_values, key=lambda name: p_values[name])
    adjusted, worst = {}, 0.0
    for i, name in enumerate(ordered):
        worst = max(worst, min(1.0, (len(ordered) - i) * p_values[name]))
        adjusted[name] = worst
    return {name: adjusted[name] for name in p_values}


def more_than_floor(
    results: Sequence[ProbeResult], floors: Mapping[str, tuple[int, int]] | None = None
) -> dict[str, float]:
    """Of each probe that compared anything: how likely so many changes are if it changes no more than asking alone twice.

    Fisher's exact test against the probe `alone` (or the changed and compared that `floors` has for a probe), of all that
    the probe compared and, since some faults show at one load or one offset only, of each of its groups: the smallest of
    these p-values times their number. Then adjusted by Holm over the probes. Without a floor, 1.0: nothing separates them.
    """
    floor = next(((r.changed, r.compared) for r in results if r.name == names.ALONE), (0, 0))
    tried = [result for result in results if result.compared and result.name != names.ALONE]
    return holm({result.name: _strongest(result, *(floors or {}).get(result.name, floor)) for result in tried})


def _strongest(result: ProbeResult, floor_changed: int, floor_compared: int) -> float:
    if not floor_compared:
        return 1.0
    sorted_by_outcome = result.name == names.DRIFT  # its groups are no samples
    groups = result.groups if len(result.groups) > 1 and not sorted_by_outcome else ()
    counts = [(result.changed, result.compared), *((g.changed, g.compared) for g in groups)]
    return min(1.0, len(counts) * min(fisher_greater(k, n, floor_changed, floor_compared) for k, n in counts))


def needed(share: float, confidence: float = 0.95) -> int:
    """Comparisons after which, if that share of answers changes, one change was seen with that confidence.

    It is the n of (1 - share)^n <= 1 - confidence: also after how many a count of 0 has `share` as its upper bound.
    Raises ValueError unless both are between 0 and 1.
    """
    if not (0 < share < 1 and 0 < confidence < 1):
        raise ValueError(f"no number of comparisons for share {share} at confidence {confidence}")
    return math.ceil(math.log1p(-confidence) / math.log1p(-share) - 1e-12)


@dataclass(frozen=True, slots=True)
class Detection:
    """What it takes to see a share. comparisons: of each probe; rounds: over all prompts, at one comparison a prompt."""

    share: float
    confidence: float
    comparisons: int
    prompts: int
    rounds: int

    def __str__(self) -> str:
        return (
            f"to see, with {self.confidence:.0%} confidence, at least one change where {100 * self.share:g}% of all answers "
            f"change, a probe needs {self.comparisons} comparisons: {self.prompts} prompts, at most {self.rounds} rounds"
        )


def detection(share: float, confidence: float, prompts: int) -> Detection:
    """The plan for `--detect`. Raises ValueError for a share or confidence outside 0 to 1, or no prompts."""
    if prompts < 1:
        raise ValueError("no prompts")
    comparisons = needed(share, confidence)
    return Detection(share, confidence, comparisons, prompts, math.ceil(comparisons / prompts))
