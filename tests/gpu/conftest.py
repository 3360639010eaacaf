"""Everything here needs a CUDA card. Without one it is reported as skipped, with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.gpu_lab import COARSE, FULL, Lab
from tests.support.gpu_model import SUITE, parse_model

HERE = Path(__file__).parent


def why_not() -> str | None:
    """The reason why nothing here can run, or None."""
    if find_spec("torch") is None:
        return "no CUDA card can be used: torch is not installed"
    import torch

    return None if torch.cuda.is_available() else f"torch {torch.__version__} sees no CUDA card"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if HERE in item.path.parents]
    reason = why_not() if here else None
    for item in here:
        item.add_marker(pytest.mark.gpu)
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session", params=SUITE)
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    made = Lab(parse_model(request.param), "tensorcore/1", "cuda", FULL)
    yield made
    made.close()


@pytest.fixture(scope="session")
def vendor_lab() -> Iterator[Lab]:
    made = Lab(parse_model(SUITE[0]), "vendor", "cuda", COARSE)
    yield made
    made.close()
