"""Chance and intervals of paired scores, against numbers known elsewhere."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, ttest_1samp

from queueproof.audit.runs.paired import binary_interval, mcnemar, mean, paired_t

counts = st.integers(0, 60)


@given(counts, counts)
def test_mcnemar_is_a_binomial_test(up: int, down: int) -> None:
    expected = binomtest(up, up + down).pvalue if up + down else 1.0
    assert mcnemar(up, down) == pytest.approx(expected, rel=1e-9)


def test_mcnemar_known() -> None:
    assert mcnemar(0, 0) == 1.0 and mcnemar(6, 0) == 0.03125 and mcnemar(0, 6) == 0.03125


@given(counts, counts, counts)
def test_binary_interval_holds_the_difference(up: int, down: int, still: int) -> None:
    pairs = up + down + still
    interval = binary_interval(up, down, pairs) if pairs else None
    if up + down == 0:
        assert interval is None
        return
    assert interval is not None and -1 <= interval.low <= (up - down) / pairs <= interval.high <= 1
    other = binary_interval(down, up, pairs)
    assert other is not None and other.low == pytest.approx(-interval.high, abs=1e-12)


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=30))
def test_paired_t(differences: list[float]) -> None:
    found = paired_t(differences)
    if found is None:
        mean = math.fsum(differences) / len(differences)
        assert all(d == pytest.approx(mean, abs=1e-9) for d in differences)
        return
    p, interval = found
    assert 0 <= p <= 1 and interval.low <= math.fsum(differences) / len(differences) <= interval.high


def test_paired_t_known() -> None:
    values = [0.1, 0.4, -0.2, 0.3, 0.25]
    found = paired_t(values)
    expected = ttest_1samp(values, 0)
    assert found is not None and found[0] == pytest.approx(expected.pvalue)
    interval = expected.confidence_interval(0.95)
    assert (found[1].low, found[1].high) == pytest.approx((interval.low, interval.high))
    assert paired_t([1.0]) is None and paired_t([1.0, 1.0]) is None


@pytest.mark.parametrize("scale", [1e-300, 1.0, 1e154, 1.5e307])
def test_large_and_small_scores_have_the_same_chance(scale: float) -> None:
    values = [0.5, -1.0, 0.25, 2.0, 3.0]
    found, usual = paired_t([scale * v for v in values]), paired_t(values)
    assert found is not None and usual is not None
    assert found[0] == pytest.approx(usual[0], rel=1e-12)
    assert found[1].high == pytest.approx(scale * usual[1].high, rel=1e-12)


def test_the_mean_of_the_largest_scores_there_are() -> None:
    assert mean([1.7e308, 1.7e308, -1.7e308], 3) == pytest.approx(1.7e308 / 3)
    assert mean([0.1] * 10, 10) == 0.1 and mean([], 3) == 0.0
    assert paired_t([1.7e308, -1.7e308]) is None
