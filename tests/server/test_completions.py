"""/v1/completions, whole answers: prompts in all their forms, echo and log-probabilities."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.fake_engine import BOS, EOS, FakeEngine, chosen_logprob
from tests.support.serving import COMPLETIONS, MODEL, NumberedReceipts, answer, app_of, error


def test_the_shape_of_an_answer() -> None:
    engine = FakeEngine(script=lambda *_: b"Hi.")
    got = answer(app_of(engine, receipts=NumberedReceipts()), COMPLETIONS, prompt="x")
    assert got.pop("id").startswith("cmpl-") and got.pop("created") > 1.7e9 and got.pop("system_fingerprint")
    assert got.pop("determinism")["receipt"] == "rcpt-0"
    assert got == {
        "object": "text_completion",
        "model": MODEL,
        "choices": [{"index": 0, "text": "Hi.", "logprobs": None, "finish_reason": "stop", "stop_reason": None}],
        "usage": {
            "prompt_tokens": 2,
            "completion_tokens": 4,
            "total_tokens": 6,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


@pytest.mark.parametrize(
    ("prompt", "seen"),
    [
        ("ab", [[BOS, 97, 98]]),
        (["ab", "", "c"], [[BOS, 97, 98], [BOS], [BOS, 99]]),
        ([97, 98], [[97, 98]]),
        ([[97], [98, 99]], [[97], [98, 99]]),
    ],
    ids=str,
)
def test_prompts_in_all_their_forms(prompt: Any, seen: list[list[int]]) -> None:
    engine = FakeEngine()
    got = answer(app_of(engine), COMPLETIONS, prompt=prompt, max_tokens=3, n=2, temperature=0)
    assert [s.prompt for s in sorted(engine.seen, key=lambda s: s.request_id)] == seen
    assert [choice["index"] for choice in got["choices"]] == list(range(2 * len(seen)))
    # Choices 2p and 2p + 1 are those of prompt p, whatever came first.
    for number, ids in enumerate(seen):
        alone = answer(app_of(FakeEngine()), COMPLETIONS, prompt=ids, max_tokens=3, temperature=0)["choices"][0]
        assert {choice["text"] for choice in got["choices"][2 * number : 2 * number + 2]} == {alone["text"]}
    assert got["usage"]["prompt_tokens"] == sum(map(len, seen)) and got["usage"]["completion_tokens"] == 6 * len(seen)


def test_special_tokens_may_be_left_out() -> None:
    engine = FakeEngine()
    answer(app_of(engine), COMPLETIONS, prompt="ab", max_tokens=1, add_special_tokens=False)
    assert engine.seen[0].prompt == [97, 98]


def test_max_tokens_is_16_or_what_fits() -> None:
    engine = FakeEngine(max_model_len=20)
    app = app_of(engine)
    for prompt, tokens in (("abc", 16), ("abcdefghijklmno", 4)):
        assert answer(app, COMPLETIONS, prompt=prompt)["usage"]["completion_tokens"] == tokens


@pytest.mark.parametrize("fields", [{}, {"max_tokens": 2}])
def test_what_does_not_fit_is_an_error(fields: dict[str, int]) -> None:
    app = app_of(FakeEngine(max_model_len=20))
    prompt = [1] * (20 if not fields else 19)
    found = error(app, COMPLETIONS, 400, prompt=prompt, **fields)
    assert (found["code"], found["param"]) == ("context_length_exceeded", "prompt")
    assert str(len(prompt)) in found["message"] and "20" in found["message"]


def test_echo_and_logprobs_are_what_a_loglikelihood_needs() -> None:
    prompt = [BOS, *"aé".encode()]
    got = answer(
        app_of(FakeEngine(script=lambda *_: b"xy")), COMPLETIONS, prompt=prompt, echo=True, logprobs=2, max_tokens=2
    )
    choice = got["choices"][0]
    assert choice["text"] == "aéxy"
    logprobs = choice["logprobs"]
    assert logprobs["tokens"] == ["<bos>", "a", "�", "�", "x", "y"]
    # The character of two bytes ends with the second of them.
    assert logprobs["text_offset"] == [0, 0, 1, 1, 2, 3]
    assert [choice["text"][o:][:1] for o in logprobs["text_offset"]] == ["a", "a", "é", "é", "x", "y"]
    expected = [None, *(chosen_logprob(t) for t in [*prompt[1:], *b"xy"])]
    assert logprobs["token_logprobs"] == expected
    assert logprobs["top_logprobs"][0] is None and logprobs["top_logprobs"][4] == {
        "a": -0.05000000074505806,
        "x": expected[4],
    }


def test_the_prompt_alone_with_max_tokens_0() -> None:
    receipts = NumberedReceipts()
    got = answer(app_of(FakeEngine(), receipts=receipts), COMPLETIONS, prompt="ab", echo=True, logprobs=1, max_tokens=0)
    choice = got["choices"][0]
    assert choice["text"] == "ab" and choice["logprobs"]["tokens"] == ["<bos>", "a", "b"]
    assert got["usage"]["completion_tokens"] == 0 and got["determinism"]["receipt"] is None and not receipts.kept
    assert "echo" in error(app_of(FakeEngine()), COMPLETIONS, 400, prompt="ab", max_tokens=0)["message"]


def test_echo_shows_the_text_of_ids() -> None:
    got = answer(app_of(FakeEngine(script=lambda *_: b"!")), COMPLETIONS, prompt=[97, EOS, 98], echo=True)
    assert got["choices"][0]["text"] == "ab!"


def test_logprobs_without_echo_begin_at_the_answer() -> None:
    got = answer(app_of(FakeEngine(script=lambda *_: b" x")), COMPLETIONS, prompt="ab", logprobs=0)
    logprobs = got["choices"][0]["logprobs"]
    assert logprobs["tokens"] == [" ", "x", "<eos>"] and logprobs["text_offset"] == [0, 1, 2]
    assert logprobs["top_logprobs"][0] == {" ": chosen_logprob(32)}


def test_token_ids_and_prompt_logprobs() -> None:
    got = answer(
        app_of(FakeEngine(script=lambda *_: b"!")),
        COMPLETIONS,
        prompt=["a", "b"],
        return_token_ids=True,
        prompt_logprobs=0,
    )
    first, second = got["choices"]
    assert first["prompt_token_ids"] == [BOS, 97] and second["prompt_token_ids"] == [BOS, 98]
    assert first["token_ids"] == [33, EOS]
    assert second["prompt_logprobs"] == [
        None,
        {"98": {"logprob": chosen_logprob(98), "rank": 2, "decoded_token": "b"}},
    ]


def test_each_answer_of_several_prompts_has_its_own_receipt() -> None:
    receipts = NumberedReceipts()
    engine = FakeEngine()
    got = answer(app_of(engine, receipts=receipts), COMPLETIONS, prompt=["a", "b"], n=2, max_tokens=2)
    assert len({choice["receipt"] for choice in got["choices"]}) == 4
    for kept in receipts.kept:
        assert kept.output.prompt_token_ids == [BOS, 97 + kept.index // 2] and kept.choice.index == kept.index % 2
    assert {seen.request_id for seen in engine.seen} == {f"{got['id']}-0", f"{got['id']}-1"}


def test_one_seed_serves_all_prompts() -> None:
    engine = FakeEngine()
    answer(app_of(engine), COMPLETIONS, prompt=["a", "b"], max_tokens=1, seed=9)
    assert [seen.params.seed for seen in engine.seen] == [9, 9]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "prompt",
    [None, [], [[]], [["a"]], [1, "a"], [1.5], [True], {"a": 1}, 7, [-1], [258], [[1], [300]], [1 << 70], ["a", 1]],
    ids=str,
)
def test_prompts_that_are_none(prompt: object) -> None:
    found = error(app_of(FakeEngine()), COMPLETIONS, 400, prompt=prompt)
    assert found["param"].startswith("prompt")


def test_an_empty_prompt_is_an_error() -> None:
    found = error(app_of(FakeEngine()), COMPLETIONS, 400, prompt="", add_special_tokens=False)
    assert found["param"] == "prompt" and "empty" in found["message"]


def test_an_error_of_one_prompt_is_that_of_the_request_and_ends_the_others() -> None:
    engine = FakeEngine(fail_at={"bad": "nan"}, step=0.001)
    found = error(app_of(engine), COMPLETIONS, 500, prompt=["good", "bad", "fine"], max_tokens=400)
    assert found["code"] == "numerical"
    assert [seen.ended for seen in engine.seen] == ["aborted", "finished", "aborted"]
