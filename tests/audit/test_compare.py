"""Two answers, token by token."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from queueproof.audit.ask import Answer
from queueproof.audit.compare import compare
from queueproof.audit.records import Unit

PLAIN = Answer("p", "a b c", "length", 0.0, 1.0)
TOLD = replace(
    PLAIN, ids=(1, 2, 3), tokens=("a", " b", " c"), logprobs=(-0.5, -0.25, None), margins=(0.125, 0.0625, None)
)


def test_an_answer_is_the_same_as_itself_by_the_best_unit_that_both_have() -> None:
    for answer, unit in ((PLAIN, Unit.TEXT), (replace(TOLD, ids=None), Unit.TOKENS), (TOLD, Unit.IDS)):
        found = compare(answer, answer)
        assert not found.changed and found.unit is unit and found.split == 5
    assert compare(TOLD, PLAIN).unit is Unit.TEXT and not compare(TOLD, PLAIN).logprobs


def test_the_first_other_token_is_found_with_its_margin_and_what_the_logprobs_did_before() -> None:
    other = replace(TOLD, text="a b d", ids=(1, 2, 4), tokens=("a", " b", " d"), logprobs=(-0.5, -0.375, -9.0))
    found = compare(TOLD, other)
    assert (found.position, found.logprob_position, found.split) == (2, 1, 4)
    assert found.max_logprob_difference == 0.125 and found.margin is None
    assert compare(other, TOLD).margin is None  # of a step whose margin is not known
    early = replace(TOLD, text="x b c", ids=(9, 2, 3))
    assert compare(TOLD, early).margin == 0.125 and compare(TOLD, early).logprob_position is None


def test_equal_tokens_with_other_logprobs_are_changed_and_no_token_is() -> None:
    found = compare(TOLD, replace(TOLD, logprobs=(-0.5, -0.25000000000000006, None)))
    assert found.changed and not found.tokens_changed and 0 < found.max_logprob_difference < 1e-15


def test_a_logprob_that_is_missing_in_one_is_a_difference() -> None:
    assert compare(TOLD, replace(TOLD, logprobs=(-0.5, None, None))).logprob_position == 1


def test_an_answer_that_ends_earlier_differs_where_it_ended() -> None:
    short = replace(TOLD, text="a b", ids=(1, 2), tokens=("a", " b"), logprobs=(-0.5, -0.25), finish_reason="stop")
    assert compare(TOLD, short).position == 2
    same_text = replace(TOLD, finish_reason="stop")
    assert compare(TOLD, same_text).position == 3 and compare(PLAIN, replace(PLAIN, finish_reason="stop")).position == 5


def test_a_token_that_ended_both_and_is_listed_once_is_no_difference() -> None:
    """As llama.cpp does: its stream leaves the last token out. The counts of tokens say that both made it."""
    ended = replace(TOLD, finish_reason="stop", completion_tokens=4)
    listed = replace(ended, ids=(*TOLD.ids, 0), tokens=(*TOLD.tokens, ""), logprobs=(*TOLD.logprobs, -0.5))
    for a, b in ((ended, listed), (listed, ended), (replace(ended, ids=None), replace(listed, ids=None))):
        assert not compare(a, b).changed
    assert compare(ended, replace(listed, logprobs=(-1.0, *listed.logprobs[1:]))).logprob_position == 0
    for other in (
        replace(listed, completion_tokens=5),
        replace(listed, ids=(*TOLD.ids, 0, 0), completion_tokens=5),
        replace(listed, finish_reason="length"),
        replace(listed, text="a b c "),
        replace(listed, ids=(1, 2, 9, 0)),
    ):
        assert compare(ended, other).changed and compare(other, ended).changed
    unknown = replace(ended, completion_tokens=None), replace(listed, completion_tokens=None)
    assert compare(*unknown).position == 3


def test_equal_ids_written_as_other_text_are_a_difference_of_the_text() -> None:
    found = compare(TOLD, replace(TOLD, text="a b\N{REPLACEMENT CHARACTER}"))
    assert found.unit is Unit.TEXT and found.position == 3 and found.tokens_changed


_ids = st.lists(st.integers(0, 3), max_size=6)


@given(_ids, _ids)
def test_the_position_is_the_length_of_what_both_begin_with(a: list[int], b: list[int]) -> None:
    x, y = (Answer("p", "".join(map(str, ids)), "length", 0.0, 1.0, ids=tuple(ids)) for ids in (a, b))
    found, back = compare(x, y), compare(y, x)
    assert found.position == back.position
    if found.position is None:
        assert a == b
    else:
        assert a[: found.position] == b[: found.position] and a[found.position :][:1] != b[found.position :][:1]
