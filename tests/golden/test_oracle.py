"""The recorded bits of `ieee/1` are what the oracle computes."""

from __future__ import annotations

import numpy as np
import pytest

from queueproof.arithmetic.oracle.backend import OracleBackend
from queueproof.kernels import canary


@pytest.mark.slow
def test_the_oracle_gives_the_recorded_digest() -> None:
    with np.errstate(all="ignore"):
        assert canary.digest(OracleBackend()) == (canary.EXPECTED["ieee/1", "any"], "")
