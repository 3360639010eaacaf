"""Near ties against real disagreements."""

from __future__ import annotations

from dataclasses import replace

import pytest

from queueproof.audit import names
from queueproof.audit.judge import judged, noise
from queueproof.audit.records import Difference, ProbeResult
from tests.support.audit_results import difference, result


def _with(name: str, d: float, *differences: Difference) -> ProbeResult:
    made = result(name, ("group", len(differences), 10), differences=differences)
    return replace(made, max_logprob_difference=d)


def _judgement(margin: float | None, *others: float, position: int | None = 3) -> bool | None:
    found = judged(
        [
            *(_with(f"other {i}", d) for i, d in enumerate(others)),
            _with(names.NEIGHBOURS, 0.0, difference(margin=margin, position=position, near_tie=None)),
        ]
    )
    return found[-1].differences[0].near_tie


@pytest.mark.parametrize(
    ("margin", "near"),
    [(0.0, True), (0.04, True), (0.0401, False), (3.0, False)],
)
def test_a_margin_up_to_four_times_the_noise_is_a_near_tie(margin: float, near: bool) -> None:
    assert _judgement(margin, 0.01, 0.002) is near


def test_without_noise_only_a_tie_is_near() -> None:
    assert _judgement(0.0) is True
    assert _judgement(1e-9) is False


def test_not_told() -> None:
    assert _judgement(None, 0.01) is None
    assert _judgement(0.01, 0.01, position=None) is None


def test_noise_is_of_all_probes_but_another_endpoint() -> None:
    flip = difference(margin=1.0, near_tie=None)
    other = _with(names.AGAINST, 0.5, flip)
    mine = _with(names.CACHE, 0.01, flip)
    assert noise([other, mine]) == 0.5
    against, cache = judged([other, mine])
    assert against.differences[0].near_tie is True
    assert cache.differences[0].near_tie is False


def test_nothing_else_changes() -> None:
    before = [_with(names.CACHE, 0.01, difference(near_tie=None)), _with(names.ALONE, 0.0)]
    after = judged(before)
    assert [replace(r, differences=()) for r in after] == [replace(r, differences=()) for r in before]
    assert judged(after) == after
    assert judged([]) == []
