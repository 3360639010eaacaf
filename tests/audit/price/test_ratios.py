"""Ratios and their intervals, from runs with planted prices, drifts and noise."""

from __future__ import annotations

import math

import numpy as np
import pytest

from queueproof.audit.price.ratios import compare
from queueproof.audit.price.records import Comparison, Metric, Outcome, Role, Run


def run_of(turn: int, value: float, seed: int = 0, repeat: int = 0, users: int = 1, ttft: float | None = 0.1) -> Run:
    role = Role.CANDIDATE if turn % 2 else Role.BASELINE
    return Run(role, turn, users, seed, repeat, 1.0, 4, 320, 192, 0, value, ttft, 1 / value)


def turns(*values: float, seeds: int = 2) -> list[Run]:
    return [run_of(turn, value, seed) for turn, value in enumerate(values) for seed in range(seeds)]


def found(runs: list[Run], metric: Metric = Metric.TOKENS_PER_S, users: int = 1) -> Comparison:
    (it,) = [c for c in compare(runs, (users,), 0.95) if c.metric is metric]
    return it


def test_a_ratio_without_noise_is_exact() -> None:
    rate = found(turns(100.0, 50.0, 100.0, 50.0, 100.0))
    assert rate.outcome is Outcome.MEASURED and rate.price == rate.seen
    assert rate.price == pytest.approx(0.5) and rate.low == pytest.approx(0.5) and rate.high == pytest.approx(0.5)
    assert (rate.baseline, rate.candidate, rate.drift, rate.pairs) == (100.0, 50.0, 1.0, 4)
    tpot = found(turns(100.0, 50.0, 100.0), Metric.TPOT)
    assert tpot.price == pytest.approx(2.0) and tpot.baseline == pytest.approx(0.01)


def test_an_even_drift_does_not_move_the_ratio_and_widens_the_interval() -> None:
    rate = found(turns(100.0, 50.0 * 1.01, 102.01))
    assert rate.price == pytest.approx(0.5) and rate.drift == pytest.approx(1.0201)
    assert rate.low == pytest.approx(0.5 / 1.0201) and rate.high == pytest.approx(0.5 * 1.0201)


def test_no_price_where_the_baseline_is_further_from_itself_than_from_the_candidate() -> None:
    rate = found(turns(100.0, 98.0, 110.0))
    assert rate.outcome is Outcome.NOISE and rate.price is None
    assert rate.seen == pytest.approx(98 / math.sqrt(100 * 110)) and rate.drift == pytest.approx(1.1)
    assert rate.low is not None and rate.high is not None and rate.low < 0.9 < 1.0 < rate.high
    assert found(turns(100.0, 105.0, 99.0)).outcome is Outcome.MEASURED, "faster is a price too"
    same = found(turns(100.0, 100.0, 100.05))
    assert same.price == pytest.approx(1.0, abs=1e-3), "no difference, and no noise that could hide one"


def test_no_price_where_the_interval_says_nothing() -> None:
    runs = [run_of(t, v, s) for t, pair in enumerate(((100, 100), (150, 100), (100, 100))) for s, v in enumerate(pair)]
    wide = found(runs)
    assert wide.outcome is Outcome.WIDE and wide.price is None and wide.low is not None and wide.low < 1 < wide.seen
    narrow = found(
        [run_of(t, v, s) for t, p in enumerate(((100, 100), (101, 102), (100, 100))) for s, v in enumerate(p)]
    )
    assert narrow.low is not None and narrow.low < 1.0 and narrow.outcome is Outcome.MEASURED, (
        "hardly any is a price too"
    )


def test_the_drift_is_that_between_the_early_and_the_late_turns() -> None:
    assert found(turns(100.0, 50.0, 100.0, 50.0, 100.0, 50.0, 120.0)).drift == pytest.approx(math.sqrt(1.2))
    assert found(turns(100.0, 50.0, 300.0, 50.0, 120.0)).drift == pytest.approx(1.2), (
        "the middle one is in neither half"
    )


def test_only_whole_rounds_count() -> None:
    whole = turns(100.0, 50.0, 100.0)
    more = [run_of(3, 1.0, 0), run_of(3, 1.0, 1), run_of(4, 1.0, 0)]
    assert found(whole + more) == found(whole), "the second round lacks a run of its last turn"
    assert compare(whole[:-1], (1,), 0.95) == () and compare([], (1, 2), 0.95) == ()


def test_numbers_of_users_stand_apart() -> None:
    runs = turns(100.0, 50.0, 100.0) + [run_of(t, v, s, users=8) for t, v in enumerate((8.0, 2.0, 8.0)) for s in (0, 1)]
    ratios = {(c.users, c.metric): c.price for c in compare(runs, (1, 8), 0.95)}
    assert ratios[8, Metric.TOKENS_PER_S] == pytest.approx(0.25) and len(ratios) == 6


def test_what_was_not_timed_is_not_compared() -> None:
    runs = [run_of(turn, 100.0, seed, ttft=None) for turn in range(3) for seed in (0, 1)]
    assert {c.metric for c in compare(runs, (1,), 0.95)} == {Metric.TOKENS_PER_S, Metric.TPOT}


def test_one_run_a_turn_has_no_interval() -> None:
    rate = found(turns(100.0, 50.0, 100.0, seeds=1))
    assert rate.outcome is Outcome.TOO_FEW and rate.low is rate.high is rate.price is None
    assert rate.seen == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("rounds", "of_turns", "slope", "at_least"),
    [(1, 0.0, 0.0, 0.95), (3, 0.0, 0.0, 0.95), (3, 0.02, 0.0, 0.93), (4, 0.0, 0.01, 0.95)],
)
def test_the_interval_holds_the_truth(rounds: int, of_turns: float, slope: float, at_least: float) -> None:
    """Noise of each run (2%), and of whole turns, as if each began in another state of the machine; and a drift."""
    rng = np.random.default_rng(7)
    truth, held, trials = 0.7, 0, 300
    for _ in range(trials):
        runs = []
        for turn in range(2 * rounds + 1):
            level = math.log(100 * (truth if turn % 2 else 1)) + slope * turn + rng.normal(0, of_turns)
            runs += [run_of(turn, math.exp(level + rng.normal(0, 0.02)), seed) for seed in (0, 1)]
        rate = found(runs)
        assert rate.low is not None and rate.high is not None
        held += rate.low <= truth <= rate.high
    assert held >= at_least * trials
