"""Chance and intervals of paired scores, against numbers known elsewhere."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, ttest_1samp

from queueproof.audit.runs.paired import binary_interval, mcnemar, paired_t

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
