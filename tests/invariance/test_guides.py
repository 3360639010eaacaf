"""Answers with a JSON schema on real kernels: no schedule changes one, whether steps overlap or not."""

from __future__ import annotations

from typing import Any

import pytest

from queueproof.kernels.registry import backend
from tests.support.fake_backend import FakeConfig, FakeLoaded, FakeTokenizer
from tests.support.guides import GUIDES, PIECES, check_followed
from tests.support.late_backend import late
from tests.support.simulation import Alone, Found, simulate
from tests.support.tiny import TinyConfig, build

pytest.importorskip("llguidance")

CONFIG = TinyConfig(seed=5, vocab_size=97, tied=False, max_len=192)


def test_no_schedule_is_seen_in_a_guided_answer() -> None:
    door: Any = backend("ieee/1")
    tokenizer = FakeTokenizer(CONFIG.vocab_size, (0,), PIECES)
    config = FakeConfig(CONFIG.vocab_size, (0,))
    model: Any = FakeLoaded(config, build(door, CONFIG), tokenizer, door, CONFIG.max_len)
    alone, found = Alone(model), Found()
    for seed in range(14):
        simulate(seed, model, alone, found, GUIDES)
        simulate(seed, late(model), alone, found, GUIDES)
    assert not found.differences, "\n".join(found.differences[:3])
    assert check_followed(found) > 10
    stats = found.stats
    assert stats.preemptions > 0 and stats.mixed_steps > 20 and stats.prefix_cache_hit_tokens > 50
    assert stats.guesses_accepted > 3 and stats.overlapped_steps > 100 and stats.largest_batch >= 4
