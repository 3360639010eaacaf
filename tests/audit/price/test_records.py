"""price.json: its schema, and that it is read as it was written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from queueproof.audit.price.ratios import compare
from queueproof.audit.price.records import Metric, Plan, PriceResult, Side, json_schema, schema_text
from queueproof.audit.records import Problem
from queueproof.contract.errors import ContractError
from tests.audit.price.test_ratios import run_of

ROOT = Path(__file__).parents[3]


def result(*rates: float, interrupted: bool = False) -> PriceResult:
    """Of 1 and 8 users, with these tokens/s in turns: each at two seeds."""
    runs = [run_of(t, v * n, s, users=n) for t, v in enumerate(rates) for s in (0, 1) for n in (1, 8)]
    side = Side("http://a", "m", "vllm", "cache_salt", "0.32.0")
    return PriceResult(
        tool="queueproof 0",
        started="2026-01-01T00:00:00+00:00",
        seconds=12.5,
        machine="here",
        baseline=side,
        candidate=Side("http://a", "m", "vllm", "cache_salt", None, '{"a": 1}', "serve <m>", ("MODE=1",)),
        plan=Plan((1, 8), (0, 1), 1, 1, 48, 64, 0.95),
        comparisons=compare(runs, (1, 8), 0.95),
        runs=tuple(runs),
        interrupted=interrupted,
        notes=("a note",),
        problems=(Problem("429", 2, "slow down"),),
    )


def test_it_is_read_as_it_was_written() -> None:
    it = result(100.0, 50.0, 101.0)
    assert PriceResult.from_json(it.to_json()) == it
    assert it.told and not result(100.0, 99.0, 110.0).told and not result(100.0, 50.0).told
    at = it.at(Metric.TOKENS_PER_S, 8)
    assert at is not None and at.users == 8 and it.at(Metric.TTFT, 5) is None


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": "queueproof/price/9"}', '{"schema": "queueproof/price/1"}'])
def test_what_is_no_price(text: str) -> None:
    with pytest.raises(ContractError):
        PriceResult.from_json(text)


def test_the_published_schema_is_current() -> None:
    """To renew it: python -c 'from queueproof.audit.price.records import *; print(schema_text(), end="")'."""
    assert (ROOT / "docs" / "price.schema.json").read_text() == schema_text()
    assert set(json.loads(result(1.0, 2.0, 1.0).to_json())) == set(json_schema()["properties"])
