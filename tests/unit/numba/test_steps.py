"""Whole steps of a small model: the oracle's bits, for any number of threads, rows and ways to ask for logits."""

from __future__ import annotations

import numpy as np
import pytest

from queueproof.arithmetic.diff import same_bits
from queueproof.arithmetic.oracle.backend import OracleBackend
from queueproof.contract.errors import UnsupportedModel
from queueproof.kernels.numba.backend import NumbaBackend
from queueproof.kernels.ops import Act, Backend, Executor, Ops
from tests.support.instructions import THREADS
from tests.support.tiny import Sequence, TinyConfig, TinyModel, build, limits, step

CONFIGS = {
    "plain": TinyConfig(),
    "every option": TinyConfig(seed=1, dtype="float16", bias=True, qk_norm=True, tied=False, window=9),
    "one layer, tiles of dots": TinyConfig(seed=2, layers=1, heads=6, kv_heads=2, head_dim=64, hidden=64, intermediate=96),
    "gated in float16, with quarters of a panel": TinyConfig(seed=3, dtype="float16", intermediate=64, hidden=40),
}
ROOM = limits(max_tokens=64, max_seqs=4, num_blocks=12, max_model_len=96)


def executor_of(backend: Backend | OracleBackend, config: TinyConfig, threads: int = 1) -> Executor:
    made: Executor = backend.executor(build(backend, config), ROOM, threads)
    return made


def run(executor: Executor, config: TinyConfig) -> np.ndarray:
    """Logits of each step's last rows: a prefill, a chunk beside a decode, then decodes of one row and of two."""
    ids = np.random.default_rng(config.seed).integers(0, config.vocab_size, 70).tolist()
    one, other = Sequence(ids, [3, 1, 7, 8, 2]), Sequence(ids[::-1], [5, 4, 0, 9, 6])
    kept = []
    for parts in (
        [(one, 57)], [(one, 1)], [(one, 1)], [(other, 33), (one, 1)], [(one, 1), (other, 1)], [(other, 1)], [(one, 1), (other, 1)]
    ):  # fmt: skip
        executor.forward(step(parts, 16))
        kept.append(executor.logits(np.cumsum([n for _, n in parts]).astype(np.int32) - np.int32(1)).copy())
    return np.concatenate(kept)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_equals_the_oracle(config: TinyConfig) -> None:
    want = run(executor_of(OracleBackend(), config), config)
    assert np.isfinite(want).all()
    for threads in THREADS:
        assert same_bits(run(executor_of(NumbaBackend(), config, threads), config), want), threads


@pytest.mark.parametrize("threads", [1, 2])
def test_logits_may_be_asked_for_again_in_any_order_and_number(threads: int) -> None:
    config = TinyConfig(layers=3)
    executor = executor_of(NumbaBackend(), config, threads)
    ids = np.random.default_rng(5).integers(0, config.vocab_size, 40).tolist()
    executor.forward(step([(Sequence(ids, [0, 1, 2]), 40)], 16))
    whole = executor.logits(np.arange(40, dtype=np.int32)).copy()
    for rows in ([39], [0], [1, 0], list(range(39, -1, -1)), [7] * 5, [39]):
        assert same_bits(executor.logits(np.array(rows, np.int32)), whole[rows])
    assert len(np.unique(whole, axis=0)) == 40


class Late(TinyModel):
    """A model that needs all tokens after its last layer has read the cache."""

    def trunk(self, ops: Ops) -> Act:
        super().trunk(ops)
        return ops.embed(self._embedding)


def test_work_for_all_tokens_after_the_last_layers_attention_is_refused() -> None:
    backend, config = NumbaBackend(), TinyConfig()
    with pytest.raises(UnsupportedModel, match="EMBED for all tokens"):
        backend.executor(Late(backend.packer(config.dtype), config), ROOM, 1)
