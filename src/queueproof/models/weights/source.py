"""What the model layer needs of a checkpoint, and the one implementation of it over tensors stored in mapped files.

The 16-bit type of a model. "auto" is float16 if every matrix is stored as float16, else bfloat16: a matrix stored as
f32, quantised, or as float16 among others goes through f32 and is rounded to bfloat16 (docs/arithmetic.md, section 1).
A type asked for by name converts the same way; a finite value that float16 cannot hold is then an error.
Norm weights and biases stay f32, exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from queueproof.arithmetic.bits import round16_bits, widen
from queueproof.contract.errors import InvalidParameter, ModelError
from queueproof.kernels.ops import F32, U8, U16, Dtype
from queueproof.models.weights.mapped import MappedFile

DtypeChoice = Literal["auto", "bfloat16", "float16"]
A = TypeVar("A", U8, U16, F32)

SLICE_VALUES = 1 << 18  # values of a matrix in one slice: 1 MiB while they are f32, which stays in the cache


class WeightSource(Protocol):
    """A checkpoint under Hugging Face's tensor names. `dtype` is the 16-bit type that `row_slices` gives."""

    dtype: Dtype

    def names(self) -> tuple[str, ...]: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def row_slices(self, name: str) -> Iterator[U16]:
        """Consecutive rows of a matrix [n, k] as 16-bit patterns, u16 [rows, k], each slice a fresh array."""
        ...

    def kind(self, name: str) -> str:
        """How the tensor is stored: "F32", "F16", "BF16" or a quantised type of GGUF."""
        ...

    def raw_slices(self, name: str) -> Iterator[U8]:
        """Consecutive rows of a matrix as they are stored, u8 [rows, bytes of a row]."""
        ...

    def vector(self, name: str) -> F32:
        """A 1-D tensor as f32 [n]."""
        ...


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where and how one tensor lies in its file.

    kind: "F32", "F16", "BF16" or a name of a quantised type that `decode` turns into f32.
    row_bytes: bytes of one row (of the whole tensor where it is 1-D).
    interleaved: None, or the head size D of rows that are stored as (head, D/2, 2) and belong as (head, 2, D/2).
    """

    file: MappedFile
    start: int
    kind: str
    shape: tuple[int, ...]
    row_bytes: int
    decode: Callable[[U8], F32] | None = None  # u8 [rows, row_bytes] -> f32 [rows, k]
    interleaved: int | None = None


class StoredWeights:
    """WeightSource over stored tensors.

    Raises InvalidParameter for an unknown dtype.
    """

    def __init__(self, tensors: Mapping[str, StoredTensor], dtype: DtypeChoice) -> None:
        self._tensors = dict(tensors)
        self.dtype: Dtype = _choose_dtype(self._tensors, dtype)

    def names(self) -> tuple[str, ...]:
        return tuple(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._tensors[name].shape

    def kind(self, name: str) -> str:
        return self._tensors[name].kind

    def row_slices(self, name: str) -> Iterator[U16]:
        tensor = self._tensors[name]
        return self._slices(tensor, lambda raw: _to_bits(tensor, name, raw, self.dtype))

    def raw_slices(self, name: str) -> Iterator[U8]:
        return self._slices(self._tensors[name], np.array)

    def _slices(self, tensor: StoredTensor, fresh: Callable[[U8], A]) -> Iterator[A]:
        n, k = tensor.shape
        step = max(1, SLICE_VALUES // k)
        if tensor.interleaved is not None:  # only whole heads can be put in order
            step = max(1, step // tensor.interleaved) * tensor.interleaved
        for row in range(0, n, step):
            rows = min(step, n - row)
            start, length = tensor.start + row * tensor.row_bytes, rows * tensor.row_bytes
            raw = tensor.file.view(start, length).reshape(rows, tensor.row_bytes)
            rows_here = fresh(raw)
            tensor.file.release(start, length)
            yield _in_order(rows_here, tensor.interleaved)

    def vector(self, name: str) -> F32:
        tensor = self._tensors[name]
        raw = tensor.file.view(tensor.start, tensor.row_bytes).reshape(1, tensor.row_bytes)
        return _in_order(_to_f32(tensor, raw)[0], tensor.interleaved)


def _choose_dtype(tensors: Mapping[str, StoredTensor], choice: DtypeChoice) -> Dtype:
    if choice == "auto":
        kinds = {t.kind for t in tensors.values() if len(t.shape) == 2}
        return "float16" if kinds == {"F16"} else "bfloat16"
    if choice not in ("bfloat16", "float16"):
        raise InvalidParameter("dtype", choice, "'auto', 'bfloat16' and 'float16' are")
    return choice


def _to_f32(tensor: StoredTensor, raw: U8) -> F32:
    """f32 of raw rows, a fresh array."""
    if tensor.decode is not None:
        return tensor.decode(raw)
    if tensor.kind == "F32":
        return np.array(_values(raw, np.dtype("<f4")), np.float32)
    return widen(_values(raw, np.dtype("<u2")).astype(np.uint16), "float16" if tensor.kind == "F16" else "bfloat16")


def _to_bits(tensor: StoredTensor, name: str, raw: U8, dtype: Dtype) -> U16:
    if tensor.kind == {"bfloat16": "BF16", "float16": "F16"}[dtype]:
        return np.array(_values(raw, np.dtype("<u2")), np.uint16)
    values = _to_f32(tensor, raw)
    bits = round16_bits(values, dtype)
    if dtype == "float16" and np.isfinite(values).all() and not np.isfinite(bits.view(np.float16)).all():
        largest = float(np.abs(values).max())
        raise ModelError(
            f"{tensor.file.path}: {name} holds {largest:g}, above float16's largest 65504; load it with dtype='bfloat16'"
        )
    return bits


def _values(raw: U8, dtype: np.dtype[np.generic]) -> NDArray[np.generic]:
    """[rows, k] over the bytes. Offsets in a file need not be multiples of the item size; NumPy copes."""
    return raw.view(dtype)


def _in_order(rows: A, head_dim: int | None) -> A:
    """Undoes llama.cpp's reordering of q and k rows, which interleaves the halves of each head."""
    if head_dim is None:
        return rows
    heads = rows.reshape(-1, head_dim // 2, 2, *rows.shape[1:])
    return np.ascontiguousarray(heads.swapaxes(1, 2)).reshape(rows.shape)
