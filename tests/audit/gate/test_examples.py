"""docs/examples: they can be read, and what they call exists."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest
import typer.main
import yaml

from queueproof.audit.gate.contract_file import read_contract
from queueproof.cli.main import app
from queueproof.cli.quantities import parse_budget

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
OPTIONS = [
    "--model",
    "--api-key-env",
    "--prompts",
    "--probes",
    "--budget",
    "--contract",
    "--out",
    "--junit",
    "--openslo",
    "--against",
    "--users",
    "--detect",
    "--resume",
    "--seed",
    "--json",
]


def options_of(name: str) -> set[str]:
    group = typer.main.get_command(app)
    found: Any = group.get_command(click.Context(group), name)  # type: ignore[attr-defined]
    return {option for parameter in found.params for option in parameter.opts}


@pytest.fixture(scope="module")
def steps() -> list[dict[str, Any]]:
    workflow = yaml.safe_load((EXAMPLES / "queueproof-audit.yml").read_text())
    assert set(workflow) == {"name", True, "permissions", "concurrency", "jobs"}  # YAML 1.1 reads `on` as true
    found: list[dict[str, Any]] = workflow["jobs"]["audit"]["steps"]
    return found


def test_the_contract() -> None:
    found = read_contract(EXAMPLES / "contract.yaml")
    assert found.probes() == ("alone", "neighbours", "order", "seeds", "stream")


def test_the_price_in_the_contract_once_it_is_no_comment(tmp_path: Path) -> None:
    text = (EXAMPLES / "contract.yaml").read_text()
    start = text.index("# price:")
    path = tmp_path / "contract.yaml"
    path.write_text(text[:start] + re.sub(r"^# ", "", text[start:], flags=re.MULTILINE))
    price = read_contract(path).price
    assert price is not None and price.users == (1, 8, 32)


def test_the_command_has_the_options_that_documents_name() -> None:
    assert set(OPTIONS) <= options_of("audit")


def test_the_workflow_calls_what_there_is(steps: list[dict[str, Any]]) -> None:
    (audit,) = (step for step in steps if step.get("name") == "Hold the endpoint to its contract")
    program, command, *rest = shlex.split(audit["run"])
    given = dict(zip(rest[::2], rest[1::2], strict=True))
    assert (program, command) == ("queueproof", "audit") and set(given) <= options_of("audit")
    assert (EXAMPLES / given["--contract"]).exists() and parse_budget(given["--budget"]).seconds == 600
    (kept,) = (step for step in steps if "upload-artifact" in step.get("uses", ""))
    assert kept["if"] == "${{ !cancelled() }}"  # a broken contract's report is what one wants to see
    assert set(kept["with"]["path"].split()) >= {"audit/report.html", given["--junit"], given["--openslo"]}
