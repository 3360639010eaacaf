"""cuBLASLt, as far as `tensorcore/1` may use it: products that do not split K, one algorithm chosen by name.

Nothing is linked: the library is the one that torch has loaded. Where there is none, `load` gives None, and the kernels
of kernels/triton do all products: a schedule less, the same bits.

Values of the enumerations are those of cublasLt.h and library_types.h, the same in CUDA 12 and 13.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from queueproof.contract.errors import EngineError

SONAMES = ("libcublasLt.so.13", "libcublasLt.so.12")
ALIGNMENT = 16  # bytes; what every matrix that is handed over keeps

_COMPUTE_32F = 68
_DATA_TYPES = {torch.float32: 0, torch.float16: 2, torch.bfloat16: 14}
_TRANSA, _TRANSPOSE = 3, 1
_PREFERENCE_WORKSPACE, _PREFERENCE_REDUCTION = 1, 3
_PREFERENCE_ALIGNMENTS = (5, 6, 7, 8)  # of A, B, C and D
_REDUCTION_NONE = 0
_NOT_SUPPORTED = 15
# What names an algorithm: attribute and bytes of each. SPLITK_NUM (2) and REDUCTION_SCHEME (3) are the same for all.
_CONFIG = {
    "id": (0, 4), "tile": (1, 4), "split_k": (2, 4), "swizzle": (4, 4), "custom": (5, 4), "stages": (6, 4), "inner": (7, 2),
    "cluster": (8, 2),
}  # fmt: skip

Config = dict[str, int]


class _Algo(ctypes.Structure):
    _fields_ = [("data", ctypes.c_uint64 * 8)]


class _Heuristic(ctypes.Structure):
    _fields_ = [
        ("algo", _Algo),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    ]


@dataclass(slots=True)
class Plan:
    """One algorithm for one size. run(x, w, out, stream) takes addresses and a CUstream; it can be captured in a graph."""

    config: Config
    run: Callable[[int, int, int, int], None]
    keep: tuple[Any, ...] = field(repr=False, default=())


class CublasLt:
    """The library with a handle for the current device. Descriptors live as long as the process: there are few."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._lib = library
        library.cublasLtGetVersion.restype = ctypes.c_size_t
        library.cublasLtGetStatusName.restype = ctypes.c_char_p
        pointer = ctypes.c_void_p
        library.cublasLtMatmul.argtypes = [pointer] * 14 + [ctypes.c_size_t, pointer]
        self.version = int(library.cublasLtGetVersion())
        self._handle = ctypes.c_void_p()
        self._check(library.cublasLtCreate(ctypes.byref(self._handle)), "cublasLtCreate")
        self._one, self._zero = ctypes.c_float(1.0), ctypes.c_float(0.0)
        self._plans: dict[tuple[Any, ...], list[Plan]] = {}

    def _check(self, status: int, what: str) -> None:
        if status != 0:
            name = self._lib.cublasLtGetStatusName(status).decode()
            raise EngineError(f"{what} failed: {name} (cuBLASLt {self.version})")

    def _layout(self, dtype: torch.dtype, rows: int, cols: int) -> ctypes.c_void_p:
        """A column-major matrix without gaps."""
        layout = ctypes.c_void_p()
        status = self._lib.cublasLtMatrixLayoutCreate(
            ctypes.byref(layout),
            ctypes.c_int(_DATA_TYPES[dtype]),
            ctypes.c_uint64(rows),
            ctypes.c_uint64(cols),
            ctypes.c_int64(rows),
        )
        self._check(status, "cublasLtMatrixLayoutCreate")
        return layout

    def _preference(self) -> ctypes.c_void_p:
        """Without workspace and without any scheme that adds up partial sums."""
        preference = ctypes.c_void_p()
        self._check(
            self._lib.cublasLtMatmulPreferenceCreate(ctypes.byref(preference)), "cublasLtMatmulPreferenceCreate"
        )
        values: list[tuple[int, Any]] = [
            (_PREFERENCE_WORKSPACE, ctypes.c_uint64(0)),
            (_PREFERENCE_REDUCTION, ctypes.c_uint32(_REDUCTION_NONE)),
            *((a, ctypes.c_uint32(ALIGNMENT)) for a in _PREFERENCE_ALIGNMENTS),
        ]
        for attribute, value in values:
            status = self._lib.cublasLtMatmulPreferenceSetAttribute(
                preference, ctypes.c_int(attribute), ctypes.byref(value), ctypes.c_size_t(ctypes.sizeof(value))
            )
            self._check(status, "cublasLtMatmulPreferenceSetAttribute")
        return preference

    def plans(self, m: int, n: int, k: int, dtype: torch.dtype, out_dtype: torch.dtype, most: int = 8) -> list[Plan]:
        """Algorithms for out [m, n] = x [m, k] · w [n, k]ᵀ, row-major, likely fastest first; empty if there is none."""
        key = (m, n, k, dtype, out_dtype, most)
        if key not in self._plans:
            self._plans[key] = self._find(*key)
        return self._plans[key]

    def _find(self, m: int, n: int, k: int, dtype: torch.dtype, out_dtype: torch.dtype, most: int) -> list[Plan]:
        # Column-major, the same memory is outᵀ [n, m] = w · xᵀ with w stored as [k, n].
        description = ctypes.c_void_p()
        status = self._lib.cublasLtMatmulDescCreate(
            ctypes.byref(description), ctypes.c_int(_COMPUTE_32F), ctypes.c_int(_DATA_TYPES[torch.float32])
        )
        self._check(status, "cublasLtMatmulDescCreate")
        transpose = ctypes.c_int32(_TRANSPOSE)
        status = self._lib.cublasLtMatmulDescSetAttribute(
            description, ctypes.c_int(_TRANSA), ctypes.byref(transpose), ctypes.c_size_t(4)
        )
        self._check(status, "cublasLtMatmulDescSetAttribute")
        a, b, d = self._layout(dtype, k, n), self._layout(dtype, k, m), self._layout(out_dtype, n, m)
        preference = self._preference()
        found, count = (_Heuristic * most)(), ctypes.c_int()
        status = self._lib.cublasLtMatmulAlgoGetHeuristic(
            self._handle, description, a, b, d, d, preference, ctypes.c_int(most), found, ctypes.byref(count)
        )
        self._lib.cublasLtMatmulPreferenceDestroy(preference)
        if status == _NOT_SUPPORTED:
            return []
        self._check(status, "cublasLtMatmulAlgoGetHeuristic")
        usable = [found[i].algo for i in range(count.value) if found[i].state == 0 and found[i].workspace == 0]
        plans = [self._plan(description, a, b, d, algo) for algo in usable]
        return [p for p in plans if p.config["split_k"] <= 1]

    def _plan(
        self, description: ctypes.c_void_p, a: ctypes.c_void_p, b: ctypes.c_void_p, d: ctypes.c_void_p, algo: _Algo
    ) -> Plan:
        matmul, check, handle = self._lib.cublasLtMatmul, self._check, self._handle
        one, zero, chosen = ctypes.addressof(self._one), ctypes.addressof(self._zero), ctypes.addressof(algo)

        def run(x: int, w: int, out: int, stream: int) -> None:
            status = matmul(
                handle, description, one, w, a, x, b, zero, out, d, out, d, chosen, None, 0, stream
            )  # fmt: skip
            if status:
                check(status, "cublasLtMatmul")

        return Plan(self._config(algo), run, (algo, self))

    def _config(self, algo: _Algo) -> Config:
        config: Config = {}
        for name, (attribute, size) in _CONFIG.items():
            value = ctypes.c_uint32(0)  # little-endian: a 16-bit value lands in its lower half
            written = ctypes.c_size_t()
            status = self._lib.cublasLtMatmulAlgoConfigGetAttribute(
                ctypes.byref(algo),
                ctypes.c_int(attribute),
                ctypes.byref(value),
                ctypes.c_size_t(size),
                ctypes.byref(written),
            )
            self._check(status, f"cublasLtMatmulAlgoConfigGetAttribute({name})")
            config[name] = int(value.value)
        return config


def load(device: torch.device) -> CublasLt | None:
    """The library that torch has loaded, with a handle for that CUDA device; or None."""
    for name in SONAMES:
        try:
            # Never a second one from elsewhere: RTLD_NOLOAD finds only what this process already runs.
            library = ctypes.CDLL(name, mode=os.RTLD_NOLOAD | ctypes.RTLD_GLOBAL)
        except OSError:
            continue
        with torch.cuda.device(device):
            torch.cuda.synchronize()  # makes the context that the handle belongs to
            return CublasLt(library)
    return None
