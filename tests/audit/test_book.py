"""What a probe writes down, and the verdict that follows."""

from __future__ import annotations

from dataclasses import replace

from queueproof.audit.ask import Answer
from queueproof.audit.book import KEPT, Book
from queueproof.audit.records import Group, Unit, Verdict
from queueproof.contract.axes import Axis

A = Answer("p", "one", "length", 0.0, 1.0, ids=(1,), logprobs=(-1.0,), margins=(0.5,))
TEXT = replace(A, text="two", ids=(2,))
LOGPROB = replace(A, logprobs=(-1.5,))


def book(needs_witness: bool = True) -> Book:
    return Book("neighbours", "Do neighbours matter?", Axis.NEIGHBOURS, needs_witness)


def test_nothing_changed_holds_only_with_a_witness_that_moved() -> None:
    unseen, still, moved, floor = book(), book(), book(), book(needs_witness=False)
    for b in (unseen, still, moved, floor):
        b.compare(A, A, "2 users", "alone", "crowd")
    still.witness("two at once", "/metrics", 1, 2)
    moved.witness("two at once", "/metrics", 2, 2)
    verdicts = [b.close(1.0, 2, 3, False).verdict for b in (unseen, still, moved, floor)]
    assert verdicts == [Verdict.INCONCLUSIVE, Verdict.INCONCLUSIVE, Verdict.HOLDS, Verdict.HOLDS]
    moved.no_witness("many at once", "no metrics")
    assert moved.close(1.0, 2, 3, False).verdict is Verdict.INCONCLUSIVE


def test_a_change_is_a_change_without_a_witness_too_and_is_counted_by_group() -> None:
    b = book()
    for other in (A, LOGPROB, TEXT):
        b.compare(A, other, "2 users", "alone", "crowd", 2.0)
    b.compare(A, A, "8 users", "alone", "crowd", 8.0)
    b.compare(A, None, "8 users", "alone", "crowd", 8.0)
    found = b.close(1.0, 8, 80, False)
    assert (found.verdict, found.compared, found.changed, found.tokens_changed) == (Verdict.CHANGES, 4, 2, 1)
    assert found.groups == (Group("2 users", 3, 2, 1, 0.5, 2.0), Group("8 users", 1, 0, 0, 0.0, 8.0))
    assert found.unit is Unit.IDS and found.interval is not None and found.interval.low > 0
    assert [(d.position, d.logprob_position, d.margin) for d in found.differences] == [(None, 0, None), (0, None, 0.5)]


def test_the_unit_of_a_probe_is_the_worst_that_it_had_to_use() -> None:
    b = book()
    b.compare(A, A, "g", "a", "b")
    b.compare(A, replace(A, ids=None), "g", "a", "b")
    assert b.close(0.0, 0, 0, False).unit is Unit.TEXT


def test_nothing_compared_says_why() -> None:
    troubled, impossible, ended = book(), book(), book()
    for _ in range(2):
        troubled.problem("timeout", "no answer in 3 s")
    impossible.impossible("there is no way to a cold cache")
    results = [b.close(0.0, 0, 0, b is ended) for b in (troubled, impossible, ended, book())]
    assert [r.verdict for r in results] == [Verdict.FAILED, Verdict.NOT_RUN, Verdict.NOT_RUN, Verdict.INCONCLUSIVE]
    assert results[0].problems[0].count == 2 and "timeout" in results[0].reason
    assert results[1].reason == "there is no way to a cold cache"


def test_all_changes_are_counted_and_the_first_are_kept() -> None:
    b = book()
    seen: list[tuple[int, int]] = []
    b.watch(lambda compared, changed: seen.append((compared, changed)))
    for _ in range(KEPT + 5):
        b.compare(A, TEXT, "g", "a", "b")
    found = b.close(0.0, 0, 0, False)
    assert found.changed == KEPT + 5 and len(found.differences) == KEPT and seen[-1] == (KEPT + 5, KEPT + 5)
