"""Counts with exact intervals, several at once, and how many comparisons are needed to see a share."""

from __future__ import annotations

from scipy.special import betaincinv

from queueproof.audit.records import Interval


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
