from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from queueproof.cli.main import app
from queueproof.contract.errors import UnsupportedDevice
from queueproof.kernels import canary
from queueproof.kernels.canary import CanaryResult

VENDOR = CanaryResult("vendor", "cpu", False, "", None, "promises nothing")
SOUND = CanaryResult("ieee/1", "cpu", True, "ab" * 32, "ab" * 32, "agrees")
OTHER = CanaryResult("ieee/1", "cpu", False, "cd" * 32, "ab" * 32, "other bits than recorded")


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> dict[str, CanaryResult]:
    found = {"vendor": VENDOR, "ieee/1": SOUND}

    def check(arithmetic: str, device: str) -> CanaryResult:
        if device != "cpu":
            raise UnsupportedDevice("there is no card here")
        return found[arithmetic]

    monkeypatch.setattr(canary, "check", check)
    return found


def test_a_sound_machine(results: dict[str, CanaryResult]) -> None:
    result = CliRunner().invoke(app, ["doctor", "--json"])
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    offers = {row["class"]: (row["offered"], row["given_as"], row["arithmetic"]) for row in report["classes"]}
    assert offers == {
        "best-effort": (True, "best-effort", "vendor"),
        "batch": (True, "portable", "ieee/1"),
        "request": (True, "portable", "ieee/1"),
        "portable": (True, "portable", "ieee/1"),
    }
    assert {row["arithmetic"]: row["reason"] for row in report["missing"]} == {
        "tensorcore/1": "there is no card here",
        "vendor": "there is no card here",
    }
    assert report["machine"]["threads"] >= 1 and "numba" in report["versions"]


def test_other_bits_are_exit_1_and_no_class_is_backed_by_them(results: dict[str, CanaryResult]) -> None:
    results["ieee/1"] = OTHER
    result = CliRunner().invoke(app, ["doctor", "--json"])
    assert result.exit_code == 1
    rows = {row["class"]: row for row in json.loads(result.stdout)["classes"]}
    assert rows["best-effort"]["offered"]
    for name in ("batch", "request", "portable"):
        assert not rows[name]["offered"]
        assert "other bits than recorded" in rows[name]["reason"]


@pytest.mark.parametrize("ieee", [SOUND, OTHER])
def test_the_report_for_people(results: dict[str, CanaryResult], ieee: CanaryResult) -> None:
    results["ieee/1"] = ieee
    shown = CliRunner().invoke(app, ["doctor"]).stdout
    assert "Canaries" in shown and "Classes" in shown
    assert ("FAILED" in shown) == (not ieee.ok)
