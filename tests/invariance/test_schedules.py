"""The invariance fuzzer: no schedule of the real engine on real kernels changes an answer.

A draw picks requests, arrivals, policy, chunk size, pool size, block size, cache state, guesses, aborts and threads; every
answer must be the one computed alone, ids and log-probabilities bit for bit. A failing seed fails alone:
`pytest tests/invariance --seeds 1234`. Thousands on demand: `--seeds 0:5000`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from queueproof.engine.protocols import LoadedModel
from queueproof.kernels.registry import backend
from tests.support.fake_backend import FakeConfig, FakeLoaded, FakeTokenizer
from tests.support.late_backend import late
from tests.support.simulation import Alone, Found, simulate
from tests.support.tiny import TinyConfig, build

MODELS = {
    "llama": TinyConfig(hidden=144, intermediate=200, tied=False, max_len=768),
    "float16, untied, grouped": TinyConfig(seed=1, dtype="float16", tied=False, heads=6, kv_heads=1, max_len=768),
    "window": TinyConfig(seed=2, window=70, tied=False, max_len=768),
    "bias and q/k norm": TinyConfig(seed=3, bias=True, qk_norm=True, head_dim=24, max_len=768),
}
SEEDS_IN_CI = 75  # for each model
GROUP = 25


def load(arithmetic: str, config: TinyConfig) -> LoadedModel:
    door: Any = backend(arithmetic)
    vocab = config.vocab_size
    model: Any = FakeLoaded(FakeConfig(vocab, (0,)), build(door, config), FakeTokenizer(vocab), door, config.max_len)
    loaded: LoadedModel = model
    return loaded


@cache
def reference(arithmetic: str, name: str) -> tuple[LoadedModel, Alone]:
    """A model and its answers alone, for every test that asks it."""
    model = load(arithmetic, MODELS[name])
    return model, Alone(model)


def run(arithmetic: str, name: str, seeds: range, overlap: bool = False, bug: str | None = None) -> Found:
    """overlap: the same kernels behind a device that is late, so that steps overlap."""
    model: Any
    model, alone = reference(arithmetic, name)
    found = Found()
    if overlap:
        model = late(model, bug=bug)
    for seed in seeds:
        simulate(seed, model, alone, found)
    return found


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seeds" in metafunc.fixturenames:
        first, last = metafunc.config.getoption("--seeds") or (0, SEEDS_IN_CI)
        groups = [range(i, min(last, i + GROUP)) for i in range(first, last, GROUP)]
        metafunc.parametrize("seeds", groups, ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_every_answer_equals_the_one_computed_alone(name: str, seeds: range) -> None:
    found = run("ieee/1", name, seeds)
    assert not found.differences, "\n".join(found.differences[:3])
    if len(seeds) == GROUP:  # witnesses: what the draws are meant to try did happen
        stats = found.stats
        assert found.compared > 60
        assert stats.largest_batch >= 4
        assert stats.mixed_steps > 20
        assert stats.preemptions > 0
        assert stats.split_prefills > 50
        assert stats.prefix_cache_hit_tokens > 100
        assert stats.guesses_accepted > 5
        assert stats.guesses_proposed > stats.guesses_accepted
        assert found.options >= {"fcfs", "random", "longest-first", 16, 32, 64, True, False}
        assert found.options >= {"1 threads", "2 threads", "4 threads"}


@pytest.mark.slow
def test_overlapping_steps_change_no_answer() -> None:
    found = run("ieee/1", "bias and q/k norm", range(GROUP), overlap=True)
    assert not found.differences, "\n".join(found.differences[:3])
    assert found.stats.overlapped_steps > 500 and found.stats.discarded_tokens > 0 and found.stats.preemptions > 0


def test_a_device_that_takes_an_older_token_is_caught() -> None:
    """Negative control."""
    assert run("ieee/1", "bias and q/k norm", range(5), overlap=True, bug="stale").differences


def test_vendor_kernels_are_caught() -> None:
    """Negative control: the same draws on NumPy's BLAS change answers."""
    found = run("vendor", "llama", range(3))
    assert len(found.differences) > found.compared // 4
