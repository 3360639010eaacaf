"""Constants of `ieee/1`. docs/arithmetic.md is the definition; this file holds its numbers and nothing else."""

from __future__ import annotations

from typing import Final

NAME: Final = "ieee/1"

# matmul tree, row sum, attention
SEGMENTS: Final = 8
ROW_BLOCK: Final = 4096
ROW_LANES: Final = 64
KEY_BLOCK: Final = 64
KEY_SPLIT: Final = 512

# exp and log, f32
LOG2E: Final = float.fromhex("0x1.715476p+0")
MAGIC: Final = 12582912.0
LN2_HI: Final = float.fromhex("0x1.62e4p-1")
LN2_LO: Final = float.fromhex("0x1.7f7d1cp-20")
EXP_MIN: Final = -104.0
EXP_MAX: Final = 89.0
E0: Final = float.fromhex("0x1.fffffcp-2")
E1: Final = float.fromhex("0x1.555492p-3")
E2: Final = float.fromhex("0x1.5558f2p-5")
E3: Final = float.fromhex("0x1.1239e2p-7")
E4: Final = float.fromhex("0x1.6a2442p-10")
G0: Final = float.fromhex("0x1.55557ap-1")
G1: Final = float.fromhex("0x1.995ee6p-2")
G2: Final = float.fromhex("0x1.31dfdap-2")
SQRT_HALF_BITS: Final = 0x3F3504F3
ONE_BITS: Final = 0x3F800000

# 16-bit quiet NaNs of round16
NAN_BF16: Final = 0x7FC0
NAN_F16: Final = 0x7E00
