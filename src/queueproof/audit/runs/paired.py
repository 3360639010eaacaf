"""Two numbers for each sample: how likely the difference of their means is chance, and an interval of it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scipy.special import bdtr, stdtr, stdtrit

from queueproof.audit.records import Interval
from queueproof.audit.statistics import clopper_pearson


def mcnemar(up: int, down: int) -> float:
    """The two-sided exact p-value (McNemar 1947, by the binomial distribution) of so many pairs that went up and down."""
    few, moved = min(up, down), up + down
    return 1.0 if up == down else min(1.0, 2 * float(bdtr(few, moved, 0.5)))


def binary_interval(up: int, down: int, pairs: int, level: float = 0.95) -> Interval | None:
    """Of mean(b) - mean(a), scores being 0 or 1: exact, given how many pairs moved. None where none did."""
    if up + down == 0:
        return None
    share = clopper_pearson(up, up + down, level)
    moved = (up + down) / pairs
    return Interval((2 * share.low - 1) * moved, (2 * share.high - 1) * moved, level)


def paired_t(differences: Sequence[float], level: float = 0.95) -> tuple[float, Interval] | None:
    """The two-sided p-value of Student's paired t-test and the interval of the mean. None for under two, or no spread."""
    n = len(differences)
    if n < 2:
        return None
    power = _power(differences)
    scaled = [math.ldexp(d, -power) for d in differences]
    centre = mean(scaled, n)
    spread = math.sqrt(math.fsum((d - centre) ** 2 for d in scaled) / (n - 1) / n)
    if spread == 0:
        return None
    half = float(stdtrit(n - 1, (1 + level) / 2)) * spread
    try:
        interval = Interval(math.ldexp(centre - half, power), math.ldexp(centre + half, power), level)
    except OverflowError:  # of scores near the largest that there are: no interval that a file could hold
        return None
    return 2 * float(stdtr(n - 1, -abs(centre) / spread)), interval


def mean(values: Sequence[float], of: int) -> float:
    """The sum of finite values over `of`, at least as many: never beyond the largest of them, however large they are."""
    power = _power(values)
    return math.ldexp(math.fsum(math.ldexp(value, -power) for value in values) / of, power)


def _power(values: Sequence[float]) -> int:
    """Of two, by which to divide values so that none is above 1: exact, where a sum or a square would overflow."""
    return math.frexp(max(map(abs, values), default=0.0))[1]
