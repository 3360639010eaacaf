from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queueproof.contract.classes import DeterminismClass
from queueproof.contract.errors import CannotTell
from queueproof.contract.verdict import Answer, Difference, Outcome, Side, Verdict, What, compare, judge, plan
from tests.support.receipts import ANSWER, HERE, MODEL, PROMPT, a_receipt

BEST_EFFORT = {"class_": DeterminismClass.BEST_EFFORT, "arithmetic": "vendor"}
CARD = {"class_": DeterminismClass.REQUEST, "arithmetic": "tensorcore/1", "family": "sm90"}


def changed(name: str, step: int, value: int) -> Answer:
    values = list(getattr(ANSWER, name))
    values[step] = value
    return replace(ANSWER, **{name: tuple(values)})


def test_equal_bits_are_the_same() -> None:
    assert judge(a_receipt(), ANSWER, HERE) == Verdict(Outcome.SAME)
    assert judge(a_receipt(digests_only=True), ANSWER, HERE) == Verdict(Outcome.SAME)


@pytest.mark.parametrize(
    ("name", "what"), [("token_ids", What.TOKEN), ("logprob_bits", What.LOGPROB), ("lse_bits", What.LSE)]
)
@pytest.mark.parametrize("step", [0, 1, 2])
def test_one_bit_is_a_difference(name: str, what: What, step: int) -> None:
    flipped = getattr(ANSWER, name)[step] ^ 1
    answer = changed(name, step, flipped)
    verdict = judge(a_receipt(), answer, HERE)
    assert verdict.outcome is Outcome.DIFFERENT and verdict.difference is not None
    assert (verdict.difference.what, verdict.difference.step) == (what, step)
    by_digest = judge(a_receipt(digests_only=True), answer, HERE)
    assert by_digest.outcome is Outcome.DIFFERENT and by_digest.difference is not None
    assert (by_digest.difference.what, by_digest.difference.step) == (What.DIGEST, None)


def test_the_difference_has_both_tokens_and_logprobs() -> None:
    found = compare(a_receipt(), changed("logprob_bits", 1, 0xFF800000))
    assert found == Difference(
        What.LOGPROB,
        Side(3, "length", 8, None, -0.25, "be800000", 9.000000953674316, "41100001"),
        Side(3, "length", 8, None, None, "ff800000", 9.000000953674316, "41100001"),
        step=1,
    )
    with_text = Verdict(Outcome.DIFFERENT, None, found).with_text(lambda ids: f"<{ids}>")
    assert with_text.difference is not None and with_text.difference.replay.token == "<[8]>"


def test_the_first_step_counts_and_there_the_token() -> None:
    answer = replace(ANSWER, token_ids=(7, 0, 9), logprob_bits=(0xBF000000, 0, 0), lse_bits=(0x41200000, 0, 0))
    found = compare(a_receipt(), answer)
    assert found is not None and (found.what, found.step) == (What.TOKEN, 1)
    earlier = compare(a_receipt(), replace(answer, lse_bits=(0, 0, 0)))
    assert earlier is not None and (earlier.what, earlier.step) == (What.LSE, 0)


def shorter(answer: Answer, tokens: int, finish_reason: str = "stop") -> Answer:
    return Answer(answer.token_ids[:tokens], answer.logprob_bits[:tokens], answer.lse_bits[:tokens], finish_reason)


def test_one_answer_ends_earlier() -> None:
    found = compare(a_receipt(), shorter(ANSWER, 2))
    assert found is not None and (found.what, found.step) == (What.LENGTH, 2)
    assert (found.receipt.token_id, found.replay) == (9, Side(2, "stop"))
    reverse = compare(a_receipt(shorter(ANSWER, 2)), ANSWER)
    assert reverse is not None and (reverse.what, reverse.step) == (What.LENGTH, 2)
    by_digest = compare(a_receipt(digests_only=True), shorter(ANSWER, 2))
    assert by_digest is not None and by_digest.what is What.LENGTH


@pytest.mark.parametrize("digests_only", [False, True])
def test_the_reason_of_the_end_is_part_of_the_answer(digests_only: bool) -> None:
    found = compare(a_receipt(digests_only=digests_only), replace(ANSWER, finish_reason="stop"))
    assert found is not None and found.what is What.FINISH_REASON
    assert (found.receipt.finish_reason, found.replay.finish_reason) == ("length", "stop")


def test_a_difference_proves_nothing_where_nothing_was_promised() -> None:
    receipt, here = a_receipt(**BEST_EFFORT), replace(HERE, arithmetic="vendor")
    assert judge(receipt, ANSWER, here).outcome is Outcome.SAME
    verdict = judge(receipt, changed("lse_bits", 0, 0), here)
    assert verdict.outcome is Outcome.UNKNOWN and verdict.difference is not None
    assert "proves nothing: the class best-effort promises nothing" in (verdict.reason or "")
    batch = judge(a_receipt(class_=DeterminismClass.BATCH), changed("lse_bits", 0, 0), HERE)
    assert batch.outcome is Outcome.UNKNOWN and "neighbours, order" in (batch.reason or "")


def test_another_library_may_guide_in_another_way() -> None:
    receipt = a_receipt(sampling={"guide": "json", "guide_library": "llguidance 1.0"})
    same, other = (replace(HERE, guide_library=f"llguidance {v}") for v in ("1.0", "1.1"))
    assert judge(receipt, ANSWER, other).outcome is Outcome.SAME
    assert judge(receipt, changed("token_ids", 0, 1), same).outcome is Outcome.DIFFERENT
    verdict = judge(receipt, changed("token_ids", 0, 1), other)
    assert verdict.outcome is Outcome.UNKNOWN and "here it is llguidance 1.1" in (verdict.reason or "")


@pytest.mark.parametrize(
    ("receipt", "here", "message"),
    [
        ({}, {"arithmetic": "vendor"}, "of the arithmetic ieee/1, this is vendor"),
        (CARD, {"arithmetic": "tensorcore/1", "family": "sm80"}, "family sm90, here they are sm80"),
        ({}, {"model": replace(MODEL, sha256="00" * 32)}, "another model: the receipt is of tiny"),
        ({}, {"model": replace(MODEL, tokenizer_sha256="00" * 32)}, "another tokenizer"),
        ({}, {"model": replace(MODEL, dtype="float16")}, "ran in bfloat16, this one runs in float16"),
        ({"digests_only": True}, {}, "does not hold the prompt"),
        ({"sampling": {"guide": "json", "guide_library": "g 1"}}, {}, r"by g 1, which is not installed here: pip"),
    ],
)
def test_why_a_replay_cannot_tell(receipt: dict[str, Any], here: dict[str, Any], message: str) -> None:
    with pytest.raises(CannotTell, match=message):
        plan(a_receipt(**receipt), replace(HERE, **here))


def test_the_same_bits_are_expected_within_a_family_and_where_the_class_says_so() -> None:
    plan(a_receipt(**CARD), replace(HERE, arithmetic="tensorcore/1", family="sm90"))
    plan(a_receipt(family="sm90"), HERE)  # portable: the device is promised


def test_another_name_of_the_model_does_not_matter() -> None:
    plan(a_receipt(), replace(HERE, model=replace(MODEL, name="elsewhere")))


def test_the_prompt_may_come_from_elsewhere() -> None:
    receipt = a_receipt(digests_only=True)
    assert plan(receipt, HERE, list(PROMPT)).prompt_token_ids == PROMPT
    assert plan(a_receipt(), HERE, PROMPT).prompt_token_ids == PROMPT
    for wrong in ([1, 2, 3], [], [5, 1], [5, 1, -1], [5, 1, 1 << 40]):
        with pytest.raises(CannotTell, match="not the receipt's: that has 3 tokens"):
            plan(receipt, HERE, wrong)


@pytest.mark.parametrize(("most", "least", "expected"), [(3, 1, 3), (4, 0, 4), (900, 0, 4), (900, 50, 50)])
def test_a_replay_goes_no_further_than_it_must(most: int, least: int, expected: int) -> None:
    receipt = a_receipt(sampling={"max_tokens": most, "min_tokens": least})
    assert plan(receipt, HERE).options["max_tokens"] == expected


def test_a_verdict_survives_json() -> None:
    for verdict in (
        judge(a_receipt(), ANSWER, HERE),
        judge(a_receipt(), changed("token_ids", 1, 3), HERE),
        Verdict.unknown("no prompt"),
    ):
        assert Verdict.from_plain(verdict.to_plain()) == verdict
        assert verdict.to_plain()["verdict"] == verdict.outcome.value


@given(st.data())
def test_only_equal_answers_are_the_same(data: st.DataObject) -> None:
    words = st.lists(st.integers(0, 3), min_size=1, max_size=4)

    def answer() -> Answer:
        ids = data.draw(words)
        columns = [tuple(data.draw(st.lists(st.integers(0, 1), min_size=len(ids), max_size=len(ids)))) for _ in "ab"]
        return Answer(tuple(ids), *columns, data.draw(st.sampled_from(["stop", "length"])))

    a, b = answer(), answer()
    most = {"max_tokens": 4}
    assert (compare(a_receipt(a, sampling=most), b) is None) == (a == b)
    assert (compare(a_receipt(a, digests_only=True, sampling=most), b) is None) == (a == b)
