"""Intervals, tests and planning against SciPy's and against values by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, fisher_exact

from queueproof.audit.book import Book
from queueproof.audit.records import ProbeResult
from queueproof.audit.statistics import (
    clopper_pearson,
    corrected,
    detection,
    fisher_greater,
    holm,
    more_than_floor,
    needed,
)


def _result(name: str, changed: int, compared: int) -> ProbeResult:
    empty = Book(name, "?", None).close(0.0, 0, 0, False)
    return replace(empty, changed=changed, compared=compared)


@pytest.mark.parametrize("level", [0.8, 0.95, 0.999])
@pytest.mark.parametrize(("changed", "compared"), [(1, 2), (1, 24), (4, 24), (11, 24), (23, 24), (7, 1000)])
def test_interval_is_scipys_exact_one(changed: int, compared: int, level: float) -> None:
    expected = binomtest(changed, compared).proportion_ci(level, method="exact")
    found = clopper_pearson(changed, compared, level)
    assert found.low == pytest.approx(expected.low, rel=1e-9)
    assert found.high == pytest.approx(expected.high, rel=1e-9)


@pytest.mark.parametrize("compared", [1, 24, 299, 10_000])
def test_interval_of_none_and_of_all_is_one_sided(compared: int) -> None:
    one_sided = binomtest(0, compared, alternative="less").proportion_ci(0.95, method="exact")
    assert clopper_pearson(0, compared).high == pytest.approx(one_sided.high, rel=1e-9)
    assert clopper_pearson(0, compared).high == pytest.approx(1 - 0.05 ** (1 / compared), rel=1e-9)
    assert clopper_pearson(0, compared).low == 0.0
    assert clopper_pearson(compared, compared).low == pytest.approx(0.05 ** (1 / compared), rel=1e-9)
    assert clopper_pearson(compared, compared).high == 1.0


def test_rule_of_three() -> None:
    assert clopper_pearson(0, 300).high == pytest.approx(3 / 300, rel=0.01)


@pytest.mark.parametrize(("changed", "compared", "level"), [(-1, 2, 0.9), (3, 2, 0.9), (0, 0, 0.9), (0, 2, 1.0)])
def test_no_interval(changed: int, compared: int, level: float) -> None:
    with pytest.raises(ValueError, match="no interval"):
        clopper_pearson(changed, compared, level)


@given(st.integers(1, 60), st.integers(1, 60), st.data())
def test_fisher_is_scipys(n: int, m: int, data: st.DataObject) -> None:
    a, b = data.draw(st.integers(0, n)), data.draw(st.integers(0, m))
    expected = fisher_exact([[a, n - a], [b, m - b]], alternative="greater").pvalue
    assert fisher_greater(a, n, b, m) == pytest.approx(expected, rel=1e-8)


def test_fisher_by_hand() -> None:
    # 3 of 3 against 0 of 3: of C(6, 3) = 20 ways to place the three changes, one is as bad.
    assert fisher_greater(3, 3, 0, 3) == pytest.approx(1 / 20)
    assert fisher_greater(0, 10, 0, 10) == 1.0


def test_holm_by_hand() -> None:
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03}) == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06})
    assert holm({"a": 0.5, "b": 0.9}) == pytest.approx({"a": 1.0, "b": 1.0})
    assert holm({}) == {}


@given(st.dictionaries(st.text(min_size=1, max_size=3), st.floats(0, 1), max_size=8))
def test_holm_never_lowers_and_keeps_the_order(p: dict[str, float]) -> None:
    adjusted = holm(p)
    assert list(adjusted) == list(p)
    for x in p:
        assert p[x] <= adjusted[x] <= min(1.0, len(p) * p[x]) + 1e-15 or p[x] == adjusted[x]
        assert all(adjusted[x] <= adjusted[y] for y in p if p[x] <= p[y])


def test_more_than_the_floor() -> None:
    results = [
        _result("alone", 0, 24),
        _result("neighbours", 11, 24),
        _result("cache", 1, 24),
        _result("stream", 0, 24),
    ]
    found = more_than_floor(results)
    assert list(found) == ["neighbours", "cache", "stream"]
    one = fisher_greater(11, 24, 0, 24)
    assert found["neighbours"] == pytest.approx(3 * one)
    assert found["cache"] == pytest.approx(1.0)  # half of the ways to place a single change
    noisy = [_result("alone", 12, 24), _result("neighbours", 12, 24)]
    assert more_than_floor(noisy)["neighbours"] > 0.5
    assert more_than_floor(results[1:]) == {"neighbours": 1.0, "cache": 1.0, "stream": 1.0}
    assert more_than_floor([_result("alone", 0, 0), _result("cache", 1, 1)]) == {"cache": 1.0}


def test_corrected_intervals_are_for_all_at_once() -> None:
    results = corrected([_result("alone", 0, 24), _result("cache", 4, 24), _result("seeds", 0, 0)], 0.95)
    assert results[0].corrected == clopper_pearson(0, 24, 0.975)
    assert results[1].corrected == clopper_pearson(4, 24, 0.975)
    assert results[2].corrected is None
    assert corrected([], 0.95) == []


@pytest.mark.parametrize(
    ("share", "confidence", "expected"),
    [(0.01, 0.95, 299), (0.05, 0.95, 59), (0.1, 0.9, 22), (0.5, 0.75, 2), (0.001, 0.99, 4603)],
)
def test_needed_by_hand(share: float, confidence: float, expected: int) -> None:
    assert needed(share, confidence) == expected


@given(st.floats(1e-4, 0.9), st.floats(0.5, 0.999))
def test_needed_is_the_least_that_is_enough(share: float, confidence: float) -> None:
    n = needed(share, confidence)
    assert (1 - share) ** n <= (1 - confidence) * (1 + 1e-9)
    assert n == 1 or (1 - share) ** (n - 1) > (1 - confidence) * (1 - 1e-9)
    assert clopper_pearson(0, n, confidence).high <= share * (1 + 1e-6)


def test_detection_says_prompts_and_rounds() -> None:
    plan = detection(0.01, 0.95, 24)
    assert (plan.comparisons, plan.rounds) == (299, math.ceil(299 / 24))
    assert str(plan) == (
        "to see, with 95% confidence, at least one change where 1% of all answers change, a probe needs 299 "
        "comparisons: 24 prompts, at most 13 rounds"
    )


@pytest.mark.parametrize(("share", "prompts"), [(0.0, 1), (1.0, 1), (0.5, 0)])
def test_no_detection(share: float, prompts: int) -> None:
    with pytest.raises(ValueError, match="no "):
        detection(share, 0.95, prompts)
