"""Triton's interpreter without the Python that it runs anew for every operation: shapes, types and their names are kept.

Most of the time of a small kernel goes there. Nothing that is computed changes, only how often the same answer is looked up.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import triton.language as tl
from triton.language import core
from triton.runtime import interpreter

Shape = tuple[int, ...]
NUMPY_TYPES = {
    t.name: interpreter._get_np_dtype(t)
    for t in (
        *(tl.int1, tl.int8, tl.int16, tl.int32, tl.int64, tl.uint8, tl.uint16, tl.uint32, tl.uint64),
        *(tl.float16, tl.bfloat16, tl.float32, tl.float64),
    )
}
ADDRESS = np.dtype(np.uint64)
PLAIN = frozenset({int, bool, float, str, type(None)})


def _unwrapped(real: Any) -> Any:
    def unwrap(o: Any) -> Any:
        kind = type(o)
        if kind is core.constexpr:
            return o.value
        return o if kind in PLAIN or kind is core.tensor or kind is core.dtype else real(o)

    return unwrap


def _numpy_type(t: Any) -> Any:
    scalar = t.scalar
    return ADDRESS if isinstance(scalar, core.pointer_type) else NUMPY_TYPES[scalar.name]


@cache
def _shape(shape: Shape) -> tuple[Any, Any]:
    """What a tensor says of its shape: the number of elements, and the shape itself. Nobody writes to them."""
    return core.constexpr(math.prod(shape)), core.tuple([core.constexpr(s) for s in shape])


def _tensor(self: Any, handle: Any, type: Any) -> None:
    self.handle, self.type, self.dtype = handle, type, type.scalar
    self.numel, self.shape = _shape(tuple(type.shape.values) if type.is_block() else ())


@cache
def _block(element: str, shape: Shape) -> tuple[Any, int, str]:
    """Shape, number of elements and name of a block type."""
    return core.tuple(shape), core.validate_block_shape(shape), f"<{core.tuple(shape)}, {element}>"


def _block_type(self: Any, element_ty: Any, shape: Any) -> None:
    self.element_ty = element_ty
    sizes = shape.values if type(shape) is core.tuple else core._unwrap_if_constexpr(shape)
    unwrapped = tuple([s.value if type(s) is core.constexpr else s for s in sizes])
    if not unwrapped:
        raise TypeError("0d block_type is forbidden")
    self.shape, self.numel, self.name = _block(element_ty.name, unwrapped)


def _same_tuple(real: Any) -> Any:
    def same(self: Any, other: Any) -> Any:
        values = other.values if type(other) is core.tuple else other
        if type(values) is not list:
            return real(self, other)
        return core.constexpr(self.values == [v.value if type(v) is core.constexpr else v for v in values])

    return same


def _same_type(real: Any) -> Any:
    return lambda self, other: self is other or real(self, other)


def install() -> None:
    """Once for the process, before anything is patched otherwise."""
    core._unwrap_if_constexpr = _unwrapped(core._unwrap_if_constexpr)
    core.tensor.__init__ = _tensor
    core.block_type.__init__ = _block_type
    core.tuple.__eq__ = _same_tuple(core.tuple.__eq__)
    core.dtype.__eq__ = _same_type(core.dtype.__eq__)
    interpreter._get_np_dtype = _numpy_type
