"""Matrix products: every kernel, tile and schedule gives the chain of the definition, bit for bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from queueproof.arithmetic.bits import round16_bits, widen
from queueproof.arithmetic.oracle.functions import silu
from queueproof.arithmetic.oracle.numbers import round16
from queueproof.arithmetic.oracle.tensorcore import layers, mma
from queueproof.arithmetic.tensorcore1 import FAMILIES
from tests.support.triton_cpu import DEVICE, FAMILY  # before any kernel

from queueproof.kernels.triton.linear import Tile, Weight, fits, narrow, wide  # isort: skip
from queueproof.kernels.triton.products import ROW_COUNTS  # isort: skip
from queueproof.kernels.triton.schedules import STANDARD_CARD, Kind, Vendor, default_tiles, measured, proposals  # isort: skip

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
PDL = DEVICE == "cuda" and torch.cuda.get_device_capability() >= (9, 0)
HAS_TMA = DEVICE == "cpu" or PDL
NARROW = [
    Tile(False, 16, 16, 32, 2, 3),
    Tile(False, 16, 8, 64, 1, 2, ahead=2),
    Tile(False, 64, 32, 16, 4, 4),
    Tile(False, 32, 64, 128, 4, 2),
]
WIDE = [
    Tile(True, 64, 16, 64, 4, 3, swap=True),
    Tile(True, 32, 64, 32, 4, 2, swap=False, group=2),
    Tile(True, 16, 32, 64, 4, 3, swap=False, group=1),
]
requires_tma = pytest.mark.skipif(not HAS_TMA, reason="needs compute capability 9.0")
TILES = [*NARROW, *(pytest.param(t, marks=requires_tma) for t in WIDE)]


class Problem:
    """x [m, k], w [n, k] and b [n] with values of several magnitudes, on the device and for the oracle."""

    def __init__(self, device: str, dtype: str, m: int, n: int, k: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.dtype, self.torch_dtype = dtype, DTYPES[dtype]

        def h16(rows: int) -> tuple[np.ndarray, torch.Tensor]:
            values = rng.standard_normal((rows, k)) * 2.0 ** rng.integers(-6, 4, (rows, k))
            bits = round16_bits(values.astype(np.float32), dtype)
            return widen(bits, dtype), torch.from_numpy(bits.view(np.int16)).to(device).view(self.torch_dtype)

        self.x, self.x_there = h16(m)
        self.w, self.w_there = h16(n)
        self.b = rng.standard_normal(n).astype(np.float32)
        self.b_there = torch.from_numpy(self.b).to(device)

    def weight(self, bias: bool = False) -> Weight:
        return Weight(self.w_there, *self.w.shape, self.b_there if bias else None)

    def chain(self, bias: bool = False) -> np.ndarray:
        return layers.logits(self.x, self.w, self.b if bias else None, FAMILIES[FAMILY], self.dtype)

    def run(
        self, tile: Tile, bias: bool = False, gated: bool = False, f32: bool = False, pdl: bool = False
    ) -> np.ndarray:
        """The result as f32 values."""
        columns = len(self.w) // 2 if gated else len(self.w)
        kind = torch.float32 if f32 else self.torch_dtype
        out = torch.full((len(self.x), columns), 77.0, dtype=kind, device=self.x_there.device)
        if tile.wide:
            wide(tile, self.x_there, self.weight(bias), out, gated, pdl, 3)
        else:
            narrow(tile, self.x_there, self.weight(bias), out, gated, pdl)
        return out.float().cpu().numpy()


def same_bits(got: np.ndarray, want: np.ndarray) -> None:
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("m", "n", "k"), [(5, 40, 72), (37, 72, 40)])
def test_products_are_the_chain(device: str, tile: Tile, dtype: str, m: int, n: int, k: int) -> None:
    problem = Problem(device, dtype, m, n, k)
    want = problem.chain()
    same_bits(problem.run(tile, pdl=PDL), round16(want, dtype))
    same_bits(problem.run(tile, f32=True), want)


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_bias_is_added_to_the_chain(device: str, tile: Tile) -> None:
    problem = Problem(device, "bfloat16", 19, 40, 48)
    same_bits(problem.run(tile, bias=True), round16(problem.chain(bias=True), "bfloat16"))


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("dtype", "m", "f"), [("bfloat16", 18, 40), ("float16", 33, 24)])
def test_gated_products(device: str, tile: Tile, bias: bool, dtype: str, m: int, f: int) -> None:
    problem = Problem(device, dtype, m, 2 * f, 48)
    both = round16(problem.chain(bias), dtype)
    with np.errstate(all="ignore"):
        want = round16(silu(both[:, :f]) * both[:, f:], dtype)
    same_bits(problem.run(tile, bias=bias, gated=True, pdl=PDL), want)


@pytest.mark.parametrize("tile", NARROW, ids=str)
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (3, 131, 70), (17, 33, 15), (64, 16, 129)])
def test_odd_sizes_by_pointer(device: str, tile: Tile, m: int, n: int, k: int) -> None:
    problem = Problem(device, "bfloat16", m, n, k)
    same_bits(problem.run(tile), round16(problem.chain(), "bfloat16"))


@requires_tma
@pytest.mark.parametrize("tile", WIDE, ids=str)
@pytest.mark.parametrize("n", [35, 131])
def test_odd_columns_by_tma(device: str, tile: Tile, n: int) -> None:
    problem = Problem(device, "bfloat16", 20, n, 40)
    same_bits(problem.run(tile), round16(problem.chain(), "bfloat16"))


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_rows_do_not_see_each_other(device: str, tile: Tile) -> None:
    """Padding rows may hold NaNs and infinities; a row alone has the bits that it has among others."""
    problem = Problem(device, "bfloat16", 24, 32, 48)
    want = problem.run(tile)
    problem.x_there[1::2] = float("nan")
    problem.x_there[2] = float("inf")
    got = problem.run(tile)
    same_bits(got[4::2], want[4::2])
    alone = Problem(device, "bfloat16", 24, 32, 48)
    alone.x, alone.x_there = alone.x[6:7], alone.x_there[6:7].contiguous()
    same_bits(alone.run(tile), want[6:7])


def _table() -> list[tuple[Tile, bool]]:
    """Every tile that is in a table or a default, with whether it is for gated products."""
    found: dict[tuple[Tile, bool], None] = {}
    for kind in [*measured(STANDARD_CARD), Kind(48, 40, False, "h16"), Kind(48, 40, True, "h16")]:
        for rows in ROW_COUNTS:
            schedules = [*proposals(STANDARD_CARD, "sm90", kind, rows), *default_tiles(rows)]
            found |= {(s, kind.gated): None for s in schedules if not isinstance(s, Vendor)}
    return list(found)


def _distinct(tiles: list[tuple[Tile, bool]]) -> list[tuple[Tile, bool]]:
    """Those that differ for the interpreter, which has neither warps nor stages."""
    return list(dict.fromkeys((replace(t, warps=4, stages=2, ahead=0, group=8), g) for t, g in tiles))


@pytest.mark.skipif(DEVICE != "cpu", reason="of the interpreter alone")
def test_every_schedule_of_the_table_small(device: str) -> None:
    problem = Problem(device, "bfloat16", 9, 48, 40)
    want = round16(problem.chain(), "bfloat16")
    with np.errstate(all="ignore"):
        want_gated = round16(silu(want[:, :24]) * want[:, 24:], "bfloat16")
    for tile, gated in _distinct(_table()):
        # Big tiles are mostly padding here; the interpreter would compute all of it.
        small = replace(tile, bn=min(tile.bn, 64), bm=min(tile.bm, 64), bk=min(tile.bk, 64))
        same_bits(problem.run(small, gated=gated), want_gated if gated else want)


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE != "cuda", reason="needs a CUDA device")
@pytest.mark.parametrize(("m", "n", "k"), [(1, 6144, 4096), (48, 4096, 1024), (513, 3072, 2048)])
def test_every_schedule_of_the_table_on_a_card(device: str, m: int, n: int, k: int) -> None:
    problem = Problem(device, "bfloat16", m, n, k)
    want = {gated: problem.run(NARROW[0], gated=gated) for gated in (False, True)}
    for row in {0, m // 2, m - 1}:
        here = round16(mma.chain(problem.x[row : row + 1], problem.w[:64], FAMILIES[FAMILY], "bfloat16"), "bfloat16")
        same_bits(want[False][row : row + 1, :64], here)
    tried = 0
    for tile, gated in _table():
        if fits(tile, gated, 227 * 1024) and (HAS_TMA or not tile.wide):
            same_bits(problem.run(tile, gated=gated, pdl=PDL), want[gated])
            tried += 1
    assert tried


def test_a_split_over_k_is_seen(device: str) -> None:
    """The negative control: another order of the same additions has other bits."""
    problem = Problem(device, "bfloat16", 8, 32, 512)
    family = FAMILIES[FAMILY]
    halves = [mma.chain(problem.x[:, s], problem.w[:, s], family, "bfloat16") for s in (slice(0, 256), slice(256, 512))]
    split = halves[0] + halves[1]
    got = problem.run(NARROW[0], f32=True)
    assert (got.view(np.uint32) != split.view(np.uint32)).any()
    same_bits(got, problem.chain())
