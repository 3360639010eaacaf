"""Kernels of `tensorcore/1`: compiled where there is a CUDA device, in Triton's interpreter elsewhere."""

from __future__ import annotations

import pytest

from tests.support.triton_cpu import DEVICE, Exp2, device_exp2  # before any kernel


@pytest.fixture
def device() -> str:
    return DEVICE


@pytest.fixture
def exp2() -> Exp2:
    """The device's `exp2`, for the oracle."""
    return device_exp2
