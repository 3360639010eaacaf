"""How every kernel is built and launched: contraction is never the compiler's choice, and a kernel may start early.

Programmatic dependent launch (compute capability 9.0): a kernel is set up while the one before it still runs, and waits
for its results in `begin`. Nothing that an earlier kernel writes may be read, and nothing may be written, before `begin`.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def begin(PDL: tl.constexpr):
    """Lets the next kernel be set up, then waits until the results of the ones before are in memory."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()


def options(num_warps: int, num_stages: int = 1, pdl: bool = False) -> dict[str, Any]:
    """Launch options of a kernel, which takes `PDL` as a constant too. pdl: only where the card has it."""
    return {
        "num_warps": num_warps,
        "num_stages": num_stages,
        "enable_fp_fusion": False,
        "launch_pdl": pdl,
        "PDL": pdl,
    }
