"""Functions, integer sums and random numbers are the oracle's, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from queueproof.arithmetic.diff import same_bits
from queueproof.arithmetic.oracle import functions, sampling
from queueproof.arithmetic.oracle.tensorcore import sums
from queueproof.kernels.triton import math
from queueproof.kernels.triton.launch import options

BLOCK = 8192
FUNCTIONS = {
    "exp": functions.exp,
    "log": functions.log,
    "silu": functions.silu,
    "rsqrt": functions.rsqrt,
    "quantised_exp": lambda x: sums.quantised(functions.exp(x)),
}
SPECIAL = np.array(
    [0.0, -0.0, 1.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 2.0**-126, 88.72, 88.73, 89.0, 90.0, -30.0, -32.0, -87.4]
    + [-103.97, -104.0, 3.4e38, -3.4e38],
    np.float32,
)


@triton.jit
def _map(x, out, n, F: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=0.0)
    if F == "exp":
        y = math.exp(v)
    elif F == "log":
        y = math.log(v)
    elif F == "silu":
        y = math.silu(v)
    elif F == "rsqrt":
        y = math.rsqrt(v)
    else:
        y = math.quantised_exp(v)
    tl.store(out + i, y, mask=i < n)


def mapped(device: str, name: str, x: np.ndarray, num_warps: int = 4) -> np.ndarray:
    out = torch.empty(x.size, dtype=torch.int64 if name == "quantised_exp" else torch.float32, device=device)
    there = torch.from_numpy(np.ascontiguousarray(x)).to(device)
    _map[(-(-x.size // BLOCK),)](there, out, x.size, F=name, BLOCK=BLOCK, **options(num_warps))
    return out.cpu().numpy()


def patterns(device: str) -> np.ndarray:
    """f32 of all binades; fewer in the interpreter."""
    step = 257 if device == "cuda" else 16411
    return np.concatenate([np.arange(0, 1 << 32, step, dtype=np.uint32).view(np.float32), SPECIAL])


@pytest.mark.parametrize("name", ["exp", "log", "silu", "rsqrt"])
def test_functions_over_all_binades(device: str, name: str) -> None:
    x = patterns(device)
    with np.errstate(all="ignore"):
        assert same_bits(mapped(device, name, x), FUNCTIONS[name](x))


def test_silu_of_every_16_bit_value(device: str) -> None:
    """Of both types: it leaves out steps of exp that cannot be seen in its result."""
    halves = np.arange(1 << 16, dtype=np.uint16)
    for x in ((halves.astype(np.uint32) << 16).view(np.float32), halves.view(np.float16).astype(np.float32)):
        with np.errstate(all="ignore"):
            assert same_bits(mapped(device, "silu", x), functions.silu(x))


def test_quantised_exponentials(device: str) -> None:
    x = -np.abs(patterns(device))
    x = np.concatenate([x[~np.isnan(x)], np.linspace(-31, 0, 20_000, dtype=np.float32)])
    with np.errstate(all="ignore"):
        assert np.array_equal(mapped(device, "quantised_exp", x), FUNCTIONS["quantised_exp"](x))


@triton.jit
def _isum(x, out, n, BLOCK: tl.constexpr, PDL: tl.constexpr):
    total = tl.zeros((BLOCK,), tl.int64)
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        total += math.quantised(tl.load(x + i, mask=i < n, other=0.0))
    tl.store(out, math.sum_value(tl.sum(total)))


@triton.jit
def _float_sum(x, lanes, out, n, BLOCK: tl.constexpr):
    """What a sum of f32 values would be: lanes, then one after the other."""
    acc = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        acc += tl.load(x + i, mask=i < n, other=0.0)
    tl.store(lanes + tl.arange(0, BLOCK), acc)
    tl.debug_barrier()
    total = tl.load(lanes)
    for lane in range(1, BLOCK):
        total += tl.load(lanes + lane)
    tl.store(out, total)


def test_integer_sums_have_no_order(device: str) -> None:
    """And sums of f32 have: the check can fail."""
    x = np.random.default_rng(0).standard_normal(5000).astype(np.float32)
    there = torch.from_numpy(x).to(device)
    integer, float_sums = set(), set()
    for block in (16, 64, 256, 1024):
        for num_warps in (1, 2, 4, 8):
            out = torch.empty(1, device=device)
            _isum[(1,)](there, out, x.size, BLOCK=block, **options(num_warps))
            integer.add(out.item())
        lanes = torch.empty(block, device=device)
        _float_sum[(1,)](there, lanes, out, x.size, BLOCK=block, num_warps=1, enable_fp_fusion=False)
        float_sums.add(out.item())
    assert integer == {float(sums.isum(x))}
    assert len(float_sums) > 1


@triton.jit
def _float_row_sum(x, out, BLOCK: tl.constexpr):
    tl.store(out, tl.sum(tl.load(x + tl.arange(0, BLOCK))))


@pytest.mark.gpu
def test_row_sums_of_the_compiler_depend_on_the_warps(device: str) -> None:
    """Negative control: what the integers are there for."""
    if device != "cuda":
        pytest.skip("layouts exist on a card alone")
    there = torch.from_numpy(np.random.default_rng(0).standard_normal(4096).astype(np.float32)).to(device)
    out = torch.empty(1, device=device)
    seen = set()
    for num_warps in (1, 2, 4, 8, 16):
        _float_row_sum[(1,)](there, out, BLOCK=4096, num_warps=num_warps)
        seen.add(out.item())
    assert len(seen) > 1


@triton.jit(do_not_specialize=["position_low", "position_high", "seed_low", "seed_high"])
def _noise(out, words, position_low, position_high, seed_low, seed_high, N: tl.constexpr):
    w = math.philox(
        tl.arange(0, N).to(tl.uint32),
        position_low.to(tl.uint32),
        position_high.to(tl.uint32),
        seed_low.to(tl.uint32),
        seed_high.to(tl.uint32),
    )
    for k in tl.static_range(4):
        tl.store(words + 4 * tl.arange(0, N) + k, w[k].to(tl.int32, bitcast=True))
        tl.store(out + 4 * tl.arange(0, N) + k, math.gumbel(w[k]))


@pytest.mark.parametrize(("seed", "position"), [((1 << 64) - 1, (1 << 40) + 5), (0, 0), (0x0123456789ABCDEF, 7)])
def test_noise(device: str, seed: int, position: int) -> None:
    out = torch.empty(1024, device=device)
    words = torch.empty(1024, dtype=torch.int32, device=device)
    halves = [np.uint64(n >> s & 0xFFFFFFFF).astype(np.int64).item() for n in (position, seed) for s in (0, 32)]
    _noise[(1,)](out, words, *halves, N=256, num_warps=4, enable_fp_fusion=False)
    want = sampling.noise_words(1024, seed, position)
    assert np.array_equal(words.cpu().numpy().view(np.uint32), want)
    assert same_bits(out.cpu().numpy(), sampling.gumbel(want))


@triton.jit
def _gumbel(words, out, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, math.gumbel(tl.load(words + i).to(tl.uint32, bitcast=True)))


def test_gumbel_stays_within_its_bounds(device: str) -> None:
    """The race leaves out tokens that could not win with the largest; a card checks all 2^23 values."""
    step = 1 if device == "cuda" else 61
    b = np.unique(np.concatenate([np.arange(0, 1 << 23, step), (1 << 23) - 1 - np.arange(1000)])).astype(np.uint32)
    words = np.resize(b << np.uint32(9), -(-b.size // BLOCK) * BLOCK)
    out = torch.empty(words.size, device=device)
    there = torch.from_numpy(words.view(np.int32)).to(device)
    _gumbel[(words.size // BLOCK,)](there, out, BLOCK=BLOCK, num_warps=4, enable_fp_fusion=False)
    got = out.cpu().numpy()
    assert same_bits(got, sampling.gumbel(words))
    assert got.min() > -2.83 and got.max() < 16.65
