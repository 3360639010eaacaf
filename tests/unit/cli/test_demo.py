from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from queueproof.cli import loading
from queueproof.cli.demo import blas_threads
from queueproof.cli.demo_screen import Screen
from queueproof.cli.main import app
from tests.support.fake_backend import FakeTokenizer, load_fake


class Words(FakeTokenizer):
    """Five bytes a token: about as many tokens as a real tokenizer makes of a conversation."""

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> list[int]:
        return super().encode_chat(messages, **options)[::5]


AXES = {"neighbours", "order", "schedule", "cache", "phase", "parallelism"}


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Arithmetics whose fake model sees its neighbours; the demo runs on fakes."""
    names = {"vendor"}

    def load(model: str, arithmetic: str, report: loading.Report) -> Any:
        loaded = load_fake(arithmetic=arithmetic, max_len=4096, eos_ids=(), broken=arithmetic in names)
        loaded.tokenizer = Words(loaded.config.vocab_size)
        return loaded

    monkeypatch.setattr(loading, "load", load)
    return names


def test_json_is_one_object_with_both_arithmetics(broken: set[str]) -> None:
    result = CliRunner().invoke(app, ["demo", "--json"])
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    vendor, ieee = report["results"]
    assert (vendor["arithmetic"], ieee["arithmetic"]) == ("vendor", "ieee/1")
    assert vendor["requests"] == ieee["requests"] == 24
    assert vendor["changed"] > 0 and ieee["changed"] == 0
    for row in report["results"]:
        assert row["tokens_per_s"] > 0 and set(row["axes"]) == AXES
        assert all(axis["witness"] > 0 for axis in row["axes"].values())
    assert sum(axis["changed"] for axis in ieee["axes"].values()) == 0


def test_the_report_shows_an_example_and_the_counts(broken: set[str]) -> None:
    result = CliRunner().invoke(app, ["demo", "--requests", "12"])
    assert "got another token at position" in result.stdout
    assert "answers changed on any axis" in result.stdout
    assert "vendor  neighbours" in result.stderr  # a line for each run where there is no terminal


def test_a_change_in_ours_is_exit_1(broken: set[str]) -> None:
    broken.add("ieee/1")
    assert CliRunner().invoke(app, ["demo", "--json"]).exit_code == 1


def test_an_axis_that_did_not_move_is_exit_1(broken: set[str]) -> None:
    result = CliRunner().invoke(app, ["demo", "--json", "--max-tokens", "1", "--requests", "2"])
    assert result.exit_code == 1
    assert "phase did not move" in result.stderr


@pytest.mark.parametrize("arguments", [["--requests", "1"], ["--requests", "25"], ["--max-tokens", "0"], ["extra"]])
def test_values_out_of_range_are_exit_2(arguments: list[str]) -> None:
    assert CliRunner().invoke(app, ["demo", *arguments]).exit_code == 2


def test_the_blas_takes_a_number_of_threads() -> None:
    np.ones((4, 4)) @ np.ones((4, 4))
    with blas_threads(1) as used:
        assert used == 1


def test_the_time_to_expect_is_shown_only_while_it_can_be_true(monkeypatch: pytest.MonkeyPatch) -> None:
    screens = [Screen(("vendor",), (), 24, full) for full in (True, False)]
    assert [screen.clock for screen in screens] == ["0 s of about 180 s", "0 s"]
    now = 0.0
    monkeypatch.setattr("queueproof.cli.demo_screen.time.monotonic", lambda: now)
    screens[0].start()
    now = 181.0
    assert screens[0].clock == "181 s"
