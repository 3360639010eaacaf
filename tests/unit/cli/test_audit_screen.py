"""What an audit shows on a terminal, and in the log of a job."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from queueproof.cli.audit_screen import Screen, show
from tests.support import audit_records as records


def shown(name: str, width: int = 140) -> str:
    """The summary of a record as a terminal gets it."""
    written = io.StringIO()
    console = Console(file=written, width=width, highlight=False, force_terminal=True, color_system="standard")
    show(records.everything()[name], console, Path("out"))
    return written.getvalue()


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)


def test_the_summary() -> None:
    text = plain(shown("broken"))
    for words in (
        "http://gateway.internal:8000/v1: example/model-8b-instruct on vllm 0.32.0",
        "Answers change with neighbours in the batch; they hold against asking again and the prefix cache.",
        "29 of 240, 12 only in log-probabilities",
        "12.1% (8.2% to 16.9%)",
        "at most 3.1%",
        "24 requests ran at once (/metrics)",
        "The contract is broken: 1 of 2 promises.",
        "broken",
        "→ Start it with VLLM_BATCH_INVARIANT=1.",
        "sampler (likely)",
        "trouble, timeout: 1 times",
        "report: out/report.html",
    ):
        assert " ".join(words.split()) in " ".join(text.replace("│", " ").split()), words
    assert "The run was interrupted" in shown("interrupted")


@pytest.mark.parametrize("name", records.everything())
def test_no_text_of_a_server_reaches_the_terminal_as_a_command(name: str) -> None:
    text = plain(shown(name))
    assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e\u2066-\u2069]", text)
    text.encode("utf-8")


def run(console: Console) -> None:
    with Screen(console) as screen:
        screen.say("looking at [bold]http://h[/bold]\x1b[2J ...")
        screen.planned(["alone", "neighbours"], 48, 24, 300.0)
        for result in records.broken().probes[:2]:
            screen.began(result.name)
            screen.progress(result.compared, result.changed)
            screen.ended(result)


def test_a_log_gets_a_line_for_each_probe() -> None:
    written = io.StringIO()
    run(Console(file=written, highlight=False))
    assert written.getvalue().splitlines() == [
        "looking at [bold]http://h[/bold][U+001B][2J ...",
        "2 probes with 48 prompts and up to 24 users, in at most 300 s",
        "alone      holds        0 of 96 answers changed",
        "neighbours changes      29 of 240 answers changed",
    ]


def test_a_terminal_shows_what_is_under_way() -> None:
    written = io.StringIO()
    run(Console(file=written, highlight=False, force_terminal=True, width=120))
    text = plain(written.getvalue())
    assert "neighbours: 29 of 240 changed" in text and "2 of 2 probes" in text and re.search(r"[45]:\d\d left", text)
