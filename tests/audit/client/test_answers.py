"""What servers write, read into Answers."""

import json
from typing import Any

import pytest

from queueproof.audit.ask import Answer
from queueproof.audit.client.answers import from_stream, from_whole
from queueproof.audit.client.sse import events
from queueproof.audit.client.trouble import Failure, Kind


def streamed(*chunks: Any, end: bytes = b"data: [DONE]\n\n") -> Answer:
    pieces = [(10.0 + i, b"data: " + json.dumps(chunk).encode() + b"\n\n") for i, chunk in enumerate(chunks)]
    return from_stream(events([*pieces, (99.0, end)]), "p", 8.0, 99.0)


def whole(value: Any, echo: bool = False) -> Answer:
    return from_whole(json.dumps(value).encode(), "p", 1.0, 3.0, echo)


def entry(token: str, logprob: float, *tops: float, **more: Any) -> dict[str, Any]:
    tokens = [{"token": str(i), "logprob": top} for i, top in enumerate(tops)]
    return {"token": token, "logprob": logprob, "top_logprobs": tokens, **more}


def delta(content: str | None, *entries: dict[str, Any], **more: Any) -> dict[str, Any]:
    logprobs = {"content": list(entries)} if entries else None
    choice = {"index": 0, "delta": {"content": content}, "logprobs": logprobs, "finish_reason": None, **more}
    return {"model": "m", "choices": [choice]}


END = {"model": "m", "choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}


def test_a_stream_as_vllm_writes_it() -> None:
    answer = streamed(
        {**delta(""), "prompt_token_ids": [5, 6]},
        delta("Hi", entry("Hi", -0.5, -0.5, -2.0), token_ids=[7]),
        delta(" you", entry(" yo", -1.5, -1.0, -1.5), entry("u", -9999.0, -0.1, -9999.0), token_ids=[8, 9]),
        {**END, "system_fingerprint": "fp"},
        {
            "choices": [],
            "usage": {"prompt_tokens": 2, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 1}},
        },
    )
    assert answer == Answer(
        prompt="p",
        text="Hi you",
        finish_reason="length",
        started=8.0,
        latency=91.0,
        ids=(7, 8, 9),
        tokens=("Hi", " yo", "u"),
        logprobs=(-0.5, -1.5, None),
        margins=(1.5, 0.5, None),
        prompt_ids=(5, 6),
        prompt_tokens=2,
        completion_tokens=3,
        cached_tokens=1,
        ttft=3.0,
        arrivals=(11.0, 12.0),
        fingerprint="fp",
        model="m",
    )


def test_a_stream_as_llama_cpp_writes_it() -> None:
    last = {"choices": [], "timings": {"cache_n": 24, "predicted_n": 1}}
    answer = streamed(delta(None), delta("a", entry("a", -1.0, -0.5, -1.0, id=3)), END, last)
    assert (answer.ids, answer.margins, answer.cached_tokens, answer.completion_tokens) == ((3,), (0.5,), 24, 1)


def test_other_names_of_cached_tokens() -> None:
    details = {"choices": [], "sglext": {"cached_tokens_details": {"device": 3, "host": 4, "storage_backend": "file"}}}
    assert streamed(END, details).cached_tokens == 7
    assert streamed(END, {"choices": [], "usage": {"prompt_cache_hit_tokens": 64}}).cached_tokens == 64
    assert (
        streamed(END, {"choices": [], "usage": {"prompt_tokens": 3, "prompt_tokens_details": None}}).cached_tokens
        is None
    )


def test_reasoning_is_part_of_the_text() -> None:
    thought = {"choices": [{"index": 0, "delta": {"reasoning_content": "hm "}}]}
    assert streamed(thought, delta("yes"), END).text == "hm yes"


def test_only_the_first_choice_is_read() -> None:
    other = {"choices": [{"index": 1, "delta": {"content": "no"}, "finish_reason": "stop"}]}
    answer = streamed(delta("a"), other, END)
    assert (answer.text, answer.finish_reason, len(answer.arrivals)) == ("a", "length", 1)


def test_completions_streamed() -> None:
    logprobs = {"tokens": ["a", "b"], "token_logprobs": [-1.0, -2.0], "top_logprobs": [{"a": -1.0, "c": -1.5}, None]}
    answer = streamed({"choices": [{"index": 0, "text": "ab", "logprobs": logprobs, "finish_reason": "stop"}]})
    assert (answer.text, answer.tokens, answer.logprobs, answer.margins) == (
        "ab",
        ("a", "b"),
        (-1.0, -2.0),
        (0.5, None),
    )


@pytest.mark.parametrize(
    "chunks",
    [
        (delta("a", entry("a", -1.0), token_ids=[1]), delta("b", token_ids=[2]), END),
        (delta("a", entry("a", -1.0)), delta("b"), END),
        (delta("a", entry("a", -1.0, id=1)), delta("b"), END),
    ],
)
def test_log_probabilities_of_some_tokens_only_are_not_used(chunks: tuple[Any, ...]) -> None:
    answer = streamed(*chunks)
    assert answer.text == "ab" and answer.logprobs is None and answer.margins is None and answer.tokens is None


def test_an_end_without_a_log_probability_is_no_gap() -> None:
    stop = delta("", token_ids=[2], finish_reason="stop")
    assert streamed(delta("a", entry("a", -1.0), token_ids=[1]), stop).logprobs == (-1.0,)


def test_an_answer_without_done_is_whole_by_its_finish_reason() -> None:
    assert streamed(delta("a"), END, end=b"").text == "a"


@pytest.mark.parametrize("end", [b"", b"data: [DONE]\n\n", b'data: {"choices": [{"ind'])
def test_without_a_finish_reason_it_is_cut(end: bytes) -> None:
    with pytest.raises(Failure, match="without finish_reason") as caught:
        streamed(delta("a"), end=end)
    assert (caught.value.kind, caught.value.again) == (Kind.CUT, True)


@pytest.mark.parametrize(
    ("error", "kind", "again"),
    [
        ({"message": "boom", "code": 500}, Kind.SERVER_ERROR, True),
        ({"message": "too long", "code": 400}, Kind.REJECTED, False),
        ({"message": "slow down", "code": 429}, Kind.RATE_LIMITED, True),
        ("plain text", Kind.SERVER_ERROR, True),
    ],
)
def test_an_error_within_a_stream(error: Any, kind: Kind, again: bool) -> None:
    with pytest.raises(Failure, match="boom|too long|slow down|plain text") as caught:
        streamed(delta("a"), {"error": error})
    assert (caught.value.kind, caught.value.again) == (kind, again)


def test_an_event_named_error() -> None:
    with pytest.raises(Failure, match="overloaded"):
        streamed(delta("a"), end=b'event: error\ndata: {"message": "overloaded"}\n\n')


@pytest.mark.parametrize("reason", ["error", "abort"])
def test_a_finish_reason_that_is_an_error(reason: str) -> None:
    with pytest.raises(Failure, match=reason):
        streamed(delta("a", finish_reason=reason))


@pytest.mark.parametrize(
    "bad",
    [b"data: {nonsense}\n\n", b"data: [1, 2]\n\n", b'data: {"choices": [3]}\n\n', b'data: {"choices": 3}\n\n'],
)
def test_what_is_no_answer(bad: bytes) -> None:
    with pytest.raises(Failure) as caught:
        from_stream(events([(0.0, bad)]), "p", 0.0, 1.0)
    assert caught.value.kind == Kind.BAD_ANSWER


def test_whole_chat() -> None:
    message = {"role": "assistant", "content": "ab"}
    logprobs = {"content": [entry("a", -1.0, -1.0, -3.0), entry("b", -2.0, -2.0, -2.5)]}
    choice = {"index": 0, "message": message, "logprobs": logprobs, "finish_reason": "stop", "token_ids": [1, 2]}
    answer = whole({"model": "m", "prompt_token_ids": [4], "choices": [choice], "usage": {"completion_tokens": 2}})
    assert (answer.text, answer.ids, answer.margins, answer.ttft) == ("ab", (1, 2), (2.0, 0.5), None)
    assert (answer.latency, answer.arrivals, answer.prompt_ids) == (2.0, (), (4,))


def test_prompt_log_probabilities_by_id() -> None:
    entries = [None, {"7": {"logprob": -3.0}, "9": {"logprob": -0.5}}, {"8": {"logprob": -1.0}}]
    choice = {"index": 0, "text": "x", "finish_reason": "length", "prompt_logprobs": entries}
    assert whole({"choices": [{**choice, "prompt_token_ids": [5, 7, 8]}]}).prompt_logprobs == (None, -3.0, -1.0)
    assert whole({"choices": [choice]}).prompt_logprobs is None  # whose they are is not told


def test_prompt_log_probabilities_by_echo() -> None:
    logprobs = {
        "tokens": ["a", "b", "c"],
        "token_logprobs": [None, -1.0, -2.0],
        "top_logprobs": [None, {}, {"c": -2.0}],
    }
    choice = {"index": 0, "text": "abc", "logprobs": logprobs, "finish_reason": "length"}
    answer = whole({"choices": [choice], "usage": {"completion_tokens": 1}}, echo=True)
    assert (answer.text, answer.tokens, answer.logprobs) == ("c", ("c",), (-2.0,))
    assert answer.prompt_logprobs == (None, -1.0)


@pytest.mark.parametrize("body", [b"<html>", b"", b"[]", b'{"choices": []}', b'{"choices": [{"index": 0}]}'])
def test_whole_that_is_no_answer(body: bytes) -> None:
    with pytest.raises(Failure) as caught:
        from_whole(body, "p", 0.0, 1.0)
    assert caught.value.kind == Kind.BAD_ANSWER


@pytest.mark.parametrize(
    "more",
    [
        {"usage": [1]},
        {"usage": "many"},
        {"timings": 3},
        {"model": {"a": 1}},
        {"system_fingerprint": ["f"]},
        {"sglext": {"cached_tokens_details": 4}},
        {"prompt_logprobs": 7},
    ],
)
def test_a_value_of_another_type_is_a_bad_answer(more: dict[str, Any]) -> None:
    for ask in (lambda: streamed(delta("a"), {**END, **more}), lambda: whole({**WHOLE, **more})):
        with pytest.raises(Failure, match="of another form") as raised:
            ask()
        assert raised.value.kind == Kind.BAD_ANSWER


@pytest.mark.parametrize(
    "found",
    [
        delta("a", entry("a", -(10**400))),
        delta("a", entry("a", -0.5, 10**400, -1)),
        delta("a", {"token": 5, "logprob": -1.0}),
        delta("a", entry("a", -0.5, id=float("inf"))),
        delta("a", token_ids=[float("inf")]),
    ],
)
def test_a_number_that_is_none_is_a_bad_answer(found: dict[str, Any]) -> None:
    with pytest.raises(Failure, match="of another form"):
        streamed(found, END)


@pytest.mark.parametrize("count", [-1, 10**400, 2.5, True, "7", [1], {"a": 1}])
def test_a_count_that_is_none_is_not_told(count: Any) -> None:
    answer = streamed(delta("a"), {**END, "usage": {"prompt_tokens": count, "completion_tokens": count}})
    assert answer.prompt_tokens is None and answer.completion_tokens is None


WHOLE = {"model": "m", "choices": [{"index": 0, "message": {"content": "a"}, "finish_reason": "stop"}]}
