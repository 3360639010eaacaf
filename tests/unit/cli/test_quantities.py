"""Budgets and shares as they are typed."""

from __future__ import annotations

import pytest

from queueproof.audit.budget import Budget
from queueproof.cli.quantities import parse_budget, parse_share
from queueproof.contract.errors import InvalidParameter


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("300s", Budget(300.0)),
        ("5m", Budget(300.0)),
        ("1.5h", Budget(5400.0)),
        ("2000r", Budget(None, 2000)),
        ("500kt", Budget(None, None, 500_000)),
        ("5m, 2000r,1Mt", Budget(300.0, 2000, 1_000_000)),
        ("none", Budget(None)),
    ],
)
def test_a_budget_is_read(text: str, budget: Budget) -> None:
    assert parse_budget(text) == budget


@pytest.mark.parametrize("text", ["", "5", "5 minutes", "0s", "-3s", "5m,3s", "r", "1e3s", "nan", "5m;2r", "0.5r", "\u0661s", "9" * 400 + "s"])
def test_a_budget_that_is_none_names_what_is_allowed(text: str) -> None:
    with pytest.raises(InvalidParameter, match="budget="):
        parse_budget(text)


def test_a_share_is_read() -> None:
    assert parse_share("1%", "detect") == parse_share("0.01", "detect") == 0.01


@pytest.mark.parametrize("text", ["", "%", "0", "100%", "1", "-1%", "nan", "inf", "a%"])
def test_a_share_that_is_none(text: str) -> None:
    with pytest.raises(InvalidParameter, match="detect="):
        parse_share(text, "detect")
