"""The oracle restates the constants from the page; both copies must be the same numbers."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from queueproof.arithmetic import ieee1
from queueproof.arithmetic.oracle import attention, functions, sums

PAGE = Path(__file__).parents[3] / "docs" / "arithmetic.md"


@pytest.mark.parametrize("name", ["LOG2E", "MAGIC", "LN2_HI", "LN2_LO", "E0", "E1", "E2", "E3", "E4", "G0", "G1", "G2"])
def test_function_constants(name: str) -> None:
    ours, theirs = getattr(functions, name), getattr(ieee1, name)
    assert isinstance(ours, np.float32)
    assert float(ours) == theirs, "and it is an f32 value"


def test_tree_constants() -> None:
    assert (sums.SEGMENTS, sums.BLOCK, sums.LANES) == (ieee1.SEGMENTS, ieee1.ROW_BLOCK, ieee1.ROW_LANES)
    assert (attention.KEY_BLOCK, attention.KEY_SPLIT) == (ieee1.KEY_BLOCK, ieee1.KEY_SPLIT)
    assert np.float32(1).view(np.int32) == ieee1.ONE_BITS
    assert ieee1.SQRT_HALF_BITS == 0x3F3504F3


def test_the_page_shows_these_numbers() -> None:
    table = dict(
        pair
        for names, values in re.findall(r"^\| ([A-Z][A-Z0-9_, …]+) \| (.+) \|$", PAGE.read_text(), re.M)
        for pair in zip(_names(names), re.findall(r"-?0x[0-9a-f.]+p[+-]\d+|\d+\.\d+(?=`)", values), strict=True)
    )
    assert len(table) == 12
    for name, text in table.items():
        value = float.fromhex(text) if text.startswith("0x") else float(text)
        assert value == getattr(ieee1, name), name


def _names(cell: str) -> list[str]:
    if "…" in cell:
        letter, last = cell[0], int(cell[-1])
        return [f"{letter}{i}" for i in range(last + 1)]
    return cell.split(", ")
