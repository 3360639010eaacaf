"""Options of the test run."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parent
# Teams of threads and whole commands: beside other tests they would wait for a core most of the time.
ALONE = [ROOT / p for p in ("architecture/test_readme.py", "golden", "invariance", "unit/benchmarks", "unit/numba")]
# What is in those folders and needs one core.
BESIDE = [ROOT / p for p in ("golden/test_oracle.py", "unit/numba/test_wide_tiles.py")]


def _seeds(text: str) -> tuple[int, int]:
    """`12` is that seed alone, `100:200` those from 100 to 199."""
    first, colon, last = text.partition(":")
    return (int(first), int(last)) if colon else (int(first), int(first) + 1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seeds", type=_seeds, help="seeds of the invariance fuzzer: N or FIRST:LAST")
    parser.addoption(
        "--alone", choices=["only", "no"], help="the tests that want the machine for themselves, or all others"
    )


def runs_alone(file: Path) -> bool:
    return file not in BESIDE and any(path == file or path in file.parents for path in ALONE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Saves the imports of what is not going to run."""
    wanted = config.getoption("--alone")
    if wanted is None:
        return None
    if collection_path.is_dir():
        near = any(p == collection_path or p in collection_path.parents or collection_path in p.parents for p in ALONE)
        return None if near or wanted == "no" else True
    return None if runs_alone(collection_path) == (wanted == "only") else True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = config.getoption("--alone")
    if wanted is None:
        return
    left_out = [item for item in items if runs_alone(item.path) != (wanted == "only")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if runs_alone(item.path) == (wanted == "only")]
    if wanted == "no":  # long ones first, so that no process is left with one at the end
        items.sort(key=lambda item: item.get_closest_marker("slow") is None)
