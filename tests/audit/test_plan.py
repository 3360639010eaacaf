"""How many prompts a budget is enough for, and which probes run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from queueproof.audit.ask import Answer, Prompt
from queueproof.audit.book import Book
from queueproof.audit.budget import Budget
from queueproof.audit.lab import Lab, Settings
from queueproof.audit.plan import LEAST_PROMPTS, Pace, Plan, Work, affordable, choose, digest, levels, within
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


def prompt(i: int, characters: int = 200) -> Prompt:
    return Prompt(f"p{i}", "chat", text="x" * characters)


def answer(ttft: float | None = 0.2, latency: float = 0.5, tokens: int | None = 60) -> Answer:
    completion = None if tokens is None else 32
    return Answer("p", "", "length", 0.0, latency, prompt_tokens=tokens, completion_tokens=completion, ttft=ttft)


MANY = [prompt(i) for i in range(1000)]
PACE = Pace.of([(MANY[0], answer())])


def count(budget: Budget, offered: Sequence[Prompt] = MANY, pace: Pace = PACE) -> int:
    return len(within(Plan(PROBES, Settings(), budget), offered, pace).prompts)


def test_a_pace_tells_what_an_answer_takes() -> None:
    assert PACE.seconds(MANY[5]) == pytest.approx(0.5) and PACE.tokens(MANY[5]) == pytest.approx(92)
    assert PACE.seconds(prompt(0, 20_000)) == pytest.approx(0.3 + 5010 * 0.2 / 60)
    blind = Pace.of([(MANY[0], answer(ttft=None, tokens=None))])
    assert blind.seconds(MANY[1]) == pytest.approx(0.5) and blind.tokens(MANY[1]) == 50


def test_a_budget_bounds_the_prompts_and_leaves_a_few() -> None:
    enough = count(Budget(100.0))
    assert 0.5 * enough * (3 + 0.7 * 5) <= 100 * 0.85 and 20 < enough < 40
    assert count(Budget(100.0), MANY[:7]) == 7
    slow = Pace.of([(MANY[0], answer(200.0, 500.0))])
    assert count(Budget(100.0), pace=slow) == LEAST_PROMPTS and count(Budget(100.0), MANY[:2], slow) == 2
    assert count(Budget(None, requests=100)) == 8  # crowds of 24 are filled up
    assert count(Budget(None, tokens=20_000)) == 23
    assert count(Budget(None)) == 1000


def test_crowds_are_smaller_where_not_even_a_few_prompts_fit() -> None:
    def users(latency: float, wanted: int = 24, fewer: bool = True) -> tuple[int, ...]:
        plan = Plan(PROBES, Settings(users=wanted, levels=levels(wanted)), Budget(300.0), None, fewer)
        pace = Pace.of([(MANY[0], answer(latency / 2, latency))])
        settings = affordable(plan, MANY, pace)
        assert settings.levels == levels(settings.users)
        return settings.levels

    assert users(2.0) == (2, 8, 24) and users(6.0) == (2, 8, 12) and users(10.0) == users(1000.0) == (2, 6)
    assert users(1000.0, fewer=False) == (2, 8, 24) and users(1000.0, wanted=11) == (2, 8, 11)


def test_few_prompts_cost_more_each() -> None:
    """A crowd is filled up, and a probe that takes half of many takes all of a few."""
    crowd, half, none = FakeProbe("crowd", 0, 3), FakeProbe("half", 0.5), FakeProbe("none", 0, 0)
    assert Work.of(crowd, 24, 24) == Work.of(crowd, 12, 24) == (3, pytest.approx(2.1))
    assert Work.of(crowd, 6, 24) == (6, pytest.approx(4.2))
    assert [Work.of(half, n, 24).in_time for n in (4, 8, 12, 16, 99)] == [1, 1, pytest.approx(2 / 3), 0.5, 0.5]
    assert Work.of(none, 4, 24) == (0, 0)
    assert Work.of(half, 99, 24, forgets=False).in_time == pytest.approx(0.85)
    assert Work.of(crowd, 24, 24, forgets=False) == Work.of(crowd, 24, 24)


def test_a_prompt_that_would_take_much_of_the_budget_is_left_out_by_name() -> None:
    mixed = [prompt(0), prompt(1, 20_000), *MANY[2:50], prompt(51, 20_000)]
    found = within(Plan(PROBES, Settings(), Budget(60.0)), mixed, PACE)
    assert [p.key for p in found.left_out] == ["p1"] and "p1" not in [p.key for p in found.prompts]
    assert len(found.prompts) > 10
    all_of_them = within(Plan(PROBES, Settings(), Budget(None)), mixed, PACE)
    assert all_of_them.left_out == () and len(all_of_them.prompts) == len(mixed)


def test_a_digest_tells_prompts_apart() -> None:
    a, b = Prompt("a", "chat", text="x"), Prompt("a", "chat", messages=(("user", "x"),))
    assert digest([a, b]) == digest([a, b]) and len({digest([a]), digest([b]), digest([b, a]), digest([a, b])}) == 4
