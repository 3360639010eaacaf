"""The experiment of the demo on a model without weights: it finds what changes, and knows what did not move."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from queueproof.cli.demo_runs import ArithmeticResult, Experiment
from queueproof.contract.axes import Axis
from tests.support.fake_backend import load_fake

PROMPTS = [[(7 * r + 3 * i) % 60 + 1 for i in range(10 + 30 * (r % 7))] for r in range(20)]


def experiment(**model: Any) -> Experiment:
    return Experiment(load_fake(eos_ids=(), **model), PROMPTS, max_tokens=24, threads=2)


def run(e: Experiment, name: str = "ieee/1") -> ArithmeticResult:
    reference = e.alone(lambda done, total: None)
    return ArithmeticResult(
        name, "portable", reference, tuple(e.along(plan, reference, lambda *_: None) for plan in e.plans)
    )


@pytest.fixture(scope="module")
def sound() -> ArithmeticResult:
    return run(experiment())


@pytest.fixture(scope="module")
def broken() -> ArithmeticResult:
    return run(experiment(broken=True))


def test_a_sound_model_changes_nothing_on_every_axis(sound: ArithmeticResult) -> None:
    assert not sound.changed
    assert {r.plan.axis for r in sound.runs} == set(Axis) - {Axis.DEVICE}


def test_every_axis_has_moved(sound: ArithmeticResult) -> None:
    assert sound.unmoved == ()
    stats = {r.plan.axis: r.stats for r in sound.runs}
    assert stats[Axis.NEIGHBOURS].largest_batch == len(PROMPTS)
    assert stats[Axis.SCHEDULE].preemptions > 0 and stats[Axis.SCHEDULE].split_prefills > 0
    assert stats[Axis.CACHE].prefix_cache_hit_tokens > 0
    assert stats[Axis.PHASE].guesses_accepted > 0


def test_the_other_runs_do_not_move_what_is_not_theirs(sound: ArithmeticResult) -> None:
    for result in sound.runs:
        assert (result.stats.prefix_cache_hit_tokens > 0) == (result.plan.axis is Axis.CACHE)
        assert (result.stats.guesses_proposed > 0) == (result.plan.axis is Axis.PHASE)
        assert (result.stats.preemptions > 0) == (result.plan.axis is Axis.SCHEDULE)


def test_a_model_that_sees_its_neighbours_is_found_out(broken: ArithmeticResult) -> None:
    assert broken.changed == set(range(len(PROMPTS)))
    neighbours = broken.runs[0]
    assert 0 < neighbours.tokens_changed <= neighbours.logprobs_changed == len(neighbours.changes)
    assert [c.request for c in neighbours.changes] == sorted(c.request for c in neighbours.changes)
    change = neighbours.changes[0]
    alone = broken.reference.answers[change.request]
    first = change.diff.first_id
    assert first is not None and alone.token_ids[:first] == change.answer.token_ids[:first]
    assert alone.token_ids[first] != change.answer.token_ids[first]


def test_a_shuffled_run_is_compared_request_by_request(sound: ArithmeticResult) -> None:
    order = next(r for r in sound.runs if r.plan.axis is Axis.ORDER)
    assert order.plan.order != tuple(range(len(PROMPTS))) and sorted(order.plan.order) == list(range(len(PROMPTS)))
    assert not order.changes


def test_threads_that_a_library_does_not_take_are_no_witness() -> None:
    @contextmanager
    def stubborn(count: int) -> Iterator[int | None]:
        yield 2

    e = Experiment(load_fake(eos_ids=()), PROMPTS[:3], max_tokens=4, threads=2, blas_threads=stubborn)
    plan = next(p for p in e.plans if p.axis is Axis.PARALLELISM)
    assert e.along(plan, e.alone(lambda *_: None), lambda *_: None).witness == 0
