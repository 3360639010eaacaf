"""What this machine can do at most: memory read bandwidth and multiply-add rate, measured by small machine-code loops.

The loops are LLVM IR with explicit vectors, so no compiler's choice stands between the number and the machine.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from llvmlite import binding

READ_BYTES = 256 << 20  # of each thread and pass: far above any cache
READ_STREAMS = 8  # vectors of 8 x i64 an iteration
FMA_CHAINS = 12  # independent sums: more than latency x issue width of today's cores, and they fit in 16 registers
FMA_STEPS = 20_000_000
REPEATS = 5


@dataclass(frozen=True, slots=True)
class MachineLimits:
    """The best of REPEATS passes on all threads together. bytes/s, and f32 operations/s (an FMA counts as two).

    dot_flops_per_s: the same with the dot instruction of AVX-512 BF16, which is two of them; 0 where there is none.
    """

    read_bytes_per_s: float
    flops_per_s: float
    threads: int
    dot_flops_per_s: float = 0.0

    def or_better(self, other: MachineLimits) -> MachineLimits:
        """What was possible in one of two measurements: a limit is the best that was seen, other work only lowers it."""
        return MachineLimits(
            max(self.read_bytes_per_s, other.read_bytes_per_s),
            max(self.flops_per_s, other.flops_per_s),
            self.threads,
            max(self.dot_flops_per_s, other.dot_flops_per_s),
        )

    @property
    def of_products(self) -> str:
        """The rates of multiply-adds, for people."""
        dots = f", {self.dot_flops_per_s / 1e9:.0f} with its bf16 dot instruction" if self.dot_flops_per_s else ""
        return f"{self.flops_per_s / 1e9:.0f} GFLOP/s of f32 FMA{dots}"


def measure(threads: int) -> MachineLimits:
    """Measures the limits in about a second; takes 256 MiB for each thread meanwhile."""
    code = _compiled()
    lanes = _lanes()
    arrays = [np.ones(READ_BYTES // 8, np.int64) for _ in range(threads)]  # written: every page is really there
    steps = READ_BYTES // (64 * READ_STREAMS)
    with ThreadPoolExecutor(threads) as pool:
        reads = _best_seconds(pool, [lambda a=a: code["read"](a.ctypes.data, steps) for a in arrays])  # type: ignore[misc]
        fmas = _best_seconds(pool, [lambda: code["fma"](FMA_STEPS)] * threads)
        dots = _best_seconds(pool, [lambda: code["dot"](FMA_STEPS)] * threads) if "dot" in code else 0.0
    products = threads * 2.0 * lanes * FMA_CHAINS * FMA_STEPS
    return MachineLimits(
        read_bytes_per_s=threads * READ_BYTES / reads,
        flops_per_s=products / fmas,
        threads=threads,
        dot_flops_per_s=2 * products / dots if dots else 0.0,
    )


def _best_seconds(pool: ThreadPoolExecutor, work: list[Callable[[], Any]]) -> float:
    """Shortest time in which all threads do their part once; ctypes lets go of the GIL meanwhile."""
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        for future in [pool.submit(part) for part in work]:
            future.result()
        times.append(time.perf_counter() - start)
    return min(times)


def _lanes() -> int:
    """f32 lanes of a vector register: 16 with AVX-512, else 8 (two registers on ARM)."""
    return 16 if binding.get_host_cpu_features().get("avx512f") else 8


@cache
def _compiled() -> dict[str, Callable[..., Any]]:
    """The loops as callables; "dot" only where the CPU has the instruction. The engine is kept alive by the closure of the cache."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    binding.initialize_native_asmparser()
    host = binding.get_host_cpu_features()
    features, dots = host.flatten(), host.get("avx512f") and host.get("avx512bf16")
    target = binding.Target.from_default_triple().create_target_machine(
        cpu=binding.get_host_cpu_name(), features=features, opt=2
    )
    module = binding.parse_assembly(_read_ir() + _fma_ir(_lanes()) + (_dot_ir() if dots else ""))
    module.verify()
    engine = binding.create_mcjit_compiler(module, target)
    engine.finalize_object()
    _KEPT.append(engine)
    read = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)(engine.get_function_address("qp_read"))
    fma = ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_int64)(engine.get_function_address("qp_fma"))
    code: dict[str, Callable[..., Any]] = {"read": read, "fma": fma}
    if dots:
        address = engine.get_function_address("qp_dot")
        code["dot"] = ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_int64)(address)
    return code


_KEPT: list[Any] = []  # machine code is freed with its engine


def _read_ir() -> str:
    """i64 qp_read(p, n): XOR of n x READ_STREAMS vectors of 64 bytes."""
    streams = range(READ_STREAMS)
    phis = "\n".join(f"  %a{s} = phi <8 x i64> [ zeroinitializer, %entry ], [ %b{s}, %loop ]" for s in streams)
    loads = "\n".join(
        f"  %p{s} = getelementptr <8 x i64>, ptr %base, i64 {s}\n"
        f"  %v{s} = load <8 x i64>, ptr %p{s}, align 8\n"
        f"  %b{s} = xor <8 x i64> %a{s}, %v{s}"
        for s in streams
    )
    folds = "\n".join(f"  %f{s} = xor <8 x i64> {'%b0' if s == 1 else f'%f{s - 1}'}, %b{s}" for s in streams if s)
    return f"""
define i64 @qp_read(ptr %p, i64 %n) {{
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
{phis}
  %offset = mul i64 %i, {64 * READ_STREAMS}
  %base = getelementptr i8, ptr %p, i64 %offset
{loads}
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %loop, label %end
end:
{folds}
  %sum = call i64 @llvm.vector.reduce.xor.v8i64(<8 x i64> %f{READ_STREAMS - 1})
  ret i64 %sum
}}
declare i64 @llvm.vector.reduce.xor.v8i64(<8 x i64>)
"""


def _fma_ir(lanes: int) -> str:
    """float qp_fma(n): FMA_CHAINS vectors, each n times x = fma(x, 0.5, 1)."""
    kind = f"<{lanes} x float>"
    half, one = (f"<{', '.join([f'float {value}'] * lanes)}>" for value in ("5.0e-1", "1.0e+0"))
    step = f"call {kind} @llvm.fma.v{lanes}f32({kind} %a, {kind} {half}, {kind} {one})"
    return _chains_ir("qp_fma", lanes, step) + f"declare {kind} @llvm.fma.v{lanes}f32({kind}, {kind}, {kind})\n"


def _dot_ir() -> str:
    """float qp_dot(n): FMA_CHAINS vectors, each n times x = x + 1 + 1, as two products of a pair."""
    ones = f"<{', '.join(['i32 1065369472'] * 16)}>"  # 0x3F803F80
    step = f'call <16 x float> asm "vdpbf16ps $1, $1, $0", "=v,v,0"(<16 x i32> {ones}, <16 x float> %a)'
    return _chains_ir("qp_dot", 16, step)


def _chains_ir(name: str, lanes: int, step: str) -> str:
    """float name(n): vectors 0, 1, 2, …, each n times `step` of %a; the sum of their first lanes."""
    kind, chains = f"<{lanes} x float>", range(FMA_CHAINS)
    starts = [f"<{', '.join([f'float {c}.0e+0'] * lanes)}>" for c in chains]  # different: equal chains would be one
    phis = "\n".join(f"  %a{c} = phi {kind} [ {starts[c]}, %entry ], [ %b{c}, %loop ]" for c in chains)
    steps = "\n".join(f"  %b{c} = {step.replace('%a', f'%a{c}')}" for c in chains)
    sums = "\n".join(f"  %s{c} = fadd {kind} {'%b0' if c == 1 else f'%s{c - 1}'}, %b{c}" for c in chains if c)
    return f"""
define float @{name}(i64 %n) {{
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
{phis}
{steps}
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %loop, label %end
end:
{sums}
  %first = extractelement {kind} %s{FMA_CHAINS - 1}, i32 0
  ret float %first
}}
"""
