"""Weights kept 8- and 4-bit give the bits of the 16-bit values that the loader would have made of them."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

from queueproof.arithmetic.bits import round16_bits, widen
from queueproof.arithmetic.diff import same_bits
from queueproof.arithmetic.oracle import layers
from queueproof.kernels.numba.linear import FEW_ROWS, ROWS_TASK
from queueproof.kernels.numba.microkernel import PANEL
from queueproof.kernels.numba.packed import PackedMatrix, pack, pack_blocks
from queueproof.kernels.numba.program import Op, StepWord
from queueproof.kernels.numba.quantised import KINDS
from queueproof.kernels.numba.recorder import address
from tests.support.instructions import THREADS, poison, run
from tests.unit.numba.test_linear import product, products

EDGES = np.array([0.0, -0.0, 2.0**-24, -(2.0**-24), 2.0**-14, 65504.0, -65504.0, 1.0], np.float16)


def stored(rng: np.random.Generator, n: int, k: int, kind: str) -> np.ndarray:
    """u8 [n, bytes of a row]: any quants, scales of every size and sign."""
    block, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    raw = rng.integers(0, 256, (n, k // block, size)).astype(np.uint8)
    scales = KINDS[kind].scales
    numbers = (rng.standard_normal((n, k // block, scales)) * 2.0 ** rng.integers(-20, 8, (n, k // block, 1))).astype(
        np.float16
    )
    numbers[0].flat[: EDGES.size] = EDGES[: numbers[0].size]
    raw[:, :, : 2 * scales] = numbers.view(np.uint8)
    return raw.reshape(n, -1)


def both(n: int, k: int, kind: str, seed: int, cut: int) -> tuple[PackedMatrix, PackedMatrix, np.ndarray]:
    """The matrix kept as it is, the same in 16 bits, and its values as the loader makes them."""
    raw = stored(np.random.default_rng(seed), n, k, kind)
    values = round16_bits(dequantize(raw, GGMLQuantizationType[kind]), "bfloat16")
    bias = np.random.default_rng(seed).standard_normal(n).astype(np.float32)
    kept = pack_blocks(n, k, kind, [raw[:cut], raw[cut:]], bias)
    return kept, pack(n, k, [values], "bfloat16", bias), values


@pytest.mark.parametrize("kind", KINDS)
def test_every_value(kind: str) -> None:
    n, k = 3 * PANEL + 5, 256
    kept, _, values = both(n, k, kind, 1, 7)
    unrounded = dequantize(stored(np.random.default_rng(1), n, k, kind), GGMLQuantizationType[kind])
    assert not same_bits(unrounded, widen(values, "bfloat16"))  # the comparison below would see a missing rounding
    ids = np.random.default_rng(2).permutation(n).astype(np.int32)
    step = {StepWord.ROWS: n, StepWord.TOKEN_IDS: address(ids)}
    for threads in THREADS:
        out = poison(n, k)
        run(Op.EMBED, threads, address(kept.data), k, address(out), kept.kind, step=step)
        assert same_bits(out, widen(values, "bfloat16")[ids])


@pytest.mark.parametrize("kind", KINDS)
def test_each_value_in_registers(kind: str) -> None:
    """Products with rows of the identity are the weights themselves (zeros lose their sign in a sum)."""
    n, k = PANEL + 3, 96
    kept, _, values = both(n, k, kind, 3, n)
    want = widen(values, "bfloat16").T + np.float32(0)
    plain = PackedMatrix(n, k, "bfloat16", kept.data, None, kept.needs, kept.kind)
    assert same_bits(product(np.eye(k, dtype=np.float32), plain, 1), want)
    assert same_bits(product(np.eye(k, dtype=np.float32)[:1], plain, 1), want[:1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", [32, 64, 96, 256, 320, 576, 1536])
def test_products(kind: str, k: int) -> None:
    rng = np.random.default_rng(k)
    n = 4 * PANEL + 9
    kept, halves, _ = both(n, k, kind, k, 11)
    assert kept.data.nbytes < 0.55 * halves.data.nbytes
    for m in (1, 2, 3, 7, FEW_ROWS, FEW_ROWS + 1, ROWS_TASK + 1):
        x = widen(round16_bits(rng.standard_normal((m, k)).astype(np.float32), "bfloat16"), "bfloat16")
        want = product(x, halves, 1)
        for threads in THREADS:
            assert same_bits(product(x, kept, threads), want), (m, threads)


@pytest.mark.parametrize("kind", KINDS)
def test_gated_products(kind: str) -> None:
    kept, halves, _ = both(4 * PANEL, 320, kind, 6, 11)
    for m in (FEW_ROWS + 1, ROWS_TASK + 1):
        x = widen(round16_bits(np.random.default_rng(m).standard_normal((m, 320)).astype(np.float32), "bfloat16"), "bfloat16")
        want = layers.silu_mul(product(x, halves, 1), "bfloat16")
        for threads in THREADS:
            assert same_bits(products(x, kept, threads, gated=True)[1], want), (m, threads)


def test_slices_that_do_not_add_up() -> None:
    raw = stored(np.random.default_rng(4), 8, 64, "Q4_0")
    with pytest.raises(ValueError, match="8 rows given for a matrix"):
        pack_blocks(9, 64, "Q4_0", [raw], None)
    with pytest.raises(ValueError, match="does not continue row 0"):
        pack_blocks(8, 96, "Q4_0", [raw], None)
