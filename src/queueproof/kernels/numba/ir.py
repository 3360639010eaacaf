"""Small LLVM primitives that numba has no name for: bit casts, 16-bit floats, atomics, raw memory."""

from __future__ import annotations

import platform
from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

I8, I16, I32, I64 = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64)
F16, F32 = ir.HalfType(), ir.FloatType()

X86 = platform.machine().lower() in ("x86_64", "amd64")
ARM64 = platform.machine().lower() in ("aarch64", "arm64")


@intrinsic
def bits_of(typingctx: Any, x: Any) -> Any:
    """The 32 bits of an f32 as i32."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        return b.bitcast(args[0], I32)

    return types.int32(types.float32), codegen


@intrinsic
def float_of(typingctx: Any, i: Any) -> Any:
    """The f32 with these 32 bits."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        return b.bitcast(args[0], F32)

    return types.float32(types.int32), codegen


@intrinsic
def f16_bits_of(typingctx: Any, x: Any) -> Any:
    """round-to-nearest-even of an f32 to binary16, as the low bits of an i32."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        return b.zext(b.bitcast(b.fptrunc(args[0], F16), I16), I32)

    return types.int32(types.float32), codegen


@intrinsic
def f16_to_f32(typingctx: Any, i: Any) -> Any:
    """The f32 of a binary16 given by its bits (u16)."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        return b.fpext(b.bitcast(args[0], F16), F32)

    return types.float32(types.uint16), codegen


@intrinsic
def void_ptr(typingctx: Any, address: Any) -> Any:
    """An address (i64) as a void pointer, for `numba.carray`."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        return b.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), codegen


@intrinsic
def atomic_add(typingctx: Any, address: Any, value: Any) -> Any:
    """Adds to the i64 at an address; returns what was there before."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        return b.atomic_rmw("add", b.inttoptr(args[0], I64.as_pointer()), args[1], "seq_cst")

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def atomic_load(typingctx: Any, address: Any) -> Any:
    """Acquire-loads the i64 at an address."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        return b.load_atomic(b.inttoptr(args[0], I64.as_pointer()), "acquire", 8)

    return types.int64(types.int64), codegen


@intrinsic
def atomic_store(typingctx: Any, address: Any, value: Any) -> Any:
    """Release-stores an i64 to an address."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        b.store_atomic(args[1], b.inttoptr(args[0], I64.as_pointer()), "seq_cst", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


def emit_prefetch(b: Any, address: Any, near: int) -> None:
    """Asks for the cache line at an address, which need not be one that can be read. near: 3 the nearest cache, 2 the next."""
    kind = ir.FunctionType(ir.VoidType(), [I8.as_pointer(), I32, I32, I32])
    hint = cgutils.get_or_insert_function(b.module, kind, "llvm.prefetch.p0")
    b.call(hint, [b.inttoptr(address, I8.as_pointer()), *(ir.Constant(I32, c) for c in (0, near, 1))])


@intrinsic
def prefetch(typingctx: Any, address: Any) -> Any:
    """Asks for the cache line at an address, into the second cache."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        emit_prefetch(b, args[0], near=2)
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@intrinsic
def relax(typingctx: Any) -> Any:
    """Tells the core that this is a spin loop (`pause`, `yield`)."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        if X86:
            b.call(cgutils.get_or_insert_function(b.module, ir.FunctionType(ir.VoidType(), []), "llvm.x86.sse2.pause"), [])
        elif ARM64:
            hint = ir.FunctionType(ir.VoidType(), [I32])
            b.call(cgutils.get_or_insert_function(b.module, hint, "llvm.aarch64.hint"), [ir.Constant(I32, 1)])
        return context.get_dummy_value()

    return types.void(), codegen


# Gives the core away while a spin loop waits for a thread that the system has not scheduled.
yield_thread = types.ExternalFunction(
    "SwitchToThread" if platform.system() == "Windows" else "sched_yield", types.int32()
)

carray = numba.carray
