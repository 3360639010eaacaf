"""The page and the table of a price."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from queueproof.audit.price import words
from queueproof.audit.price.page import page
from queueproof.audit.price.ratios import compare
from queueproof.audit.price.records import Outcome, PriceResult
from queueproof.cli.price_screen import Screen, show
from tests.audit.price.test_records import result
from tests.support.browser import Tab, chromium, find_chromium


def test_the_page_needs_nothing_else_and_escapes_what_it_shows() -> None:
    text = page(replace(result(100.0, 50.0, 101.0), notes=("<script>alert(1)</script>",)))
    assert not re.search(r"<script|<link|<img|@import|url\(|src=", text)
    assert "&lt;script&gt;" in text and "MODE=1 serve &lt;m&gt;" in text and text.count("<svg") == 4
    assert "0.498 (" in text and "queueproof 0" in text and "trouble: 429, 2 times" in text


def test_a_refusal_shows_both_differences() -> None:
    it = result(100.0, 99.0, 110.0)
    refused = "no price: baseline and baseline +10.0%, baseline and candidate -5.6%"
    assert refused in page(it) and 'class="dot hollow"' in page(it)
    assert words.summary(it) == (
        "The candidate's tokens/s / the baseline's: no price at 1 user (within the noise), "
        "no price at 8 users (within the noise)."
    )
    assert "no price: too few runs; as seen 0.500" in page(few())
    wide = result(100.0, 99.0, 100.0)
    wide = replace(wide, comparisons=tuple(replace(c, outcome=Outcome.WIDE, price=None) for c in wide.comparisons))
    assert "no price: it is anywhere from 0.99 to 0.99" in page(wide)
    assert "not measured at 1 user" in words.summary(result(1.0))
    assert "<svg" not in page(result(1.0)), "nothing to draw"


def few() -> PriceResult:
    """One seed: no interval."""
    it = result(100.0, 50.0, 100.0)
    return replace(it, comparisons=compare([run for run in it.runs if run.seed == 0], (1, 8), 0.95))


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    show(result(100.0, 50.0, 101.0), Console(width=120))
    out = capsys.readouterr().out
    assert "0.498 (" in out and "20.00 ms" in out and "a note" in out
    assert '{"a": 1}' in out and "MODE=1 serve <m>" in out


def test_the_screen_says_what_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    with Screen(Console()) as screen:
        screen.stage("warming up the baseline")
        screen.planned(2, 20, 150.0)
        screen.ran(result(1.0, 1.0, 1.0).runs[0])
    assert capsys.readouterr().out == "warming up the baseline …\n2 rounds, 20 runs: about 2.5 min from now on\n"
    with Screen(Console(force_terminal=True, width=80, highlight=False)) as screen:
        screen.stage("turn 1")
        screen.planned(1, 3, 10.0)
        screen.ran(result(1.0, 1.0, 1.0).runs[0])
    out = capsys.readouterr().out
    assert "about 10 s" in out and "turn 1" in out and "1/3" in out


@pytest.fixture
def tab(tmp_path: Path) -> Iterator[Tab]:
    if find_chromium() is None:
        pytest.skip("there is no Chromium")
    with chromium(tmp_path / "profile") as opened:
        yield opened


@pytest.mark.browser
def test_in_a_browser(tab: Tab, tmp_path: Path) -> None:
    file = tmp_path / "price.html"
    file.write_text(page(result(100.0, 50.0, 101.0)), encoding="utf-8")
    for width, scheme in ((1200, "light"), (360, "dark")):
        tab.size(width, 900)
        tab.media(prefers_color_scheme=scheme)
        tab.open(file.as_uri())
        assert tab.run("document.documentElement.scrollWidth") <= width, "nothing is wider than the window"
        assert tab.run("document.querySelectorAll('svg circle').length") == 4 + 6
    assert tab.errors == [] and {url.split(":")[0] for url in tab.requests} == {"file"}
