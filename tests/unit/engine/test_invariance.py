"""Answers do not depend on the schedule: random draws against each request computed alone."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.support.simulation import Alone, Found, fake_alone, fake_model, simulate

pytestmark = pytest.mark.xdist_group("schedules")  # they share the answers computed alone


def run(seeds: Iterable[int]) -> Found:
    model, found = fake_model(), Found()
    for seed in seeds:
        simulate(seed, model, fake_alone(), found)
    return found


@pytest.mark.parametrize(
    "seeds",
    [range(0, 40), *(pytest.param(range(i, i + 40), marks=pytest.mark.slow) for i in range(40, 280, 40))],
    ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}",
)
def test_every_answer_equals_the_one_computed_alone(seeds: range) -> None:
    found = run(seeds)
    assert not found.differences, "\n".join(found.differences[:3])
    # Witnesses: what the draws are meant to try did happen.
    stats = found.stats
    assert found.compared > 150
    assert stats.largest_batch >= 5
    assert stats.mixed_steps > 100
    assert stats.preemptions >= 4
    assert stats.split_prefills > 300
    assert stats.prefix_cache_hit_tokens > 300
    assert stats.guesses_accepted > 20
    assert stats.guesses_proposed - stats.guesses_accepted > 20
    assert found.aborted > 5
    assert found.siblings > 10
    assert found.stopped > 20
    assert found.nan_errors > 0
    assert found.options >= {"fcfs", "random", "longest-first", 16, 32, 64, True, False}


def test_a_model_that_depends_on_its_batch_is_caught() -> None:
    """Negative control: the same comparison finds a model whose logits depend on the size of the step."""
    model, found = fake_model(broken=True), Found()
    alone = Alone(model)
    for seed in range(4):
        simulate(seed, model, alone, found)
    assert len(found.differences) > found.compared // 2
