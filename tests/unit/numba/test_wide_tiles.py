"""The tiles for 512-bit vectors give the recorded bits too. LLVM splits them into narrower ones where the CPU has none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
from pathlib import Path
import llvmlite.binding as llvm
import queueproof.kernels.numba.jit as jit
jit.CACHE_DIR = Path(sys.argv[1])  # machine code of the other width is kept elsewhere
of_host = llvm.get_host_cpu_features
has = of_host().get("avx512f", False)
llvm.get_host_cpu_features = lambda: {"avx512f": not has}
from queueproof.kernels.numba import microkernel
llvm.get_host_cpu_features = of_host
from queueproof.kernels import canary
from queueproof.kernels.registry import backend
assert microkernel.AVX512 is not has
assert canary.digest(backend("ieee/1"), 2) == (canary.EXPECTED["ieee/1", "any"], "")
from tests.unit.numba import test_quantised  # on a CPU that rounds to bfloat16 by itself, the way of those that do not
for kind in test_quantised.KINDS:
    test_quantised.test_every_value(kind)
    test_quantised.test_products(kind, 576)
print("panel", microkernel.PANEL)
"""


@pytest.mark.slow
def test_the_other_width_of_vectors(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[3])
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() in (["panel", "32"], ["panel", "16"])
