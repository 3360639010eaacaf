"""Weights in the panels that `linear` reads: 16-bit, or 8- and 4-bit as GGUF stores them (`quantised`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from queueproof.kernels.numba import quantised
from queueproof.kernels.numba.memory import Arena
from queueproof.kernels.numba.microkernel import PANEL
from queueproof.kernels.numba.pairs import NEVER, as_pairs, need_of, pair_count
from queueproof.kernels.ops import QUANT_BLOCK, U8, U16, Dtype, Quantised

_ARENA = Arena()


@dataclass(frozen=True, eq=False)
class PackedMatrix:
    """An [n, k] weight in panels; `bias` is padded to whole panels.

    kind 0: `data` is u32 [panels, pairs of k, PANEL] for bfloat16, u16 [panels, k, PANEL] for float16. Else the code of a
    quantised kind, and `data` u8 [panels, k / 32, bytes of a block]. needs: i32 [panels], see `pairs.need_of`.
    """

    n: int
    k: int
    dtype: Dtype  # of the values
    data: NDArray[np.uint32] | NDArray[np.uint16] | NDArray[np.uint8]
    bias: NDArray[np.float32] | None
    needs: NDArray[np.int32]
    kind: int = 0

    @property
    def panel_bytes(self) -> int:
        return self.data[0].nbytes

    @property
    def nbytes(self) -> int:
        return int(self.data.nbytes)


def pack(n: int, k: int, row_slices: Iterable[U16], dtype: Dtype, bias: NDArray[np.float32] | None) -> PackedMatrix:
    """Packs rows as they come; holds one slice besides the result.

    Raises ValueError when the slices do not add up to [n, k].
    """
    panels, rows = -(-n // PANEL), pair_count(k) if dtype == "bfloat16" else k
    needs = np.full(panels, NEVER if dtype == "float16" else 0, np.int32)
    data: NDArray[np.uint16] | NDArray[np.uint32]
    if dtype == "float16":
        data = _ARENA.zeros(panels * k * PANEL).reshape(panels, k, PANEL)
    else:
        data = _ARENA.zeros(2 * panels * rows * PANEL).view(np.uint32).reshape(panels, rows, PANEL)
    for p, lane, block in _in_panels(n, k, row_slices):
        columns = slice(lane, lane + block.shape[0])
        if dtype == "float16":
            data[p, :, columns] = block.T
        else:
            data[p, :, columns] = as_pairs(block).T
            needs[p] = max(needs[p], need_of(block))
    return PackedMatrix(n, k, dtype, data, _padded(bias, panels), needs)


def pack_blocks(
    n: int, k: int, kind: Quantised, row_slices: Iterable[U8], bias: NDArray[np.float32] | None
) -> PackedMatrix:
    """Packs rows as GGUF stores them, u8 [rows, bytes of a row]; k is a multiple of QUANT_BLOCK.

    Raises ValueError when the slices do not add up to [n, k].
    """
    layout, panels, blocks = quantised.KINDS[kind], -(-n // PANEL), k // QUANT_BLOCK
    data = _ARENA.zeros(panels * blocks * layout.block_bytes // 2).view(np.uint8).reshape(panels, blocks, -1)
    for p, lane, rows in _in_panels(n, blocks * layout.block_bytes // PANEL, row_slices):
        quantised.pack_rows(layout, rows, data[p], lane)
    needs = np.full(panels, quantised.NEED, np.int32)
    return PackedMatrix(n, k, "bfloat16", data, _padded(bias, panels), needs, layout.code)


def _in_panels(n: int, width: int, slices: Iterable[Any]) -> Iterator[tuple[int, int, Any]]:
    """(panel, first column in it, rows that go there) of slices that must add up to [n, width]."""
    done = 0
    for rows in slices:
        if rows.ndim != 2 or rows.shape[1] != width or done + rows.shape[0] > n:
            raise ValueError(f"slice of shape {rows.shape} does not continue row {done} of a matrix [{n}, {width}]")
        start = 0
        while start < rows.shape[0]:
            p, lane = divmod(done, PANEL)
            take = min(PANEL - lane, rows.shape[0] - start)
            yield p, lane, rows[start : start + take]
            start += take
            done += take
    if done != n:
        raise ValueError(f"{done} rows given for a matrix [{n}, {width}]")


def _padded(bias: NDArray[np.float32] | None, panels: int) -> NDArray[np.float32] | None:
    if bias is None:
        return None
    return np.concatenate([bias.astype(np.float32), np.zeros(panels * PANEL - bias.size, np.float32)])
