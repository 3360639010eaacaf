"""The README says what is so: its commands run, its links lead somewhere, and CI runs its test command."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import pytest

import queueproof

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
PREFIX = "queueproof "


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


LINES = [line for block in blocks("sh") for line in block.splitlines()]
MAIN, CHECK = (line for line in LINES if line.startswith("pip install"))
(SERVE,) = (line for line in LINES if line.startswith(PREFIX + "serve"))
(AUDIT,) = (line for line in LINES if line.startswith(PREFIX + "audit"))
COMMANDS = [line for line in LINES if line.startswith(PREFIX) and line not in (SERVE, AUDIT)]
SERVED, OFFLINE = blocks("python")


def run(command: str) -> subprocess.CompletedProcess[str]:
    """A README command through this interpreter, so that it needs no console script on the path."""
    arguments = [sys.executable, "-m", "queueproof", *shlex.split(command)[1:]]
    return subprocess.run(arguments, capture_output=True, text=True, timeout=900, check=False, env=os.environ)


@cache
def first_run(command: str) -> subprocess.CompletedProcess[str]:
    return run(command)


def test_every_command_is_known() -> None:
    assert {*COMMANDS, SERVE, AUDIT, MAIN, CHECK} == set(LINES), LINES


def test_ci_runs_the_test_command_word_for_word() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    assert script.splitlines()[-1].replace("pip install -q ", "pip install ") == CHECK


def test_the_main_command_is_the_demo() -> None:
    assert MAIN == "pip install -e . && queueproof demo"


@pytest.mark.slow
def test_the_demo_finds_changes_in_vendor_and_none_in_ieee1() -> None:
    result = run("queueproof demo --json")
    assert result.returncode == 0, result.stderr
    vendor, ieee = json.loads(result.stdout)["results"]
    assert (vendor["arithmetic"], vendor["requests"]) == ("vendor", 24) and vendor["changed"] > 0
    assert (ieee["arithmetic"], ieee["requests"], ieee["changed"]) == ("ieee/1", 24, 0)
    assert set(ieee["axes"]) == {"neighbours", "order", "schedule", "cache", "phase", "parallelism"}
    for name, axis in ieee["axes"].items():
        assert axis["changed"] == 0 and axis["witness"] > 0, (name, axis)


@pytest.mark.slow
@pytest.mark.parametrize("command", [c for c in COMMANDS if not c.startswith("queueproof demo")])
def test_a_command_of_the_readme_runs(command: str) -> None:
    result = first_run(command)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() and "Traceback" not in result.stderr
    if "--json" in command:
        json.loads(result.stdout)


@pytest.mark.slow
def test_a_command_repeated_says_the_same() -> None:
    command = next(c for c in COMMANDS if "--seed" in c)
    assert first_run(command).stdout == run(command).stdout


@pytest.mark.slow
def test_the_python_example_runs() -> None:
    result = subprocess.run([sys.executable, "-c", OFFLINE], capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("ieee/1 portable") == 2


@pytest.mark.slow
def test_the_server_answers_the_example_and_replays_its_receipt(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("w") as file:
        server = subprocess.Popen(
            [sys.executable, "-m", "queueproof", *shlex.split(SERVE)[1:]], stdout=file, stderr=subprocess.STDOUT
        )
    try:
        end = time.monotonic() + 300
        while " at http://127.0.0.1:8000" not in log.read_text():
            assert server.poll() is None and time.monotonic() < end, log.read_text()
            time.sleep(0.2)
        answer = subprocess.run([sys.executable, "-c", SERVED], capture_output=True, text=True, timeout=300, check=False)
        assert answer.returncode == 0, answer.stderr
        kind, receipt = answer.stdout.split()[-2:]
        assert kind == "portable" and receipt.startswith("rcpt-")
        replayed = run(f"queueproof replay {receipt} --server http://127.0.0.1:8000")
        assert replayed.returncode == 0 and replayed.stdout.startswith("same"), replayed.stdout + replayed.stderr
        audited = run(AUDIT.replace("--out audit", f"--out {tmp_path / 'audit'}"))
        assert audited.returncode in (0, 3), audited.stdout + audited.stderr  # 3: a slow machine could not show all
        assert "report.html" in audited.stdout and (tmp_path / "audit" / "report.html").stat().st_size > 10_000
        probes = json.loads((tmp_path / "audit" / "audit.json").read_text())["probes"]
        verdicts = {probe["name"]: probe["verdict"] for probe in probes}
        assert "changes" not in verdicts.values() and verdicts["neighbours"] == "holds", verdicts
    finally:
        server.terminate()
        assert server.wait(60) == 0, log.read_text()


def test_public_names_exist_and_the_readme_uses_some() -> None:
    for name in queueproof.__all__:
        assert getattr(queueproof, name) is not None
    assert {"LLM", "AsyncEngine", "SamplingParams", "QueueproofError", "DeterminismClass"} <= set(queueproof.__all__)
    for imported in re.findall(r"from queueproof import (.+)", README):
        assert set(imported.split(", ")) <= set(queueproof.__all__)


def test_environment_variables_are_those_that_are_read() -> None:
    read = set(re.findall(r'"(QUEUEPROOF_\w+)"', (ROOT / "src/queueproof/cli/env.py").read_text()))
    assert set(re.findall(r"QUEUEPROOF_\w+", README)) == read


@pytest.mark.parametrize("page", DOCS, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_paths_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        assert link.startswith("https://") or (page.parent / link).exists(), link
    package = ROOT / "src" / "queueproof"
    for path in re.findall(r"`((?:src|tests|docs|scripts|\.ci)/[\w./-]*)`", text):
        assert (ROOT / path).exists(), path
    for path in re.findall(r"`((?:contract|arithmetic|kernels|models|engine|server|cli)/[\w./-]*)`", text):
        assert (package / path).exists(), path


@pytest.mark.parametrize("page", ["README.md", "docs/contract.md"])
def test_classes_are_described_as_they_are(page: str) -> None:
    from queueproof.contract.axes import Axis
    from queueproof.contract.classes import DeterminismClass

    text = (ROOT / page).read_text(encoding="utf-8")
    for member in DeterminismClass:
        assert f"| `{member.value}` |" in text
    if page == "docs/contract.md":
        for axis in Axis:
            assert f"| `{axis.value}` | {axis.meaning} |" in text
