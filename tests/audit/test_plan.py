"""How many prompts a budget is enough for, and which probes run."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from queueproof.audit.ask import Prompt
from queueproof.audit.book import Book
from queueproof.audit.budget import Budget
from queueproof.audit.lab import Lab, Settings
from queueproof.audit.plan import LEAST_PROMPTS, Plan, choose, digest, levels, prompts_within
from queueproof.contract.axes import Axis
from queueproof.contract.errors import InvalidParameter


@dataclass
class FakeProbe:
    name: str
    alone: float = 1.0
    together: float = 0.0
    question: str = "?"
    axis: Axis | None = None
    needs_witness: bool = True

    async def run(self, lab: Lab, book: Book) -> None: ...


PROBES = (FakeProbe("alone", 2), FakeProbe("neighbours", 1, 3), FakeProbe("order", 0, 2))


def test_levels_grow_to_the_number_of_users() -> None:
    assert [levels(n) for n in (2, 3, 8, 24, 64)] == [(2,), (2, 3), (2, 8), (2, 8, 24), (2, 8, 32, 64)]
    with pytest.raises(InvalidParameter, match="users=1 "):
        levels(1)


def test_probes_are_chosen_by_name_in_the_order_in_which_they_run() -> None:
    assert [p.name for p in choose(PROBES, ["order", "alone"])] == ["alone", "order"]
    assert choose(PROBES, None) == PROBES
    with pytest.raises(InvalidParameter, match="there are: alone, neighbours, order"):
        choose(PROBES, ["cache"])


def test_a_budget_bounds_the_prompts_and_leaves_a_few() -> None:
    plan = Plan(PROBES, Settings(), Budget(100.0))
    enough = prompts_within(plan, 1000, 0.5, 100)
    assert 0.5 * enough * (3 + 0.35 * 5) <= 100 and 30 < enough < 60
    assert prompts_within(plan, 7, 0.5, 100) == 7
    assert prompts_within(plan, 1000, 500.0, 100) == LEAST_PROMPTS and prompts_within(plan, 2, 500.0, 100) == 2
    assert prompts_within(Plan(PROBES, Settings(), Budget(None, requests=100)), 1000, 0.5, 100) == 10
    assert prompts_within(Plan(PROBES, Settings(), Budget(None, tokens=8_000)), 1000, 0.5, 100) == 8
    assert prompts_within(Plan(PROBES, Settings(), Budget(None)), 1000, 0.5, 100) == 1000
    assert prompts_within(plan, 50, 0.0, 0) == 50


def test_a_digest_tells_prompts_apart() -> None:
    a, b = Prompt("a", "chat", text="x"), Prompt("a", "chat", messages=(("user", "x"),))
    assert digest([a, b]) == digest([a, b]) and len({digest([a]), digest([b]), digest([b, a]), digest([a, b])}) == 4
