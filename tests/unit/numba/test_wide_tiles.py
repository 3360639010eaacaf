"""The tiles that this CPU does not choose give the recorded bits too: of the other width of vectors (LLVM splits 512-bit ones
where the CPU has none), and without the dot instruction where there is one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
from pathlib import Path
import llvmlite.binding as llvm
import numba
import queueproof.kernels.numba.jit as jit
jit.CACHE_DIR = Path(sys.argv[1])  # machine code of the other width is kept elsewhere
numba.njit(lambda: 0)()  # numba asks what the CPU has when it compiles first
of_host = llvm.get_host_cpu_features
has = of_host().get("avx512f", False)
wide = not has if sys.argv[2] == "other width" else has
llvm.get_host_cpu_features = lambda: {"avx512f": wide}
from queueproof.kernels.numba import dots, microkernel
llvm.get_host_cpu_features = of_host
from queueproof.kernels import canary
from queueproof.kernels.registry import backend
assert microkernel.AVX512 is wide and not dots.DOTS
assert canary.digest(backend("ieee/1"), 2) == (canary.EXPECTED["ieee/1", "any"], "")
from tests.unit.numba import test_quantised  # on a CPU that rounds to bfloat16 by itself, the way of those that do not
for kind in test_quantised.KINDS:
    test_quantised.test_every_value(kind)
    test_quantised.test_products(kind, 576)
print("panel", microkernel.PANEL)
"""


@pytest.mark.slow
@pytest.mark.parametrize("tiles", ["other width", "this width without dots"])
def test_the_tiles_not_chosen_here(tiles: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), tiles]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[3])
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() in (["panel", "32"], ["panel", "16"])
