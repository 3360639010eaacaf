"""From runs to ratios: what a candidate costs against a baseline, how sure that is, and how far the baseline moved.

Turns go baseline, candidate, baseline, candidate, ..., baseline. With a_i the logarithm of a metric in the baseline's i-th
turn and b_i in the candidate's, for one seed and repeat, each round gives d_i = b_i - (a_i + a_{i+1}) / 2, from which a
drift that is even in time is gone. The ratio is exp of the mean of all d.

Its interval is Student's t over the d, widened for two things. Neighbouring rounds share a turn of the baseline: the
variance of the mean of n rounds is (4n - 1) / 3n times that of independent ones. And the candidate's turn may be off by as
much as the baseline's are from one another (a warmer machine, a start that went otherwise): the drift is added at each end.

The drift is the mean of the baseline's later half of turns over that of its earlier half (the middle one of an odd number
is in neither): with one round, its second turn over its first.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from scipy.special import stdtrit

from queueproof.audit.price.records import Comparison, Metric, Outcome, Role, Run

RESOLUTION = 0.001  # of a ratio: clocks and loops are no finer, and less than that is no disagreement
WIDE = 1.1  # an interval that holds 1 and goes as far as this, or 1 / this, says nothing

_Cell = tuple[int, int]  # seed, repeat


def compare(runs: Sequence[Run], users: Sequence[int], confidence: float) -> tuple[Comparison, ...]:
    """Every number of users in every metric, of the rounds that are whole there. Others are left out."""
    found = (_comparison([r for r in runs if r.users == n], n, metric, confidence) for n in users for metric in Metric)
    return tuple(comparison for comparison in found if comparison is not None)


def _comparison(runs: Sequence[Run], users: int, metric: Metric, confidence: float) -> Comparison | None:
    turns = _whole_turns(runs, metric)
    rounds = (len(turns) - 1) // 2
    if rounds < 1:
        return None
    cells = turns[0].keys()
    differences = [
        turns[2 * i + 1][cell] - (turns[2 * i][cell] + turns[2 * i + 2][cell]) / 2
        for i in range(rounds)
        for cell in cells
    ]
    mean, drift = statistics.fmean(differences), _drift([statistics.fmean(turn.values()) for turn in turns[::2]])
    half = _half_width(differences, rounds, abs(drift), confidence)
    counted = [run for run in runs if run.turn <= 2 * rounds]
    outcome = _outcome(mean, drift, half)
    return Comparison(
        users=users,
        metric=metric,
        outcome=outcome,
        baseline=_median(counted, Role.BASELINE, metric),
        candidate=_median(counted, Role.CANDIDATE, metric),
        seen=math.exp(mean),
        drift=math.exp(drift),
        pairs=len(differences),
        low=None if half is None else math.exp(mean - half),
        high=None if half is None else math.exp(mean + half),
        price=math.exp(mean) if outcome is Outcome.MEASURED else None,
    )


def _outcome(mean: float, drift: float, half: float | None) -> Outcome:
    if half is None:
        return Outcome.TOO_FEW
    if abs(drift) > max(abs(mean), RESOLUTION):
        return Outcome.NOISE
    holds_one, far = half >= abs(mean), half + abs(mean) > math.log(WIDE)
    return Outcome.WIDE if holds_one and far else Outcome.MEASURED


def _whole_turns(runs: Sequence[Run], metric: Metric) -> list[dict[_Cell, float]]:
    """The logarithms by turn, up to the last whole round: what an interrupted turn left is not used."""
    by_turn: dict[int, dict[_Cell, float]] = {}
    for run in runs:
        value = run.value(metric)
        if value is not None and value > 0:
            by_turn.setdefault(run.turn, {})[run.seed, run.repeat] = math.log(value)
    turns: list[dict[_Cell, float]] = []
    while (turn := by_turn.get(len(turns))) is not None and turn.keys() == by_turn[0].keys():
        turns.append(turn)
    return turns if len(turns) % 2 else turns[:-1]


def _drift(baseline: Sequence[float]) -> float:
    half = len(baseline) // 2
    return statistics.fmean(baseline[-half:]) - statistics.fmean(baseline[:half])


def _half_width(differences: Sequence[float], rounds: int, drift: float, confidence: float) -> float | None:
    count = len(differences)
    if count < 2:
        return None
    error = statistics.stdev(differences) * math.sqrt((4 * rounds - 1) / (3 * rounds) / count)
    return float(stdtrit(count - 1, (1 + confidence) / 2)) * error + drift


def _median(runs: Sequence[Run], role: Role, metric: Metric) -> float:
    return statistics.median(v for run in runs if run.role is role and (v := run.value(metric)) is not None)
