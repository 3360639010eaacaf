"""Sentences and numbers of a report."""

from __future__ import annotations

from dataclasses import replace

import pytest

from queueproof.audit import names
from queueproof.audit.records import Clause, Verdict
from queueproof.audit.report import rows, words
from queueproof.audit.report.plots import figures
from queueproof.audit.report.svg import Line, Point, Strip, lines, strips
from queueproof.audit.report.texts import chosen
from tests.support import audit_records as records


@pytest.mark.parametrize(
    ("share", "up", "said"),
    [
        (0.0, None, "0%"),
        (1.0, None, "100%"),
        (0.1234, None, "12.3%"),
        (0.1234, True, "12.4%"),
        (0.1239, False, "12.3%"),
        (0.12, True, "12%"),
        (0.9999, True, "100%"),
        (0.9999, False, "99.9%"),
        (0.0123, True, "1.3%"),
        (0.00123, True, "0.13%"),
        (2.4e-6, True, "0.00024%"),
        (1e-15, True, "0.000000000001%"),
    ],
)
def test_shares_are_rounded_to_the_careful_side(share: float, up: bool | None, said: str) -> None:
    assert words.percent(share, up) == said


def test_an_interval_of_none_changed_is_a_bound() -> None:
    alone, neighbours, _ = records.broken().probes
    assert rows.share(alone) == "at most 3.1%"
    assert rows.share(neighbours) == "12.1% (8.2% to 16.9%)"
    assert rows.share(records.failed().probes[0]) == rows.changed(records.failed().probes[0]) == ""


def test_the_verdict_in_a_sentence() -> None:
    assert rows.headline(records.broken()) == (
        "Answers change with neighbours in the batch; they hold against asking again and the prefix cache."
    )
    assert rows.headline(records.clean()) == (
        "Answers hold against asking again, neighbours in the batch and the prefix cache."
    )
    assert rows.headline(records.record()) == "Nothing was compared."


def test_a_contract_in_a_sentence() -> None:
    kept = Clause("a", "b", Verdict.HOLDS, "c")
    open_ = replace(kept, verdict=Verdict.INCONCLUSIVE)
    assert rows.promises(()) == ""
    assert rows.promises((kept,)) == "The contract holds: its promise is kept."
    assert rows.promises((kept, kept)) == "The contract holds: all 2 promises."
    assert rows.promises((kept, open_)) == "The contract is not shown to hold: 1 of 2 promises are."


def test_the_witness_that_decides() -> None:
    assert rows.rows(records.broken())[1].witness == "24 requests ran at once (/metrics)"
    assert rows.rows(records.inconclusive())[1].witness.startswith("not shown: ")
    assert rows.rows(records.clean())[0].witness == ""


def test_crowds_have_the_colour_of_their_verdict_and_two_are_told_apart() -> None:
    crowd, clean = records.broken().probes[1], records.clean()
    kept = next(probe for probe in clean.probes if probe.name == names.NEIGHBOURS)
    assert crowd.verdict is Verdict.CHANGES and kept.verdict is Verdict.HOLDS and kept.groups[0].x is not None
    load = replace(kept, name=names.LOAD)
    for probes, kinds in (((crowd,), "b"), ((kept,), "a"), ((kept, load), "ac"), ((crowd, load), "ba")):
        drawn = [f for f in figures(replace(clean, probes=probes)) if f.title.endswith("by users at once")]
        assert "".join(kind for kind, _ in drawn[0].keys) == kinds


def test_prompts_that_were_left_out_are_counted() -> None:
    run = replace(records.clean().run, left_out=("long-1",))
    assert ("left out", "1 prompt, too long for the budget: long-1") in rows.method(replace(records.clean(), run=run))
    assert "left out" not in dict(rows.method(records.clean()))


def test_real_disagreements_are_shown_first_and_prompts_once() -> None:
    pairs = chosen(records.broken().probes[1])
    assert [pair.judgement for pair in pairs] == ["real disagreement"] * 4
    assert len({pair.prompt for pair in pairs}) == 4


@pytest.mark.parametrize("values", [(0.0,), (5.0, 5.0), (1e-9, 3.0), (1e12, 2e12)])
def test_plots_have_a_scale_for_any_values(values: tuple[float, ...]) -> None:
    drawn = strips("t", "d", [Strip("row", values)], "scale", lambda v: f"{v:g}")
    curve = lines("t", "d", ["1", "2"], [Line("l", "a", (Point(0, values[0], ""), Point(1, values[-1], "")))], "x", str)
    for text in (drawn, curve):
        assert "nan" not in text and text.count('class="grid"') >= 2


def test_powers_of_ten() -> None:
    drawn = strips("t", "d", [Strip("row", (1e-6, 0.02))], "scale", lambda v: f"{v:g}", log=True)
    assert ">1e-06<" in drawn and ">0.1<" in drawn
