"""Weights from the host to the card, slice by slice: nothing is held twice on the host."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch

from queueproof.kernels.ops import F32, U16, Dtype
from queueproof.kernels.triton.linear import Weight

TORCH_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class Rope:
    cos: torch.Tensor  # f32 [max_len, D / 2]
    sin: torch.Tensor


class TritonPacker:
    """A `Packer` for one device."""

    def __init__(self, dtype: Dtype, device: torch.device) -> None:
        self._dtype, self._device = TORCH_DTYPES[dtype], device
        self._staging = torch.empty(0, dtype=torch.int16)

    def matrix(self, n: int, k: int, row_slices: Iterable[U16], bias: F32 | None = None) -> Weight:
        data = torch.empty((n, k), dtype=self._dtype, device=self._device)
        bits = data.view(torch.int16)
        row = 0
        for rows in row_slices:
            staged = self._staged(rows.size)
            # int16 holds the same bits; NumPy's unsigned type has no twin in every version of torch
            staged.numpy().reshape(rows.shape)[...] = rows.view(np.int16)
            bits[row : row + len(rows)].copy_(staged.view(len(rows), k))
            row += len(rows)
        if row != n:
            raise ValueError(f"the slices have {row} rows, the matrix {n}")
        return Weight(data, n, k, None if bias is None else self.vector(bias))

    def _staged(self, size: int) -> torch.Tensor:
        """int16 [size] that the card can fetch from directly; valid until the next call."""
        if self._staging.numel() < size:
            self._staging = torch.empty(size, dtype=torch.int16, pin_memory=self._device.type == "cuda")
        return self._staging[:size]

    def vector(self, values: F32) -> torch.Tensor:
        return torch.from_numpy(np.array(values, np.float32)).to(self._device)

    def rope(self, cos: F32, sin: F32) -> Rope:
        return Rope(self.vector(cos), self.vector(sin))
