"""Whole comparisons: real logs of servers asked one by one and six at once, and scores that moved for each reason."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from queueproof.audit.runs.diff import diff
from queueproof.audit.runs.join import By
from queueproof.audit.runs.record import Change, DiffRecord, Outcome, Unit, json_schema
from queueproof.audit.runs.words import explained, headline, paragraphs
from queueproof.contract.errors import ContractError

DATA = Path(__file__).parent / "data"
DOCS = Path(__file__).parents[3] / "docs"


def run(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("a", "b", "by", "unit", "compared", "changed", "logprobs"),
    [
        ("lm_eval_alone", "lm_eval_crowd", By.DOCUMENT, Unit.TEXT, 6, 1, 0),
        ("lm_eval_choice_a", "lm_eval_choice_b", By.DOCUMENT, Unit.OPTIONS, 10, 1, 9),
        ("alone.eval", "crowd.eval", By.ID, Unit.TOKENS, 4, 1, 3),
        ("batch_alone.jsonl.gz", "batch_crowd.jsonl.gz", By.ID, Unit.IDS, 4, 0, 2),
        ("vllm_bench_alone.json", "vllm_bench_crowd.json", By.POSITION, Unit.TEXT, 5, 1, 0),
        ("guidellm_alone.json.gz", "guidellm_crowd.json.gz", By.PROMPT, Unit.TEXT, 6, 0, 0),
    ],
)
def test_real_logs(a: str, b: str, by: By, unit: Unit, compared: int, changed: int, logprobs: int) -> None:
    record = diff(DATA / a, DATA / b)
    total = record.total
    assert record.join.by is by and [u.unit for u in total.units] == [unit] and record.join.asked_otherwise == 0
    assert (total.compared, total.changed, total.logprobs_changed) == (compared, changed, logprobs)
    assert record.outcome is (Outcome.DIFFERENT if changed or logprobs else Outcome.SAME)
    assert DiffRecord.from_json(record.to_json()) == record
    back = diff(DATA / b, DATA / a)
    assert (back.total, back.outcome) == (total, record.outcome)
    assert diff(DATA / a, DATA / a).outcome is Outcome.SAME


def test_a_score_moved_because_an_answer_did() -> None:
    record = diff(DATA / "alone.eval", DATA / "crowd.eval")
    first = record.differences[0]
    assert first.id == "q3" and first.position == 12 and first.margin is not None
    assert [(m.name, m.a, m.b) for m in first.moves] == [("includes", "C", "I")]
    includes = record.metrics[0]
    assert (includes.moved, includes.moved_with_answer, includes.up, includes.down) == (1, 1, 0, 1)
    assert includes.delta == includes.by_answers == -0.25 and includes.binary and includes.p == 1.0
    assert "moved by -0.25, -0.25 of it explained by changed answers" in explained(includes)
    assert "1 of 4 answers changed" in headline(record)


def test_formats_mixed(tmp_path: Path) -> None:
    record = diff(DATA / "lm_eval_alone", DATA / "guidellm_crowd.json.gz")
    assert record.join.by is By.PROMPT and record.join.joined == 5 and record.join.only_a == 1
    texts = json.loads((DATA / "vllm_bench_alone.json").read_text())["generated_texts"]
    rows = [{"id": i, "answer": text} if text else {"id": i, "error": "?"} for i, text in enumerate(texts)]
    record = diff(DATA / "vllm_bench_alone.json", run(tmp_path / "b.jsonl", *rows))
    assert record.join.by is By.POSITION and record.outcome is Outcome.SAME and record.total.failed == 1


A = [
    {"id": 1, "prompt": "p", "answer": "yes", "target": "t", "scores": {"em": 1, "f1": 0.5}},
    {"id": 2, "prompt": "q", "answer": "same", "target": "t", "scores": {"em": 0, "f1": 0.5}},
    {"id": 3, "prompt": "r", "answer": "same", "target": "t", "scores": {"em": 0, "f1": math.nan}},
    {"id": 4, "prompt": "s", "answer": "l", "tokens": ["l"], "logprobs": [-1.0], "scores": {"em": 1, "f1": 0.5}},
]


def test_why_scores_moved(tmp_path: Path) -> None:
    b = [
        A[3] | {"logprobs": [-1.5], "scores": {"em": 0, "f1": 0.25}},
        A[2] | {"target": "u", "scores": {"em": 1, "f1": math.nan}},
        A[1] | {"scores": {"em": 1, "f1": 1.0}},
        A[0] | {"answer": "no", "scores": {"em": 0, "f1": 0.0}},
    ]
    record = diff(run(tmp_path / "a", *A), run(tmp_path / "b", *b))
    em, f1 = record.metrics
    assert (em.scored, em.moved, em.moved_with_answer, em.moved_with_logprobs) == (4, 4, 1, 1)
    assert (em.moved_neither, em.target_moved, em.up, em.down, em.delta) == (2, 1, 2, 2, 0.0)
    assert (em.by_answers, em.by_logprobs, em.by_neither) == (-0.25, -0.25, 0.5)
    assert (f1.scored, f1.numbers, f1.moved, f1.binary) == (4, 3, 3, False)  # not a number stays what it is
    assert f1.mean_a == 0.5 and f1.mean_b == pytest.approx(1.25 / 3)
    assert "2 with the same answer (target or scorer changed, 1 of them with another target)" in explained(em)
    assert {d.change for d in record.differences} == set(Change)


def test_answers_the_same_and_scores_not(tmp_path: Path) -> None:
    record = diff(run(tmp_path / "a", A[0]), run(tmp_path / "b", A[0] | {"scores": {"em": 0}}))
    assert record.outcome is Outcome.DIFFERENT and record.total.changed == 0
    assert headline(record) == "different: 1 score moved"


def test_trouble_is_no_difference(tmp_path: Path) -> None:
    failed = {"id": 1, "error": "HTTP 500", "scores": {"em": 0}}
    record = diff(run(tmp_path / "a", A[0], A[1]), run(tmp_path / "b", failed, A[1]))
    assert record.outcome is Outcome.SAME and record.total.failed == 1 and record.metrics[0].scored == 1
    record = diff(run(tmp_path / "a", A[0]), run(tmp_path / "b", failed))
    assert record.outcome is Outcome.NOTHING and "none has an answer" in headline(record)


def test_nothing_joined(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_text("")
    for a, b in (
        (empty, run(tmp_path / "a", *A)),
        (empty, empty),
        (tmp_path / "a", run(tmp_path / "b", {"id": 9, "text": ""})),
    ):
        record = diff(a, b)
        assert record.outcome is Outcome.NOTHING and DiffRecord.from_json(record.to_json()) == record
    assert record.join.only_a == 4 and record.join.first_only_a == ("1", "2", "3", "4")


def test_asked_otherwise(tmp_path: Path) -> None:
    record = diff(run(tmp_path / "a", *A[:2]), run(tmp_path / "b", A[0] | {"prompt": "P!"}, A[1]))
    assert record.join.asked_otherwise == 1
    assert any("asked otherwise: 1" in line for line in paragraphs(record))
    lengths = [{"generated_texts": ["a"], "input_lens": [n]} for n in (3, 4)]
    record = diff(run(tmp_path / "a", lengths[0]), run(tmp_path / "b", lengths[1]))
    assert record.join.asked_otherwise == 1


def test_long_texts_are_cut_around_the_difference(tmp_path: Path) -> None:
    long = "x" * 9000
    a = run(tmp_path / "a", {"id": 1, "answer": long + "A" + long})
    (found,) = diff(a, run(tmp_path / "b", {"id": 1, "answer": long + "B" + long})).differences
    assert found.position == 9000 and len(found.a) < 9000
    assert (
        found.a[found.split] == "A" and found.b[found.split] == "B" and found.a[: found.split] == found.b[: found.split]
    )


def test_kept_differences(tmp_path: Path) -> None:
    a = run(tmp_path / "a", *({"id": i, "answer": "a", "score": 1} for i in range(30)))
    b = run(tmp_path / "b", *({"id": i, "answer": "b", "score": int(i != 29)} for i in range(30)))
    record = diff(a, b, kept=3)
    assert [d.id for d in record.differences] == ["29", "0", "1"]


def test_progress_is_told(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    rows = ({"id": i, "answer": "a" * 400} for i in range(200))
    a = run(tmp_path / "a", *rows)
    diff(a, a, report=lambda *step: told.append(step))
    assert {what for what, _, _ in told} == {"reading A", "reading B", "comparing"}
    assert all(0 <= done <= total for _, done, total in told)


def test_gzip_is_the_same_run(tmp_path: Path) -> None:
    a = run(tmp_path / "a", *A)
    (tmp_path / "b").write_bytes(gzip.compress(a.read_bytes()))
    assert diff(a, tmp_path / "b").outcome is Outcome.SAME


def test_the_schema_in_the_docs_is_current() -> None:
    assert json.loads((DOCS / "diff.schema.json").read_text()) == json_schema()


def test_another_schema_is_refused() -> None:
    with pytest.raises(ContractError, match="'queueproof/diff/2'"):
        DiffRecord.from_json('{"schema": "queueproof/diff/2"}')
    with pytest.raises(ContractError, match="not JSON"):
        DiffRecord.from_json("{")


row = st.fixed_dictionaries(
    {"id": st.integers(0, 4), "answer": st.text(max_size=4)},
    optional={"prompt": st.text(max_size=2), "score": st.floats() | st.booleans(), "target": st.text(max_size=2)},
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(st.lists(row, max_size=8), st.lists(row, max_size=8))
def test_any_two_runs(tmp_path: Path, a: list[dict[str, Any]], b: list[dict[str, Any]]) -> None:
    record = diff(run(tmp_path / "a", *a), run(tmp_path / "b", *b))
    join, total = record.join, record.total
    assert join.joined + join.only_a == len(a) and join.joined + join.only_b == len(b)
    assert total.joined == join.joined == total.compared + total.failed
    assert DiffRecord.from_json(record.to_json()) == record
    for metric in record.metrics:
        assert metric.moved == metric.moved_with_answer + metric.moved_with_logprobs + metric.moved_neither
        if metric.delta is not None and metric.mean_a is not None and metric.by_answers is not None:
            parts = (metric.by_answers, metric.by_logprobs or 0.0, metric.by_neither or 0.0)
            scale = max(1.0, *map(abs, parts))
            assert math.fsum(parts) == pytest.approx(metric.delta, abs=1e-9 * scale)
