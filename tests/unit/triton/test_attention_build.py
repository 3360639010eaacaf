"""What the compiler makes of a prefill for Hopper, on any machine: no result of the matrix unit is read before it is there.

Triton leaves products under way across a loop's turn and decides where to wait for them. A branch that reads a running
accumulator ahead of that wait is compiled without a complaint; the bits are then those of a race.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

BUILD = """
import sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from queueproof.kernels.triton.attention_kernels import prefill_kernel as kernel

rows, head_dim, block, warps, stages = map(int, sys.argv[1:])
constants = dict(WIDTH_AT=0, COUNT_AT=2, KV_HEADS=8, G=4, R=rows, D=head_dim, DP=head_dim, BLOCK=block, PIECES=block // 64,
                 PAIRS=True, PDL=True)
types = dict(q_ptr="*bf16", k_ptr="*bf16", v_ptr="*bf16", out_ptr="*bf16", items_ptr="*i32", tables_ptr="*i32",
             meta_ptr="*i32", scale="fp32", window="i32")
attributes = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(kernel.arg_names) if types.get(name, "")[:1] == "*"}
source = ASTSource(kernel, {n: types.get(n, "constexpr") for n in kernel.arg_names}, constants, attributes)
options = dict(num_warps=warps, num_stages=stages, enable_fp_fusion=False, launch_pdl=True)
print(triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ttgir"])
"""
NAME = r"%[\w#]+"


def build(*numbers: int) -> str:
    """The compiler's last form of the kernel in which products and waits are operations."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", BUILD, *map(str, numbers)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert not done.returncode, done.stderr
    return re.sub(r" loc\(.*\)$", "", done.stdout, flags=re.MULTILINE)


def users(lines: list[str], name: str) -> list[str]:
    """Lines that read the value."""
    read = re.compile(re.escape(name) + r"(?![\w#])")
    return [line for line in lines if read.search(line.partition(" = ")[2] or line)]


def early_readers(text: str) -> tuple[int, list[str]]:
    """How many products are under way across the turns of a loop, and who reads one that is."""
    lines = text.splitlines()
    starts = [i for i, line in enumerate(lines) if "scf.for" in line and "iter_args" in line]
    count, found = 0, []
    for start in starts:
        indent = len(lines[start]) - len(lines[start].lstrip())
        end = next(i for i in range(start + 1, len(lines)) if lines[i].startswith(" " * indent + "}"))
        body = lines[start + 1 : end]
        arguments = re.findall(rf"({NAME}) = {NAME}", lines[start].partition("iter_args(")[2])
        yielded = re.findall(NAME, body[-1].partition(" : ")[0])
        assert body[-1].lstrip().startswith("scf.yield") and len(arguments) == len(yielded)
        for line in body:
            made = re.match(rf"\s*({NAME}) = ttng.warp_group_dot .*isAsync = true", line)
            if not made:
                continue
            names = [made.group(1)]
            if names[0] in yielded:
                names.append(arguments[yielded.index(names[0])])
                count += 1
            for name in names:
                readers = users(body[:-1], name)
                found += [r.strip() for r in readers if "ttng.warp_group_dot" not in r]
    return count, found


@pytest.mark.parametrize("numbers", [(128, 128, 64, 8, 3), (64, 256, 16, 8, 2)])
def test_no_product_is_read_while_it_is_under_way(numbers: tuple[int, ...]) -> None:
    count, readers = early_readers(build(*numbers))
    assert not readers
    assert count == 1  # the product with the values


def test_an_early_reader_is_found() -> None:
    text = """
  %e:2 = scf.for %i = %a to %b step %c iter_args(%arg1 = %z, %arg2 = %z) -> (x, y) {
    %t = ttng.warp_group_dot %q, %k, %z {isAsync = true}
    %t2:2 = ttng.warp_group_dot_wait %t, %arg2 {pendings = 0 : i32}
    %acc = ttng.warp_group_dot %p, %v, %t2#1 {isAsync = true}
    %m = scf.if %last -> (x) {
      %w = arith.mulf %acc, %f
    }
    scf.yield %m, %acc : x, y
  }
"""
    assert early_readers(text) == (1, ["%w = arith.mulf %acc, %f"])
