"""The arithmetic `vendor`: whatever NumPy and its BLAS give. See kernels/ops.py for the protocols."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import cache

import numpy as np
from threadpoolctl import ThreadpoolController

from queueproof.arithmetic.bits import widen
from queueproof.contract.errors import EngineError
from queueproof.kernels import host
from queueproof.kernels.ops import F32, I32, U16, Defaults, Dtype, ForwardModel, KVShape, Limits, StepBatch
from queueproof.kernels.vendor.ops import Matrix, Rope, VendorOps
from queueproof.kernels.vendor.rows import VendorRows


class VendorPacker:
    """Weights as f32: NumPy's BLAS has no 16-bit products. They take twice the memory of the 16-bit model."""

    def __init__(self, dtype: Dtype) -> None:
        self._dtype = dtype

    def matrix(self, n: int, k: int, row_slices: Iterable[U16], bias: F32 | None = None) -> Matrix:
        columns = np.empty((k, n), np.float32)
        row = 0
        for rows in row_slices:
            columns[:, row : row + len(rows)] = widen(rows, self._dtype).T
            row += len(rows)
        if row != n:
            raise ValueError(f"the slices have {row} rows, the matrix {n}")
        return Matrix(columns, None if bias is None else bias.astype(np.float32))

    def vector(self, values: F32) -> F32:
        return values.astype(np.float32)

    def rope(self, cos: F32, sin: F32) -> Rope:
        return Rope(cos, sin)


@cache
def _libraries() -> ThreadpoolController:
    """The BLAS libraries of this process; finding them takes milliseconds."""
    return ThreadpoolController()


class VendorExecutor:
    def __init__(self, model: ForwardModel, limits: Limits, threads: int) -> None:
        self.limits = limits
        self._threads = threads
        self._model = model
        self._ops: VendorOps | None = VendorOps(model, limits)
        self._hidden: F32 | None = None

    def _open(self) -> VendorOps:
        if self._ops is None:
            raise EngineError("this executor is closed; make a new one")
        return self._ops

    def _blas(self, rows: int) -> AbstractContextManager[object]:
        """The BLAS with this executor's threads; for one row with one, as memory is the limit and its threads spin:
        hundreds of small products a step take many times longer where another process wants a core."""
        return _libraries().limit(limits=1 if rows == 1 else self._threads, user_api="blas")

    @np.errstate(all="ignore")
    def forward(self, batch: StepBatch) -> None:
        ops = self._open()
        ops.begin(batch)
        with self._blas(batch.token_ids.size):
            self._hidden = self._model.trunk(ops)

    @np.errstate(all="ignore")
    def logits(self, rows: I32) -> F32:
        ops = self._open()
        if self._hidden is None:
            raise EngineError("logits were asked for before the first forward pass")
        ops.ask_for(rows)
        with self._blas(rows.size):
            return self._model.head(ops, self._hidden)

    def close(self) -> None:
        self._ops = self._hidden = None


class VendorBackend:
    """NumPy's BLAS on the CPU. `threads` is how many the BLAS may use, while a step of the executor runs; no more than
    its own settings (OPENBLAS_NUM_THREADS and the like) gave it at start."""

    arithmetic = "vendor"
    device = "cpu"
    family = "any"
    asynchronous = False

    def defaults(self) -> Defaults:
        return host.defaults()

    def packer(self, dtype: Dtype) -> VendorPacker:
        return VendorPacker(dtype)

    def rows(self, threads: int) -> VendorRows:
        return VendorRows()

    def kv_bytes_per_token(self, shape: KVShape) -> int:
        return 2 * shape.layers * shape.kv_heads * shape.head_dim * np.dtype(np.float32).itemsize

    def executor(self, model: ForwardModel, limits: Limits, threads: int) -> VendorExecutor:
        return VendorExecutor(model, limits, threads)

    def warm_up(self, progress: Callable[[str], None] | None = None) -> None:
        """Nothing to compile."""
