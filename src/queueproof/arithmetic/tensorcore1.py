"""Constants of `tensorcore/1`. docs/arithmetic-tensorcore.md is the definition; this file holds its numbers and nothing else.

Functions, constants of `exp` and `log` and the 16-bit NaNs are those of `ieee/1` (arithmetic/ieee1.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

NAME: Final = "tensorcore/1"


@dataclass(frozen=True, slots=True)
class Family:
    """How a family of matrix units adds: `step` products and the accumulator at once, cut off at `fraction_bits`."""

    name: str
    step: int
    fraction_bits: int


FAMILIES: Final = {
    family.name: family
    for family in (
        Family("sm80", 8, 24),  # A100
        Family("sm86", 8, 24),  # RTX 30
        Family("sm89", 8, 24),  # RTX 40, L4
        Family("sm90", 16, 25),  # H100, H200
    )
}

# mma chain: K is padded with zeros to a multiple of this
MMA_K: Final = 16

# attention
KEY_BLOCK: Final = 64
KEY_SPLIT: Final = 512
LOG2E: Final = 1.4426950408889634  # f64; the scale of a score is f32(LOG2E / sqrt(D))

# integer sums: int64(v * 2^40)
FIXED_BITS: Final = 40
FIXED_ONE: Final = 2.0**FIXED_BITS
