"""Near tie or real disagreement: whether a token changed because two were about equally likely, or in spite of that.

The noise d of a run is the largest difference of a log-probability between two answers while their tokens agreed. At the
token where they part, the margin m is how far the best token's log-probability is above the second's in the first answer.
Both log-probabilities may move, in opposite directions, so a margin up to 2 d is closed by what was seen. What was seen
is the chosen tokens', and a token that is nearly certain hardly moves, whatever its logits do: d is an underestimate, and
the second-best tokens move more. Hence twice that: m <= 4 d is a near tie. Above it, rounding of the size that this
endpoint shows does not explain the change, and it is reported as a real disagreement: another path, sampler or model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from queueproof.audit import names
from queueproof.audit.records import Difference, ProbeResult

FACTOR = 4  # see above


def noise(results: Iterable[ProbeResult]) -> float:
    """The largest log-probability difference while tokens agreed. 0.0 also where nobody gave log-probabilities."""
    return max((result.max_logprob_difference for result in results), default=0.0)


def judged(results: Sequence[ProbeResult]) -> list[ProbeResult]:
    """The results with `near_tie` of each difference filled: None where no token changed or no margin is known.

    Two endpoints may differ by more than one of them moves: `against` adds to its own noise only, not to the others'.
    """
    within = noise(result for result in results if result.name != names.AGAINST)
    return [_judged(result, within) for result in results]


def _judged(result: ProbeResult, within: float) -> ProbeResult:
    d = max(within, result.max_logprob_difference)
    return replace(result, differences=tuple(_difference(difference, d) for difference in result.differences))


def _difference(difference: Difference, d: float) -> Difference:
    if difference.position is None or difference.margin is None:
        return replace(difference, near_tie=None)
    return replace(difference, near_tie=difference.margin <= FACTOR * d)
