"""No schedule moves a bit on a card: whole logits rows and answers, with twins on the libraries' kernels that must fail."""

from __future__ import annotations

import pytest

from tests.support.gpu_checks import CHECKS
from tests.support.gpu_lab import Lab

# What `vendor` keeps, too: it has no graphs. Every other check must find it out.
KEPT_BY_VENDOR = {"graphs"}
MATRIX = 14 * 56


@pytest.mark.parametrize("name", CHECKS)
def test_bits_do_not_move(lab: Lab, name: str) -> None:
    found = CHECKS[name](lab)
    print(f"{found.name}: {found.different} of {found.compared} differ; {found.witness}")
    assert not found.inconclusive, found.witness
    assert found.different == 0, found.examples
    if name.endswith("matrix"):
        assert found.compared >= MATRIX


@pytest.mark.parametrize("name", [n for n in CHECKS if n not in KEPT_BY_VENDOR])
def test_vendor_kernels_are_caught(vendor_lab: Lab, name: str) -> None:
    """Negative control."""
    found = CHECKS[name](vendor_lab)
    print(f"{found.name}: {found.different} of {found.compared} differ")
    assert not found.inconclusive, found.witness
    assert found.different > 0
