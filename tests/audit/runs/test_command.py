"""`queueproof diff` as it is called."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from queueproof.audit.runs.diff import diff
from queueproof.audit.runs.page import page
from queueproof.audit.runs.record import DiffRecord, Outcome
from queueproof.cli.main import app

DATA = Path(__file__).parent / "data"


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["diff", *map(str, arguments)], env={"COLUMNS": "100", "TERM": "dumb"})


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_different() -> None:
    result = call(DATA / "alone.eval", DATA / "crowd.eval")
    assert result.exit_code == 1, result.output
    assert result.output.startswith("different: 1 of 4 answers changed, 3 of 4 kept the answer")
    assert "joined by id: 4 samples; only in A 0, only in B 0" in result.output
    assert "tiny_qa includes moved by -0.25, -0.25 of it explained by changed answers" in result.output
    assert "scattering▸. This" in result.output and "scattering▸, which" in result.output


def test_same() -> None:
    result = call(DATA / "alone.eval", DATA / "alone.eval", "--show", "0")
    assert result.exit_code == 0
    assert result.output.startswith("same: 4 answers in both runs, log-probabilities too")


def test_json() -> None:
    result = call(DATA / "lm_eval_choice_a", DATA / "lm_eval_choice_b", "--json")
    assert result.exit_code == 1
    record = DiffRecord.from_json(result.stdout)
    assert record == diff(DATA / "lm_eval_choice_a", DATA / "lm_eval_choice_b", kept=50)


def test_nothing_to_compare(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a", {"id": 1, "answer": "x"}), write(tmp_path / "b", {"id": 2, "answer": "x"})
    result = call(a, b)
    assert result.exit_code == 3 and "only in A 1 (1), only in B 1 (2)" in result.output
    assert call(a, b, "--by", "position").exit_code == 0


def test_partners_for_all(tmp_path: Path) -> None:
    a = write(tmp_path / "a", {"id": 1, "answer": "x"}, {"id": 2, "answer": "x"})
    b = write(tmp_path / "b", {"id": 2, "answer": "x"})
    assert call(a, b).exit_code == 0 and call(a, b, "--all").exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["none", "none"], "none is not there"),
        ([str(DATA), str(DATA)], "folder"),
        ([str(DATA / "alone.eval"), str(DATA / "crowd.eval"), "--by", "luck"], "document, id, prompt, position"),
        ([str(DATA / "alone.eval"), str(DATA / "crowd.eval"), "--out", "a.pdf"], "must end in .html"),
        ([str(DATA / "vllm_bench_alone.json")] * 2 + ["--format", "csv"], "known are: lm-eval"),
        ([str(DATA / "vllm_bench_alone.json")] * 2 + ["--format-b", "plain"], "a sample has one of id"),
    ],
)
def test_bad_input(arguments: list[str], said: str) -> None:
    result = call(*arguments)
    assert result.exit_code == 2 and said in result.stderr, result.output
    as_json = call(*arguments, "--json")
    assert as_json.exit_code == 2 and said in json.loads(as_json.stdout)["error"]["message"]


def test_what_a_model_writes_does_not_reach_the_terminal(tmp_path: Path) -> None:
    a = write(tmp_path / "a", {"id": "[bold]", "answer": "\x1b[2J\u202egood [red]x[/red]\ud800"})
    b = write(tmp_path / "b", {"id": "[bold]", "answer": "\x1b[2J\u202ebad [/x]"})
    result = call(a, b, "--out", tmp_path / "page.html")
    assert result.exit_code == 1 and "\x1b" not in result.output and "\u202e" not in result.output
    assert "[bold]" in result.output and "\\x1b" in result.output and "▸good [red]x" in result.output.replace("\n", "")
    shown = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "\u202e" not in shown and all(code in shown for code in ("\\x1b", "\\u202e", "\\ud800"))


class _Checked(HTMLParser):
    """Every element closed; addresses collected."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_page(tmp_path: Path) -> None:
    result = call(DATA / "alone.eval", DATA / "crowd.eval", "--out", tmp_path / "page.html", "--show", "1")
    assert result.exit_code == 1
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    checked = _Checked()
    checked.feed(text)
    assert checked.open == [] and checked.links == [] and "http" not in re.sub(r"http-equiv", "", text)
    assert text.count("<article>") == 4 and "<mark>. This" in text and "<mark>, which" in text


def test_page_escapes(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    a, b = (
        write(tmp_path / "a", {"id": evil, "prompt": evil, "answer": evil}),
        write(tmp_path / "b", {"id": evil, "answer": ""}),
    )
    assert "<script" not in page(diff(a, b))


def test_page_of_nothing(tmp_path: Path) -> None:
    record = diff(write(tmp_path / "a"), write(tmp_path / "b"))
    assert record.outcome is Outcome.NOTHING and "nothing to compare" in page(record)
