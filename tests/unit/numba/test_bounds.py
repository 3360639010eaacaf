"""Kernels work on addresses: numbers that are places in memory are refused before they get there, whoever gives them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from queueproof.contract.errors import InvalidParameter
from queueproof.kernels.numba.backend import NumbaBackend, NumbaExecutor, NumbaRows
from queueproof.kernels.ops import StepBatch
from tests.support.tiny import Sequence, TinyConfig, build, limits, step

CONFIG = TinyConfig(max_len=128)
ROOM = limits(max_tokens=32, max_seqs=4, num_blocks=8, block_size=16, max_model_len=128, max_logit_rows=8)


@pytest.fixture(scope="module")
def executor() -> NumbaExecutor:
    backend = NumbaBackend()
    return backend.executor(build(backend, CONFIG), ROOM, 1)


def batch() -> StepBatch:
    return step([(Sequence(list(range(10)), [3]), 10), (Sequence(list(range(20)), [1, 2]), 20)], 16)


def set_at(name: str, index: int, value: int) -> Callable[[StepBatch], None]:
    def change(b: StepBatch) -> None:
        getattr(b, name).flat[index] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        *(set_at("token_ids", 29, v) for v in (-1, 97, 2**31 - 1)),
        *(set_at("positions", 29, v) for v in (-1, 128, 2**31 - 1)),
        *(set_at("positions", 10, v) for v in (13, 100)),  # its 20 tokens would have more keys than blocks
        *(set_at("slots", 0, v) for v in (-1, 128, 2**40)),
        *(set_at("block_tables", 3, v) for v in (-1, 8)),
        *(
            set_at("query_start", i, v)
            for i, v in ((0, 1), (0, -1), (1, 0), (1, 30), (1, 40), (1, -5), (2, 29), (2, 31))
        ),
    ],
)
def test_a_step(executor: NumbaExecutor, change: Callable[[StepBatch], None]) -> None:
    b = batch()
    change(b)
    with pytest.raises(ValueError):
        executor.forward(b)
    executor.forward(batch())


@pytest.mark.parametrize("row", [-1, 30, 2**30])
def test_logits_rows(executor: NumbaExecutor, row: int) -> None:
    executor.forward(batch())
    with pytest.raises(ValueError, match="row"):
        executor.logits(np.array([0, row], np.int32))


def test_a_rotary_table_that_is_too_short() -> None:
    backend = NumbaBackend()
    with pytest.raises(InvalidParameter, match="max_model_len"):
        backend.executor(build(backend, TinyConfig(max_len=127)), ROOM, 1)


@pytest.mark.parametrize("k", [-1, 0, 11, 300])
def test_more_ranks_than_ids(k: int) -> None:
    with pytest.raises(ValueError):
        NumbaRows(1).topk(np.zeros((1, 10), np.float32), k)
