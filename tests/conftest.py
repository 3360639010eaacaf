"""Options of the test run."""

from __future__ import annotations

import pytest


def _seeds(text: str) -> tuple[int, int]:
    """`12` is that seed alone, `100:200` those from 100 to 199."""
    first, colon, last = text.partition(":")
    return (int(first), int(last)) if colon else (int(first), int(first) + 1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seeds", type=_seeds, help="seeds of the invariance fuzzer: N or FIRST:LAST")
