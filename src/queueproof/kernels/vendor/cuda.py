"""The arithmetic `vendor` on a card: whatever PyTorch and its libraries give. See kernels/ops.py for the protocols."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import torch

from queueproof.contract.errors import EngineError
from queueproof.kernels import host
from queueproof.kernels.ops import F32, I32, U16, Defaults, Dtype, ForwardModel, KVShape, Limits, StepBatch
from queueproof.kernels.triton.card import find_card
from queueproof.kernels.vendor.cuda_ops import DTYPES, CudaVendorOps, Matrix, Rope
from queueproof.kernels.vendor.cuda_rows import CudaVendorRows

KV_SHARE = 0.8  # of the memory that is free once the weights are there; activations and the libraries take the rest


class CudaVendorPacker:
    def __init__(self, dtype: Dtype, device: torch.device) -> None:
        self._dtype, self._device = DTYPES[dtype], device

    def matrix(self, n: int, k: int, row_slices: Iterable[U16], bias: F32 | None = None) -> Matrix:
        data = torch.empty((n, k), dtype=self._dtype, device=self._device)
        bits = data.view(torch.int16)
        row = 0
        for rows in row_slices:
            bits[row : row + len(rows)] = torch.from_numpy(np.array(rows, np.uint16).view(np.int16))
            row += len(rows)
        if row != n:
            raise ValueError(f"the slices have {row} rows, the matrix {n}")
        return Matrix(data, None if bias is None else self.vector(bias))

    def vector(self, values: F32) -> torch.Tensor:
        """In 16 bits, as PyTorch's half-precision models keep norm weights and biases."""
        return torch.from_numpy(np.array(values, np.float32)).to(self._device, self._dtype)

    def rope(self, cos: F32, sin: F32) -> Rope:
        return Rope(*(torch.from_numpy(np.array(table, np.float32)).to(self._device) for table in (cos, sin)))


class CudaVendorExecutor:
    def __init__(self, model: ForwardModel, limits: Limits, device: torch.device) -> None:
        self.limits = limits
        self._model = model
        self._ops: CudaVendorOps | None = CudaVendorOps(model, limits, device)
        self._hidden: torch.Tensor | None = None

    def _open(self) -> CudaVendorOps:
        if self._ops is None:
            raise EngineError("this executor is closed; make a new one")
        return self._ops

    @torch.inference_mode()
    def forward(self, batch: StepBatch) -> None:
        ops = self._open()
        ops.begin(batch)
        self._hidden = self._model.trunk(ops)

    @torch.inference_mode()
    def logits(self, rows: I32) -> torch.Tensor:
        """f32 [R, V] on the card: the 16-bit results of the head, widened."""
        ops = self._open()
        if self._hidden is None:
            raise EngineError("logits were asked for before the first forward pass")
        ops.ask_for(rows)
        logits: torch.Tensor = self._model.head(ops, self._hidden)
        return logits.float()

    def close(self) -> None:
        self._ops = self._hidden = None


class CudaVendorBackend:
    """PyTorch on a card (by default the first; UnsupportedDevice without one). The class is best-effort."""

    arithmetic = "vendor"
    device = "cuda"
    family = "any"
    asynchronous = False

    def __init__(self, device: torch.device | None = None) -> None:
        self._device = find_card().device if device is None else device

    def defaults(self) -> Defaults:
        if self._device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(self._device)
            return Defaults(256, 8192, 64, int(free * KV_SHARE))
        return host.defaults()  # the processor in the place of a card, in tests

    def packer(self, dtype: Dtype) -> CudaVendorPacker:
        return CudaVendorPacker(dtype, self._device)

    def rows(self, threads: int) -> CudaVendorRows:
        return CudaVendorRows()

    def kv_bytes_per_token(self, shape: KVShape) -> int:
        return 2 * shape.layers * shape.kv_heads * shape.head_dim * 2

    def executor(self, model: ForwardModel, limits: Limits, threads: int) -> CudaVendorExecutor:
        return CudaVendorExecutor(model, limits, self._device)

    def warm_up(self, progress: Callable[[str], None] | None = None) -> None:
        """Nothing to compile."""
