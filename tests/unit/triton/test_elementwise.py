"""Everything between the matrix products is the oracle's, bit for bit, for any size, any values and any number of warps."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from queueproof.arithmetic.bits import round16_bits, widen
from queueproof.arithmetic.diff import same_bits
from queueproof.arithmetic.oracle import layers as ieee
from queueproof.arithmetic.oracle.numbers import round16
from queueproof.arithmetic.oracle.tensorcore import layers
from queueproof.kernels.triton import elementwise

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
EPS = 1e-6


def f32(device: str, x: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.array(x, np.float32)).to(device)


def i32(device: str, x: list[int]) -> torch.Tensor:
    return torch.tensor(x, dtype=torch.int32, device=device)


def h16(device: str, x: np.ndarray, dtype: str) -> torch.Tensor:
    """Rounded."""
    bits = torch.from_numpy(round16_bits(x, dtype).view(np.int16))
    return bits.to(device).view(DTYPES[dtype])


def read(x: torch.Tensor) -> np.ndarray:
    """f32 values on the host."""
    return x.float().cpu().numpy()


def empty(device: str, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    return torch.full(shape, -7.0, dtype=DTYPES[dtype], device=device)


def rows_of_all_kinds(rng: np.random.Generator, n: int) -> np.ndarray:
    """Usual, zero, of every magnitude, with one giant, subnormal, huge (their squares overflow), and with a NaN."""
    x = rng.standard_normal((11, n)).astype(np.float32)
    with np.errstate(all="ignore"):
        x[1] = 0
        x[2] *= 2.0 ** rng.integers(-140, 120, n).astype(np.float32)
        x[3, n // 2] = 3e38
        x[4] *= np.float32(1e-41)
        x[5] *= np.float32(1e38)
        x[6] *= np.float32(1e-20)
        x[7] = -0.0
        x[7, n - 1] = np.float32(1e-45)
        x[8] = np.float32(3.4028235e38)
        x[9] *= np.float32(1e19)
        x[10, n // 3] = np.nan
    return x


@pytest.mark.parametrize(("h", "dtype"), [*product((48, 72, 131, 1024), DTYPES), (4096, "bfloat16")])
@np.errstate(all="ignore")
def test_rms_norm(device: str, h: int, dtype: str) -> None:
    rng = np.random.default_rng(h)
    x, weight = rows_of_all_kinds(rng, h), rng.standard_normal(h).astype(np.float32)
    delta = round16(rng.standard_normal(x.shape).astype(np.float32), dtype)
    there = h16(device, delta, dtype)
    for num_warps in (1, 2, 4, 8) if device == "cuda" else (4,):
        out, stream = empty(device, x.shape, dtype), f32(device, x)
        elementwise.rms_norm(stream, f32(device, weight), EPS, None, out, num_warps=num_warps)
        assert same_bits(read(out), round16(layers.norm(x, weight, EPS), dtype))
        assert same_bits(read(stream), x)
        elementwise.rms_norm(stream, f32(device, weight), EPS, there, out, num_warps=num_warps)
        assert same_bits(read(out), round16(layers.norm(x + delta, weight, EPS), dtype))
        assert same_bits(read(stream), x + delta)


@np.errstate(all="ignore")
def test_a_float_norm_would_differ() -> None:
    """Negative control: the norm of `ieee/1`, which differs by the order of a sum alone, has other bits."""
    rng = np.random.default_rng(1)
    x, weight = rng.standard_normal((64, 4096)).astype(np.float32), np.ones(4096, np.float32)
    assert not same_bits(ieee.norm(x, weight, EPS), layers.norm(x, weight, EPS))


@pytest.mark.parametrize(("h", "dtype"), [*product((48, 131), DTYPES), (4096, "bfloat16")])
def test_embed_add_and_gather(device: str, h: int, dtype: str) -> None:
    rng = np.random.default_rng(h)
    table = round16(rng.standard_normal((50, h)).astype(np.float32), dtype)
    tokens, drawn, last = [3, -1, 49, 0, 7], [-1, 2, -1, 0, 3], [11, 99, 12, 48]
    ids = [3, 12, 49, 11, 48]  # entries of token_ids beside a drawn one are not read
    stream = torch.empty((5, h), device=device)
    elementwise.embed(h16(device, table, dtype), i32(device, tokens), i32(device, drawn), i32(device, last), stream)
    assert same_bits(read(stream), table[ids])
    delta = round16(rng.standard_normal((5, h)).astype(np.float32), dtype)
    elementwise.add(stream, h16(device, delta, dtype))
    assert same_bits(read(stream), table[ids] + delta)
    out = torch.empty((3, h), device=device)
    elementwise.gather_rows(stream, i32(device, [4, 0, 4]), out)
    assert same_bits(read(out), (table[ids] + delta)[[4, 0, 4]])


@pytest.mark.parametrize(("f", "dtype"), [*product((24, 131, 1024), DTYPES), (3072, "bfloat16")])
def test_silu_mul(device: str, f: int, dtype: str) -> None:
    rng = np.random.default_rng(f)
    with np.errstate(all="ignore"):
        x = round16(
            (rng.standard_normal((4, 2 * f)) * 10.0 ** rng.integers(-6, 4, (4, 2 * f))).astype(np.float32), dtype
        )
        x[0, :8] = [0.0, -0.0, 300, -300, np.inf, -np.inf, np.nan, -88.5]
        want = ieee.silu_mul(x, dtype)
    for num_warps in (1, 2, 4, 8) if device == "cuda" else (None,):
        out = empty(device, (4, f), dtype)
        elementwise.silu_mul(h16(device, x, dtype), out, num_warps=num_warps)
        assert same_bits(read(out), want)


CASES = [  # heads, kv_heads, D, block_size, q norm, k norm
    (4, 2, 16, 16, False, False),
    (9, 3, 24, 16, True, True),
    (6, 6, 64, 32, False, True),
    (16, 2, 128, 64, True, True),
    (32, 8, 128, 64, False, False),
    (1, 1, 80, 16, True, False),
]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
@np.errstate(all="ignore")
def test_rope_and_cache(device: str, dtype: str, case: tuple[int, int, int, int, bool, bool]) -> None:
    heads, kv_heads, d, block_size, q_normed, k_normed = case
    rng = np.random.default_rng(d)
    blocks, most = 3, 40
    qkv = rng.standard_normal((6, (heads + 2 * kv_heads) * d)) * 10.0 ** rng.integers(-3, 3, (6, 1))
    qkv = round16(qkv.astype(np.float32), dtype)
    qkv[3, : d // 2] = 0
    qkv[5] = np.nan  # a dummy
    angles = rng.standard_normal((most, d // 2))
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    positions, slots = [0, 39, 7, 7, 3, 0], [0, 3 * block_size - 1, block_size, -1, block_size + 5, -1]
    q_weight, k_weight = rng.standard_normal((2, d)).astype(np.float32)

    split = np.split(qkv.reshape(6, -1, d), [heads, heads + kv_heads], axis=1)
    q, k = split[0], split[1]
    q = layers.norm(q, q_weight, EPS) if q_normed else q
    k = layers.norm(k, k_weight, EPS) if k_normed else k
    q, k = (round16(ieee.rope(x, cos[positions], sin[positions]), dtype) for x in (q, k))

    for num_warps in (1, 2, 4, 8) if device == "cuda" else (None,):
        keys, values = (empty(device, (blocks, kv_heads, block_size, d), dtype) for _ in range(2))
        out = empty(device, (6, heads * d), dtype)
        elementwise.rope_and_cache(
            h16(device, qkv, dtype),
            f32(device, cos),
            f32(device, sin),
            i32(device, positions),
            torch.tensor(slots, dtype=torch.int64, device=device),
            keys,
            values,
            out,
            f32(device, q_weight) if q_normed else None,
            f32(device, k_weight) if k_normed else None,
            EPS,
            num_warps=num_warps,
        )
        assert same_bits(read(out)[:5], q.reshape(6, -1)[:5])
        for cache, want in ((keys, k), (values, split[2])):
            expected = np.full((blocks, kv_heads, block_size, d), -7.0, np.float32)
            for row, slot in enumerate(slots):
                if slot >= 0:
                    expected[slot // block_size, :, slot % block_size] = want[row]
            assert same_bits(read(cache), expected)


def test_rows_do_not_see_one_another(device: str) -> None:
    """Every row alone equals the row among others."""
    rng = np.random.default_rng(5)
    x, weight = rows_of_all_kinds(rng, 72), rng.standard_normal(72).astype(np.float32)
    out = empty(device, x.shape, "bfloat16")
    elementwise.rms_norm(f32(device, x), f32(device, weight), EPS, None, out)
    for row in range(len(x)):
        alone = empty(device, (1, 72), "bfloat16")
        elementwise.rms_norm(f32(device, x[row : row + 1]), f32(device, weight), EPS, None, alone)
        assert same_bits(read(alone)[0], read(out)[row])


def test_widened_bits_are_the_values(device: str) -> None:
    """The helper above writes what it should."""
    bits = np.array([[0x3F80, 0x7FC0, 0x0001, 0x8000]], np.uint16)
    assert same_bits(read(h16(device, widen(bits, "bfloat16"), "bfloat16")), widen(bits, "bfloat16"))
