"""A whole small model on the kernels: logits, tokens and log-probabilities are the oracle's, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from queueproof.arithmetic.diff import same_bits
from queueproof.arithmetic.oracle.tensorcore.backend import OracleTensorcoreBackend
from queueproof.kernels.ops import Backend, DrawBatch, Drawn
from queueproof.kernels.triton.backend import TritonBackend
from queueproof.kernels.triton.card import find_card, interpreted_card
from tests.support.tiny import Sequence, TinyConfig, build, limits, step
from tests.support.triton_cpu import Exp2

CONFIGS = {
    "plain": TinyConfig(layers=1),
    "every option": TinyConfig(seed=1, layers=1, dtype="float16", bias=True, qk_norm=True, tied=False, window=9),
}
WAYS = DrawBatch(
    tokens=np.array([-1, 5, -1], np.int32),
    temperature=np.array([0, 1, 0.8], np.float32),
    top_k=np.array([0, 0, 20], np.int32),
    top_p=np.array([1, 1, 0.9], np.float32),
    min_p=np.array([0, 0, 0.01], np.float32),
    seed=np.array([1, 2, 2**63 + 3], np.uint64),
    position=np.array([23, 2**33, 24], np.int64),
    top=2,
)


def run(backend: Backend, config: TinyConfig) -> tuple[np.ndarray, Drawn]:
    """A prefill, a chunk beside a decode, and two decodes: the last rows of each, and what is drawn of them."""
    ids = np.random.default_rng(config.seed).integers(0, config.vocab_size, 24).tolist()
    executor = backend.executor(build(backend, config), limits(max_tokens=32, max_seqs=4), 1)
    rows = backend.rows(1)
    one, other = Sequence(ids, [3, 1]), Sequence(ids[::-1], [50, 51])
    kept = []
    for parts in ([(one, 20)], [(other, 17), (one, 1)], [(one, 1), (other, 1)]):
        executor.forward(step(parts, 16))
        last = np.cumsum([n for _, n in parts]).astype(np.int32) - 1
        logits = executor.logits(np.resize(last, 3))
        kept.append(rows.host(logits))
        drawn = rows.draw(logits, WAYS).result()
    executor.close()
    return np.stack(kept), drawn


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_equals_the_oracle(device: str, exp2: Exp2, config: TinyConfig) -> None:
    card = find_card() if device == "cuda" else interpreted_card()
    logits, drawn = run(TritonBackend(card), config)
    want_logits, want = run(OracleTensorcoreBackend(card.family, exp2), config)
    assert np.isfinite(logits).all() and same_bits(logits, want_logits)
    for field in ("tokens", "logprobs", "lse", "ranks", "top_ids", "top_logprobs"):
        assert same_bits(getattr(drawn, field), getattr(want, field)), field
