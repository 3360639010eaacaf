"""A whole small model on the oracle: its logits depend on nothing but the tokens before them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queueproof.arithmetic.diff import same_bits
from queueproof.arithmetic.oracle.backend import OracleBackend
from tests.support.tiny import Sequence, TinyConfig, build, limits, step

OPTIONS = [
    TinyConfig(),
    TinyConfig(seed=1, dtype="float16", bias=True),
    TinyConfig(seed=2, qk_norm=True, tied=False),
    TinyConfig(seed=3, window=20, heads=2, kv_heads=2),
]


def blocks_for(length: int, block_size: int, rng: np.random.Generator) -> list[int]:
    """Scattered blocks of the pool."""
    return rng.permutation(96)[: -(-length // block_size)].tolist()


def alone(config: TinyConfig, ids: list[int]) -> np.ndarray:
    """Logits [len(ids), V] of one sequence computed in one step."""
    executor = OracleBackend().executor(build(OracleBackend(), config), limits(), threads=1)
    sequence = Sequence(ids, blocks_for(len(ids), 16, np.random.default_rng(0)))
    executor.forward(step([(sequence, len(ids))], 16))
    return executor.logits(np.arange(len(ids), dtype=np.int32))


@pytest.mark.parametrize("config", OPTIONS, ids=["plain", "bias-f16", "qk-norm-untied", "window"])
def test_options_run_and_matter(config: TinyConfig) -> None:
    ids = np.random.default_rng(config.seed).integers(0, 97, 70).tolist()
    logits = alone(config, ids)
    assert logits.shape == (70, 97) and logits.dtype == np.float32
    assert np.isfinite(logits).all()
    plain = TinyConfig(seed=config.seed, dtype=config.dtype, heads=config.heads, kv_heads=config.kv_heads)
    if plain != config:
        other = alone(plain, ids)
        assert not same_bits(logits[-1], other[-1])
    if config.window:
        assert same_bits(logits[:20], alone(plain, ids)[:20]), "the window is not full yet"


def test_two_neighbours_in_pieces() -> None:
    config = OPTIONS[0]
    rng = np.random.default_rng(4)
    texts = [rng.integers(0, 97, n).tolist() for n in (67, 40)]
    expected = [alone(config, ids) for ids in texts]
    free = rng.permutation(96).tolist()
    a, b = Sequence(texts[0], free[:5]), Sequence(texts[1], free[5:8])
    executor = OracleBackend().executor(build(OracleBackend(), config), limits(), threads=1)
    for parts in ([(a, 3)], [(b, 39), (a, 60)], [(a, 1), (b, 1)], [(a, 3)]):
        before = {id(seq): seq.done for seq, _ in parts}
        batch = step(parts, 16)
        executor.forward(batch)
        got = executor.logits(np.arange(len(batch.token_ids), dtype=np.int32))
        for row, (seq, n) in enumerate(parts):
            start = before[id(seq)]
            rows = got[batch.query_start[row] : batch.query_start[row + 1]]
            assert same_bits(rows, expected[0 if seq is a else 1][start : start + n])


@given(
    st.sampled_from([16, 32, 64]),
    st.lists(st.integers(1, 30), min_size=1, max_size=4),
    st.sampled_from(OPTIONS),
    st.integers(0, 2**32 - 1),
)
@settings(deadline=None, max_examples=12)
def test_block_size_and_chunks_do_not_matter(block_size: int, chunks: list[int], config: TinyConfig, seed: int) -> None:
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, 97, sum(chunks)).tolist()
    expected = alone(config, ids)
    sequence = Sequence(ids, blocks_for(len(ids), block_size, rng))
    executor = OracleBackend().executor(build(OracleBackend(), config), limits(block_size=block_size), threads=1)
    start = 0
    for n in chunks:
        executor.forward(step([(sequence, n)], block_size))
        got = executor.logits(np.arange(n, dtype=np.int32))
        assert same_bits(got, expected[start : start + n])
        start += n


def test_misuse_is_an_error() -> None:
    backend = OracleBackend()
    packer = backend.packer("bfloat16")
    with pytest.raises(ValueError, match="2 rows, the matrix 3"):
        packer.matrix(3, 4, [np.zeros((2, 4), np.uint16)])
    executor = backend.executor(build(backend, TinyConfig()), limits(), threads=1)
    with pytest.raises(ValueError, match="before the first forward"):
        executor.logits(np.zeros(1, np.int32))
    assert backend.kv_bytes_per_token(build(backend, TinyConfig()).kv_shape) == 2 * 2 * 2 * 16 * 4
