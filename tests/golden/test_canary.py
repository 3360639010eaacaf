"""The recorded bits of `ieee/1`: the kernels reproduce them, a damaged float unit does not."""

from __future__ import annotations

import platform
from typing import Any

import numba
import numpy as np
import pytest
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from queueproof.contract.errors import CanaryError
from queueproof.kernels import canary
from queueproof.kernels.registry import backend


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_the_kernels_give_the_recorded_digest(threads: int) -> None:
    assert canary.digest(backend("ieee/1"), threads) == (canary.EXPECTED["ieee/1", "any"], "")


def test_check_and_require() -> None:
    assert canary.check("ieee/1").ok
    canary.require("ieee/1")
    vendor = canary.check("vendor")
    assert not vendor.ok
    assert vendor.expected is None
    canary.require("vendor")  # promises nothing, so there is nothing to refuse


def test_vendor_kernels_fail_it() -> None:
    """Negative control: a schedule moves the bits of the vendor's kernels."""
    got, disagreed = canary.digest(backend("vendor"))
    assert disagreed or got != canary.EXPECTED["ieee/1", "any"]


@intrinsic
def _set_mxcsr(typingctx: Any, value: Any) -> Any:
    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        word = ir.IntType(32)
        place = b.alloca(word)
        b.store(args[0], place)
        pointer = ir.IntType(8).as_pointer()
        load = cgutils.get_or_insert_function(b.module, ir.FunctionType(ir.VoidType(), [pointer]), "llvm.x86.sse.ldmxcsr")
        b.call(load, [b.bitcast(place, pointer)])
        return context.get_dummy_value()

    return types.void(types.uint32), codegen


@numba.njit
def set_mxcsr(value):  # type: ignore[no-untyped-def]
    _set_mxcsr(np.uint32(value))


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="sets an x86 control register")
def test_flushing_subnormals_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    default, flush_to_zero, denormals_are_zero = 0x1F80, 1 << 15, 1 << 6
    for broken in (default | flush_to_zero, default | denormals_are_zero):
        canary.check.cache_clear()
        set_mxcsr(broken)
        try:
            result = canary.check("ieee/1")
            with pytest.raises(CanaryError, match="cannot be offered"):
                canary.require("ieee/1")
        finally:
            set_mxcsr(default)
            canary.check.cache_clear()
        assert not result.ok
    assert canary.check("ieee/1").ok
