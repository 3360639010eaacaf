"""Rules of the source tree that no linter at hand checks. import-linter holds the layers (pyproject.toml)."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "queueproof"
MAX_LINES = 500
CODE = sorted(p for folder in ("src", "tests", "benchmarks") for p in (ROOT / folder).rglob("*.py"))
SOURCE = [path for path in CODE if PACKAGE in path.parents]


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def imported(path: Path) -> Iterator[str]:
    """Dotted names of every import of a file, those inside functions included."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_there_is_something_to_check() -> None:
    assert len(SOURCE) > 20


@pytest.mark.parametrize("path", CODE, ids=name)
def test_files_are_short(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_LINES


def of_a_card(path: Path) -> bool:
    """Whether a file belongs to the kernels that need the extra `gpu`."""
    folder, file = str(path.parent.relative_to(PACKAGE)), path.name
    return folder.startswith(("kernels/triton", "kernels/cuda")) or (folder, file[:4]) == ("kernels/vendor", "cuda")


@pytest.mark.parametrize("path", SOURCE, ids=name)
def test_torch_is_imported_for_a_card_only(path: Path) -> None:
    packages = {n.split(".")[0] for n in imported(path)}
    assert not packages & ({"transformers"} if of_a_card(path) else {"torch", "triton", "transformers"})


@pytest.mark.parametrize("path", [p for p in SOURCE if "contract" in p.parts], ids=name)
def test_the_contract_needs_only_the_standard_library(path: Path) -> None:
    for module in imported(path):
        assert module.split(".")[0] in sys.stdlib_module_names or module.startswith("queueproof.contract")


# The plugin is an entry as the command is: pytest has no options that are read from the environment.
ENTRIES = PACKAGE / "cli", PACKAGE / "integrations" / "pytest_plugin.py"


@pytest.mark.parametrize("path", [p for p in SOURCE if not {p, *p.parents} & {*ENTRIES}], ids=name)
def test_only_the_cli_reads_environment_variables(path: Path) -> None:
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Attribute):
            assert node.attr not in ("environ", "environb", "getenv", "putenv"), f"{name(path)}:{node.lineno}"
        elif isinstance(node, ast.ImportFrom) and node.module == "os":
            assert not {a.name for a in node.names} & {"environ", "environb", "getenv", "putenv"}


def test_one_module_of_the_cli_reads_environment_variables() -> None:
    readers = [p.name for p in (PACKAGE / "cli").rglob("*.py") if re.search(r"os\.(environ|getenv)", p.read_text())]
    assert readers == ["env.py"]


@pytest.mark.parametrize("path", CODE, ids=name)
def test_no_exception_is_swallowed(path: Path) -> None:
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ExceptHandler):
            where = f"{name(path)}:{node.lineno}"
            assert node.type is not None, f"{where}: bare except"
            broad = isinstance(node.type, ast.Name) and node.type.id in ("Exception", "BaseException")
            silent = all(isinstance(statement, ast.Pass) for statement in node.body)
            assert not (broad and silent), f"{where}: every error is swallowed"


@pytest.mark.parametrize("path", [p for p in CODE if p != Path(__file__)], ids=name)
def test_a_todo_has_a_reason(path: Path) -> None:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if re.search(r"\b(TODO|FIXME|XXX|HACK)\b", line):
            assert re.search(r"TODO\([^)]+\): \w+", line), f"{name(path)}:{number}: write TODO(why or where): what"


@pytest.mark.parametrize("path", [p for p in CODE if (ROOT / "tests") in p.parents], ids=name)
def test_tests_are_not_rerun_or_skipped_to_pass(path: Path) -> None:
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Attribute):
            assert node.attr not in ("flaky", "xfail"), f"{name(path)}:{node.lineno}"


def test_what_runs_alone_is_there() -> None:
    """A test that moved would share its cores from then on."""
    from tests.conftest import ALONE, BESIDE

    assert [path for path in (*ALONE, *BESIDE) if not path.exists()] == []


@pytest.mark.parametrize("path", [p for p in SOURCE if p.name != "__init__.py"], ids=name)
def test_every_module_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(parsed(path)), f"{name(path)} has no docstring"
