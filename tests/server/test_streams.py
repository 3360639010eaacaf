"""Streams: the pieces are the whole, what comes first and last, and how they fail."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import pytest

from tests.support.fake_engine import FakeEngine
from tests.support.serving import (
    CHAT,
    COMPLETIONS,
    HELLO,
    NumberedReceipts,
    answer,
    app_of,
    error,
    error_of,
    events,
    post,
    streamed,
)

TEXT = "Größe: 10 €, 日本 — ok. "
Body = dict[str, Any]


def engine_of(**options: Any) -> FakeEngine:
    return FakeEngine(script=lambda prompt, params, i: TEXT.encode()[: len(TEXT.encode()) - i], **options)


def text_of(choice: Body) -> str:
    text: str = choice["delta"].get("content", "") if "delta" in choice else choice["text"]
    return text


def put_together(chunks: list[Body]) -> dict[int, Body]:
    """By choice: the text, and every list of its parts."""
    made: dict[int, Body] = defaultdict(lambda: {"text": "", "ids": [], "logprobs": defaultdict(list), "end": None})
    for chunk in chunks:
        for choice in chunk["choices"]:
            mine = made[choice["index"]]
            assert mine["end"] is None, "something came after the end"
            mine["text"] += text_of(choice)
            mine["ids"] += choice.get("token_ids", [])
            for key, value in (choice["logprobs"] or {}).items():
                mine["logprobs"][key] += value or []
            if choice["finish_reason"] is not None:
                mine["end"] = (choice["finish_reason"], choice["stop_reason"], chunk["determinism"]["receipt"])
    return dict(made)


BODIES: list[tuple[str, Body]] = [
    (CHAT, {"messages": HELLO}),
    (CHAT, {"messages": HELLO, "n": 3}),
    (CHAT, {"messages": HELLO, "logprobs": True, "top_logprobs": 3, "return_token_ids": True}),
    (CHAT, {"messages": HELLO, "stop": ["日", "€,"], "n": 2}),
    (CHAT, {"messages": HELLO, "stop": "€", "include_stop_str_in_output": True}),
    (CHAT, {"messages": HELLO, "max_tokens": 4, "return_token_ids": True}),
    (COMPLETIONS, {"prompt": "a"}),
    (COMPLETIONS, {"prompt": ["a", "b"], "n": 2, "max_tokens": 40}),
    (COMPLETIONS, {"prompt": ["a", [98, 99]][0], "logprobs": 2, "echo": True, "max_tokens": 40}),
    (COMPLETIONS, {"prompt": [[98, 0xC3], [97]], "logprobs": 0, "return_token_ids": True, "max_tokens": 5}),
    (COMPLETIONS, {"prompt": ["a", "bc"], "logprobs": 1, "echo": True, "max_tokens": 0}),
]


@pytest.mark.parametrize("tokens_per_output", [1, 2, 5, 100])
@pytest.mark.parametrize(("path", "body"), BODIES, ids=str)
def test_the_pieces_are_the_whole(path: str, body: Body, tokens_per_output: int) -> None:
    whole = answer(app_of(engine_of(), receipts=NumberedReceipts()), path, **body)
    app = app_of(engine_of(tokens_per_output=tokens_per_output), receipts=NumberedReceipts())
    chunks = streamed(app, path, **body)
    pieces = put_together(chunks)
    assert sorted(pieces) == [choice["index"] for choice in whole["choices"]]
    for choice in whole["choices"]:
        mine = pieces[choice["index"]]
        assert mine["text"] == (choice["message"]["content"] if path == CHAT else choice["text"])
        assert mine["end"][:2] == (choice["finish_reason"], choice["stop_reason"])
        assert mine["ids"] == choice.get("token_ids", [])
        logprobs = {key: value for key, value in (choice["logprobs"] or {}).items() if value is not None}
        assert mine["logprobs"] == logprobs | ({"refusal": []} if path == CHAT and logprobs else {})


def test_the_order_of_a_chat_stream() -> None:
    chunks = streamed(app_of(engine_of(), receipts=NumberedReceipts()), CHAT, messages=HELLO)
    first, *middle, last = chunks
    assert first["object"] == "chat.completion.chunk" and {chunk["id"] for chunk in chunks} == {first["id"]}
    assert first["choices"] == [
        {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    ]
    assert first["determinism"]["class"] == "portable" and "receipt" not in first["determinism"]
    assert all("determinism" not in chunk and chunk["choices"][0]["delta"]["content"] for chunk in middle)
    assert last["choices"][0]["delta"] == {} and last["choices"][0]["finish_reason"] == "stop"
    assert last["determinism"]["receipt"] == "rcpt-0" and last["determinism"]["arithmetic"] == "ieee/1"
    assert all("usage" not in chunk for chunk in chunks)


def test_the_order_of_a_completion_stream() -> None:
    first, *middle, last = streamed(app_of(engine_of(), receipts=NumberedReceipts()), COMPLETIONS, prompt="a")
    assert first["object"] == "text_completion" and first["determinism"]["class"] == "portable"
    assert first["choices"] == [{"index": 0, "text": "G", "logprobs": None, "finish_reason": None}]
    assert all("determinism" not in chunk and chunk["choices"][0]["text"] for chunk in middle)
    assert last["choices"][0]["text"] == "" and last["choices"][0]["finish_reason"] == "length"


def test_each_choice_of_a_stream_has_its_own_receipt() -> None:
    receipts = NumberedReceipts()
    pieces = put_together(streamed(app_of(engine_of(), receipts=receipts), COMPLETIONS, prompt=["a", "b"], n=2))
    for index, mine in pieces.items():
        kept = receipts.kept[int(mine["end"][2].removeprefix("rcpt-"))]
        assert kept.index == index and kept.choice.text == mine["text"]


@pytest.mark.parametrize(("path", "body"), BODIES[:8], ids=str)
def test_usage_comes_last_if_it_is_asked_for(path: str, body: Body) -> None:
    usage = answer(app_of(engine_of(cached=4)), path, **body)["usage"]
    app = app_of(engine_of(cached=4))
    *chunks, last = streamed(app, path, stream_options={"include_usage": True}, **body)
    assert last["choices"] == [] and last["usage"] == usage
    assert all(chunk["usage"] is None for chunk in chunks)


def test_usage_may_be_in_every_chunk() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = streamed(app_of(engine_of()), CHAT, messages=HELLO, stream_options=options)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts) and counts[0] == 1 and counts[-1] == len(TEXT.encode()) + 1


def test_prompt_token_ids_come_first() -> None:
    first, *rest = streamed(app_of(engine_of()), CHAT, messages=HELLO, return_token_ids=True)
    assert bytes(first["prompt_token_ids"][1:]) == b"user: hello\nassistant: "
    assert all("prompt_token_ids" not in chunk for chunk in rest)
    chunks = streamed(app_of(engine_of()), COMPLETIONS, prompt=["a", "b"], return_token_ids=True)
    found = {c["index"]: c["prompt_token_ids"] for chunk in chunks for c in chunk["choices"] if "prompt_token_ids" in c}
    assert found == {0: [256, 97], 1: [256, 98]}


def test_a_chunk_is_json_whatever_the_text_is() -> None:
    odd = '"\\\u2028\u0000\x1f\x7f</script>\r\n\t'
    app = app_of(FakeEngine(script=lambda *_: odd.encode()))
    assert put_together(streamed(app, CHAT, messages=HELLO))[0]["text"] == odd


def test_stream_options_need_a_stream() -> None:
    found = error(app_of(FakeEngine()), CHAT, 400, messages=HELLO, stream_options={"include_usage": True})
    assert found["param"] == "stream_options"
    found = error(app_of(FakeEngine()), CHAT, 400, messages=HELLO, stream=True, prompt_logprobs=1)
    assert found["param"] == "prompt_logprobs"


@pytest.mark.parametrize(("path", "body"), [(CHAT, {"messages": HELLO}), (COMPLETIONS, {"prompt": "hello"})])
@pytest.mark.parametrize(
    ("failure", "after", "code"), [("nan", 3, "numerical"), ("dead", 3, "engine")], ids=["nan", "dead"]
)
def test_a_stream_that_fails_ends_with_an_error_and_without_done(
    path: str, body: Body, failure: str, after: int, code: str
) -> None:
    receipts = NumberedReceipts()
    engine = engine_of(fail_at={"hello": failure}, fail_after=after)
    got = post(app_of(engine, receipts=receipts), path, stream=True, **body)
    assert got.status_code == 200
    *chunks, last = events(got.text)
    assert "[DONE]" not in chunks and chunks and all("choices" in chunk for chunk in chunks)
    assert last["error"]["code"] == code and last["error"]["message"]
    assert all(choice["finish_reason"] is None for chunk in chunks for choice in chunk["choices"])
    assert not receipts.kept and not engine.active


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("failure", "status", "code"),
    [("nan", 500, "numerical"), ("dead", 503, "engine"), ("refuse", 400, "invalid_parameter")],
)
def test_what_fails_before_the_first_token_has_its_own_status(
    stream: bool, failure: str, status: int, code: str
) -> None:
    engine = engine_of(fail_at={"hello": failure}, fail_after=1)
    got = post(app_of(engine), CHAT, messages=HELLO, stream=stream)
    assert error_of(got, status)["code"] == code
    # OpenAI's clients try a 500 again, and the same request would give the same NaN.
    assert got.headers.get("x-should-retry") == ("false" if failure == "nan" else None)
    assert not engine.active


def test_after_the_engine_has_ended_every_request_is_503() -> None:
    engine = engine_of(fail_at={"hello": "dead"})
    app = app_of(engine)
    error(app, CHAT, 503, messages=HELLO)
    assert error(app, COMPLETIONS, 503, prompt="other")["code"] == "engine"


def test_a_bug_is_an_error_without_details_and_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    def script(*_: object) -> bytes:
        raise RuntimeError("a secret")

    app = app_of(FakeEngine(script=script))
    for stream in (False, True):
        got = post(app, CHAT, messages=HELLO, stream=stream, headers={"X-Request-Id": "r-7"})
        found = error_of(got, 500)
        assert found["code"] == "internal" and "secret" not in json.dumps(got.json())
        assert got.headers["x-request-id"] == "r-7"
    assert caplog.text.count("RuntimeError: a secret") == 2 and "request r-7 failed" in caplog.text
