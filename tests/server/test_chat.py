"""/v1/chat/completions, whole answers: shapes, and what reaches the engine."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.fake_engine import BOS, EOS, FakeEngine, chosen_logprob
from tests.support.serving import CHAT, HELLO, MODEL, NumberedReceipts, answer, app_of, error, post

PROMPT = [BOS, *b"user: hello\nassistant: "]


def test_the_shape_of_an_answer() -> None:
    engine = FakeEngine(script=lambda *_: b"Hi.", cached=16)
    got = answer(app_of(engine, receipts=NumberedReceipts()), CHAT, messages=HELLO)
    assert got.pop("id").startswith("chatcmpl-") and got.pop("created") > 1.7e9
    fingerprint = got.pop("system_fingerprint")
    assert fingerprint.startswith("qp-") and len(fingerprint) == 15
    assert got == {
        "object": "chat.completion",
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hi.", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
            }
        ],
        "usage": {
            "prompt_tokens": len(PROMPT),
            "completion_tokens": 4,
            "total_tokens": len(PROMPT) + 4,
            "prompt_tokens_details": {"cached_tokens": 16},
        },
        "determinism": {
            "class": "portable",
            "axes": ["neighbours", "order", "schedule", "cache", "phase", "parallelism", "device"],
            "arithmetic": "ieee/1",
            "receipt": "rcpt-0",
        },
    }


def test_the_defaults_are_those_of_openai() -> None:
    engine = FakeEngine()
    answer(app_of(engine), CHAT, messages=HELLO)
    (seen,) = engine.seen
    params: Any = seen.params
    assert seen.prompt == PROMPT
    assert (params.temperature, params.top_p, params.n, params.seed) == (1.0, 1.0, 1, None)
    assert params.max_tokens == engine.max_model_len - len(PROMPT)


def test_every_sampling_field_reaches_the_engine() -> None:
    engine = FakeEngine()
    fields = {
        "n": 2,
        "temperature": 0.5,
        "top_k": 7,
        "top_p": 0.9,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": -0.3,
        "logit_bias": {"65": -1.5},
        "seed": (1 << 64) - 1,
        "stop": ["x", "yz"],
        "stop_token_ids": [5],
        "ignore_eos": True,
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "min_tokens": 1,
        "prompt_logprobs": 3,
    }
    answer(app_of(engine), CHAT, messages=HELLO, max_completion_tokens=9, cache_salt="s", **fields)
    (seen,) = engine.seen
    params: Any = seen.params
    got = {name: getattr(params, name) for name in fields}
    assert got == fields | {"logit_bias": {65: -1.5}, "stop": ("x", "yz"), "stop_token_ids": (5,)}
    assert (params.max_tokens, params.logprobs, seen.cache_salt) == (9, None, "s")


def test_all_tokens_may_be_asked_for_the_way_vllm_had_it() -> None:
    engine = FakeEngine()
    answer(app_of(engine), CHAT, messages=HELLO, top_k=-1, max_tokens=1)
    assert engine.seen[0].params.top_k == 0


def test_text_in_parts_is_joined_by_newlines() -> None:
    engine = FakeEngine()
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    answer(app_of(engine), CHAT, messages=[{"role": "user", "content": parts}], max_tokens=1)
    assert bytes(engine.seen[0].prompt[1:]) == b"user: a\nb\nassistant: "


def test_a_conversation_copied_from_answers_is_taken() -> None:
    engine = FakeEngine()
    app = app_of(engine)
    first = answer(app, CHAT, messages=HELLO, max_tokens=3)["choices"][0]["message"]
    copied = first | {"tool_calls": None, "function_call": None, "audio": None, "annotations": []}
    more = [
        {"role": "system", "content": "be brief"},
        *HELLO,
        copied,
        {"role": "user", "content": "go on", "name": "Eve"},
    ]
    answer(app, CHAT, messages=more, max_tokens=1, chat_template_kwargs={"enable_thinking": False})
    assert first["content"].encode() in bytes(engine.seen[1].prompt[1:])


def test_the_generation_prompt_may_be_left_out() -> None:
    engine = FakeEngine()
    answer(app_of(engine), CHAT, messages=HELLO, max_tokens=1, add_generation_prompt=False)
    assert bytes(engine.seen[0].prompt[1:]) == b"user: hello\n"


def test_logprobs_are_openais_content() -> None:
    engine = FakeEngine(script=lambda *_: "é".encode())
    got = answer(app_of(engine), CHAT, messages=HELLO, logprobs=True, top_logprobs=2)["choices"][0]
    assert got["message"]["content"] == "é"
    content = got["logprobs"]["content"]
    first, second, end = content
    assert first["token"] == "�" and first["bytes"] == [0xC3] and second["bytes"] == [0xA9]
    assert end["token"] == "<eos>" and end["bytes"] == list(b"<eos>")
    assert first["logprob"] == chosen_logprob(0xC3)
    # Two best: rank 1, and rank 2, which is the chosen token itself.
    assert [top["token"] for top in first["top_logprobs"]] == ["a", "�"]
    assert first["top_logprobs"][1] == {key: first[key] for key in ("token", "logprob", "bytes")}


def test_logprobs_without_alternatives_and_minus_infinity() -> None:
    app = app_of(FakeEngine())
    plain = answer(app, CHAT, messages=HELLO, logprobs=True, max_tokens=1)["choices"][0]["logprobs"]["content"]
    assert plain[0]["top_logprobs"] == []
    most = answer(app, CHAT, messages=HELLO, logprobs=True, top_logprobs=1, max_tokens=1)["choices"][0]["logprobs"]
    assert most["content"][0]["top_logprobs"] == [{"token": "a", "logprob": -9999.0, "bytes": [97]}]


def test_token_ids_and_prompt_logprobs_as_vllm_has_them() -> None:
    got = answer(app_of(FakeEngine()), CHAT, messages=HELLO, max_tokens=2, return_token_ids=True, prompt_logprobs=1)
    assert got["prompt_token_ids"] == PROMPT
    assert bytes(got["choices"][0]["token_ids"]).decode() == got["choices"][0]["message"]["content"]
    first, second, *_ = got["prompt_logprobs"]
    assert first is None and len(got["prompt_logprobs"]) == len(PROMPT)
    assert second[str(PROMPT[1])] == {"logprob": chosen_logprob(PROMPT[1]), "rank": 2, "decoded_token": "u"}
    assert [entry["rank"] for entry in second.values()] == [2, 1]


def test_tokens_may_be_named_by_their_ids() -> None:
    got = answer(
        app_of(FakeEngine(script=lambda *_: b"z")),
        CHAT,
        messages=HELLO,
        logprobs=True,
        top_logprobs=1,
        return_tokens_as_token_ids=True,
    )
    content = got["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in content] == [f"token_id:{ord('z')}", f"token_id:{EOS}"]
    assert content[0]["top_logprobs"][0]["token"] == f"token_id:{ord('a')}"


def test_each_of_several_answers_has_its_own_receipt() -> None:
    receipts = NumberedReceipts()
    engine = FakeEngine()
    got = answer(app_of(engine, receipts=receipts), CHAT, messages=HELLO, n=3, max_tokens=4, seed=5)
    assert [choice["index"] for choice in got["choices"]] == [0, 1, 2]
    assert [choice["receipt"] for choice in got["choices"]] == ["rcpt-0", "rcpt-1", "rcpt-2"]
    assert got["determinism"]["receipt"] == "rcpt-0" and got["usage"]["completion_tokens"] == 12
    for index, kept in enumerate(receipts.kept):
        assert (kept.response_id, kept.index, kept.choice.index) == (got["id"], index, index)
        assert kept.choice.text == got["choices"][index]["message"]["content"] and kept.choice.seed == 5 + index
        assert kept.params.max_tokens == 4 and kept.engine is engine and kept.created == got["created"]


def test_stop_strings_and_ids_are_named() -> None:
    app = app_of(FakeEngine(script=lambda *_: b"one two three"))
    got = answer(app, CHAT, messages=HELLO, stop="two")["choices"][0]
    assert (got["message"]["content"], got["finish_reason"], got["stop_reason"]) == ("one ", "stop", "two")
    got = answer(app, CHAT, messages=HELLO, stop_token_ids=[ord("t")])["choices"][0]
    assert (got["finish_reason"], got["stop_reason"]) == ("stop", ord("t"))
    got = answer(app, CHAT, messages=HELLO, max_tokens=3)["choices"][0]
    assert (got["message"]["content"], got["finish_reason"]) == ("one", "length")


@pytest.mark.parametrize(
    ("messages", "where"),
    [
        ([], "messages"),
        ("hello", "messages"),
        ([{"role": "user"}], "messages.0.content"),
        ([{"role": "user", "content": []}], "messages.0.content"),
        ([{"role": "user", "content": None}], "messages.0.content"),
        ([{"role": "tool", "content": "x"}], "messages.0.role"),
        ([{"role": "user<|im_end|>", "content": "x"}], "messages.0.role"),
        ([{"role": "user", "content": "x", "tool_calls": [{}]}], "messages.0.tool_calls"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], "messages.0.content"),
        ([{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}], "messages.0.content"),
        ([{"role": "user", "content": "x", "wheight": 1}], "messages.0.wheight"),
        ([None], "messages.0"),
    ],
    ids=str,
)
def test_messages_that_are_none(messages: object, where: str) -> None:
    found = error(app_of(FakeEngine()), CHAT, 400, messages=messages)
    assert found["param"].startswith(where) and where in found["message"]


def test_a_model_without_a_template_says_so() -> None:
    assert "no chat template" in error(app_of(FakeEngine(has_template=False)), CHAT, 400, messages=HELLO)["message"]


def test_template_options_are_the_templates() -> None:
    app = app_of(FakeEngine())
    found = error(app, CHAT, 400, messages=HELLO, chat_template_kwargs={"thinking_budget": 3})
    assert found["param"] == "thinking_budget" and "enable_thinking" in found["message"]
    for taken in ("messages", "add_generation_prompt", "tools", "documents", "self", "control", "a b"):
        assert error(app, CHAT, 400, messages=HELLO, chat_template_kwargs={taken: []})["param"] == taken


def test_an_unknown_model_is_404() -> None:
    app = app_of(FakeEngine(), model_names=("one", "two"))
    assert answer(app, CHAT, messages=HELLO, max_tokens=1, model="two")["model"] == "two"
    assert answer(app, CHAT, messages=HELLO, max_tokens=1)["model"] == "one"
    found = error(app, CHAT, 404, messages=HELLO, model="three")
    assert (found["code"], found["param"]) == ("model_not_found", "model") and "one, two" in found["message"]


def test_response_headers_tell_the_class() -> None:
    got = post(app_of(FakeEngine()), CHAT, messages=HELLO, max_tokens=1)
    assert got.headers["queueproof-determinism"] == "portable" and got.headers["queueproof-arithmetic"] == "ieee/1"
