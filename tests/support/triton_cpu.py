"""Triton kernels on a machine without a CUDA device: its interpreter, made to compute what `tensorcore/1` says.

Import this before any module with a kernel (and before Triton). With a CUDA device it changes nothing and the same tests
run compiled. Without one, `tl.dot` is the matrix unit of family sm90, `tl.fma` rounds once, bfloat16 is converted as the
hardware does, every other f32 operation is NumPy's own, and a load or store outside of the arguments' memory is an error.
Sums of floating point values (`tl.sum`) and bfloat16 arithmetic have no defined rounding, so they are errors too.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from queueproof.arithmetic.bits import Dtype, round16_bits, widen
from queueproof.arithmetic.oracle.tensorcore import mma
from queueproof.arithmetic.oracle.tensorcore.numbers import exp2, fma
from queueproof.arithmetic.tensorcore1 import FAMILIES

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FAMILY = "sm90"

if DEVICE == "cpu":
    if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
        raise RuntimeError("tests.support.triton_cpu must be imported before triton")
    os.environ["TRITON_INTERPRET"] = "1"

import triton  # noqa: E402  the variable above is read when kernels are defined, Triton's own included
import triton.language as tl  # noqa: E402
from triton.runtime import interpreter  # noqa: E402

Handle = interpreter.TensorHandle


def _operand(x: Any) -> tuple[NDArray[np.float32], Dtype]:
    if x.dtype.scalar == tl.bfloat16:
        return widen(x.data, "bfloat16"), "bfloat16"
    if x.dtype.scalar == tl.float16:
        return x.data.astype(np.float32), "float16"
    raise NotImplementedError(f"tl.dot of {x.dtype}: tensorcore/1 has bfloat16 and float16")


class Builder(interpreter.InterpreterBuilder):
    """Operations whose NumPy form in Triton's builder is not what a card computes."""

    memory: NDArray[np.uint64]  # [2, arguments]: where the arguments of the running kernel begin and end

    def __init__(self) -> None:
        super().__init__()
        # Triton computes every integer operation again in 64 bits to look for overflow, and uses what it finds if debugging.
        self.options = interpreter.InterpreterOptions(sanitize_overflow=False)

    def create_dot(self, a: Any, b: Any, d: Any, input_precision: Any, max_num_imprecise_acc: Any) -> Any:
        (x, dtype), (w, other) = _operand(a), _operand(b)
        if dtype != other or d.dtype.scalar != tl.float32:
            raise NotImplementedError(f"tl.dot of {a.dtype} and {b.dtype} into {d.dtype}")
        return Handle(mma.chain(x, np.swapaxes(w, -1, -2), FAMILIES[FAMILY], dtype, d.data), tl.float32)

    def create_fma(self, x: Any, y: Any, z: Any) -> Any:
        if z.dtype.scalar != tl.float32:
            raise NotImplementedError(f"tl.fma of {z.dtype}")
        return Handle(fma(x.data, y.data, z.data), tl.float32)

    def create_exp2(self, arg: Any) -> Any:
        if arg.dtype.scalar != tl.float32:
            raise NotImplementedError(f"tl.exp2 of {arg.dtype}")
        return Handle(exp2(arg.data), tl.float32)

    def cast_impl(self, src: Any, dst_type: Any) -> Any:
        source, target = src.dtype.scalar, dst_type.scalar
        data = widen(src.data, "bfloat16") if source == tl.bfloat16 else src.data
        if target == tl.bfloat16:
            if data.dtype not in (np.float16, np.float32):
                raise NotImplementedError(f"{source} to bfloat16 has two roundings; convert to float32 first")
            return Handle(round16_bits(data.astype(np.float32), "bfloat16"), target)
        return Handle(data.astype(interpreter._get_np_dtype(target)), target)

    def create_fp_to_fp(self, src: Any, dst_type: Any, rounding_mode: Any) -> Any:
        if rounding_mode not in (None, interpreter._ir.ROUNDING_MODE.RTNE):
            raise NotImplementedError("conversions round to nearest even here")
        return self.cast_impl(src, dst_type)

    # The maximum that passes over a NaN, which is what `tl.maximum` is unless told otherwise.
    create_maxnumf = lambda self, lhs, rhs: self.binary_op(lhs, rhs, np.fmax)  # noqa: E731
    create_minnumf = lambda self, lhs, rhs: self.binary_op(lhs, rhs, np.fmin)  # noqa: E731

    def binary_op(self, lhs: Any, rhs: Any, op: Any) -> Any:
        if tl.bfloat16 in (lhs.dtype.scalar, rhs.dtype.scalar):
            raise NotImplementedError(f"{op.__name__} of bfloat16: convert to float32, where every rounding is known")
        return super().binary_op(lhs, rhs, op)

    def create_masked_load(self, ptrs: Any, mask: Any, *rest: Any, **named: Any) -> Any:
        self._check(ptrs.data, mask.data, "reads")
        return super().create_masked_load(ptrs, mask, *rest, **named)

    def create_masked_store(self, ptrs: Any, value: Any, mask: Any, *rest: Any) -> Any:
        self._check(ptrs.data, mask.data, "writes")
        return super().create_masked_store(ptrs, value, mask, *rest)

    def create_atomic_rmw(self, op: Any, ptr: Any, val: Any, mask: Any, sem: Any, scope: Any) -> Any:
        self._check(ptr.data, mask.data, "updates")
        return super().create_atomic_rmw(op, ptr, val, mask, sem, scope)

    def create_atomic_cas(self, ptr: Any, cmp: Any, val: Any, sem: Any, scope: Any) -> Any:
        self._check(ptr.data, np.ones_like(ptr.data, np.bool_), "updates")
        return super().create_atomic_cas(ptr, cmp, val, sem, scope)

    def _check(self, addresses: NDArray[np.uint64], mask: NDArray[np.bool_], what: str) -> None:
        used = addresses[np.broadcast_to(mask, addresses.shape).astype(np.bool_)]
        begin, end = self.memory
        at = np.searchsorted(begin, used, side="right") - 1
        if used.size and ((at < 0) | (used >= end[at])).any():
            raise IndexError(f"the kernel {what} outside of its arguments' memory in program {self.grid_idx}")


class Reduce(interpreter.ReduceOps):
    """Reductions of tensors: integer sums, and maxima that pass over NaNs."""

    def apply_impl(self, input: Any) -> Any:
        dtype = input[0].dtype
        standard = tl.standard
        if dtype == tl.bfloat16 or (dtype.is_floating() and self.combine_fn == standard._sum_combine):
            raise NotImplementedError(f"a reduction of {dtype} by {self.combine_fn}: sums are sums of integers")
        if dtype.is_floating() and self.combine_fn == standard._elementwise_max:
            return self.min_max(input[0], val_reduce_op=np.fmax.reduce)
        if dtype.is_floating() and self.combine_fn == standard._elementwise_min:
            return self.min_max(input[0], val_reduce_op=np.fmin.reduce)
        return super().apply_impl(input)


def _argument(value: Any) -> Any:
    """A launch argument as the kernel sees it: Python floats are f32, booleans i1."""
    if isinstance(value, bool):
        return tl.tensor(Handle(np.array([value], np.bool_), tl.int1), tl.int1)
    if isinstance(value, float):
        return tl.tensor(Handle(np.array([value], np.float32), tl.float32), tl.float32)
    return interpreter._implicit_cvt(value)


def _tensors(values: Any) -> list[torch.Tensor]:
    found = []
    for value in values:
        if isinstance(value, tuple):
            found += _tensors(value)
        elif isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, interpreter.TensorDescriptor):
            found.append(value.base)
    return found


class Launch(interpreter.GridExecutor):
    """Runs the programs of a grid one after another, on the arguments themselves."""

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        known = inspect.getfullargspec(self.fn).args
        values = inspect.getcallargs(self.fn, *args, **{k: v for k, v in kwargs.items() if k in known})
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in _tensors(values.values())}
        begin = np.array(sorted(storages), np.uint64)
        builder.memory = np.stack([begin, begin + np.array([storages[int(b)] for b in begin], np.uint64)])
        cooked = {name: v if name in self.constexprs else _argument(v) for name, v in values.items()}
        grid = self.grid(cooked) if callable(self.grid) else self.grid
        grid = (*grid, *(1,) * (3 - len(grid)))
        builder.set_grid_dim(*grid)
        with np.errstate(all="ignore"):
            for place in np.ndindex(*grid):
                builder.set_grid_idx(*place)
                self.fn(**cooked)


def _call(self: Any, *args: Any, **kwargs: Any) -> Any:
    """A kernel's helper function, called from the kernel."""
    return self.rewrite()(*args, **kwargs)


def _install() -> None:
    """Once for the process. The language stays patched between launches: nothing is compiled in this process."""
    from tests.support import triton_quick  # imports Triton, so not before the variable above is set

    triton_quick.install()
    interpreter.InterpretedFunction.__call__ = _call
    interpreter.GridExecutor = Launch
    interpreter.ReduceOps = Reduce
    interpreter.interpreter_builder = builder
    interpreter.interpreter_semantic = interpreter.TritonSemantic(builder)
    scope = interpreter._LangPatchScope()
    for module in (tl, tl.core, tl.math):
        interpreter._patch_builtin(module, builder, scope)
    interpreter._patch_builtin(tl.core.tensor_descriptor_base, builder, scope)
    interpreter._patch_builtin(tl.tensor, builder, scope)
    interpreter._patch_lang_tensor(tl.tensor, scope)
    scope.set_attr(tl.tensor, "__index__", lambda self: self.handle.data.item())  # a scalar is an array [1] here
    for module in (tl, tl.core):
        interpreter._patch_lang_core(module, scope)


builder = Builder()
if DEVICE == "cpu":
    _install()


@triton.jit
def _exp2_kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.exp2(tl.load(x + i, mask=i < n)), mask=i < n)


def device_exp2(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """`exp2` of f32 values of any shape as the device computes it, for the oracle."""
    if DEVICE == "cpu":
        return exp2(x)
    there = torch.from_numpy(np.ascontiguousarray(x, np.float32)).to(DEVICE)
    result = torch.empty_like(there)
    _exp2_kernel[(triton.cdiv(there.numel(), 1024),)](there, result, there.numel(), BLOCK=1024, enable_fp_fusion=False)
    return result.cpu().numpy()


Exp2 = Callable[[NDArray[np.float32]], NDArray[np.float32]]
