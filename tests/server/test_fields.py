"""Fields of requests: what is taken, what is refused and how it says so, and that odd bodies are errors and no more."""

from __future__ import annotations

import json
import time
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queueproof.server.openai.fields import HARMLESS, NEUTRAL
from tests.support.fake_engine import FakeEngine
from tests.support.serving import CHAT, COMPLETIONS, HELLO, answer, app_of, client_of, error, error_of, request, run

BASE: dict[str, dict[str, Any]] = {CHAT: {"messages": HELLO}, COMPLETIONS: {"prompt": "hi"}}
KIND = {CHAT: "chat", COMPLETIONS: "completion"}


def plain(app_answer: dict[str, Any]) -> Any:
    """What an answer is about."""
    return app_answer["choices"], app_answer["usage"]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_values_that_ask_for_nothing_change_nothing(path: str) -> None:
    app = app_of(FakeEngine())
    body = BASE[path] | {"temperature": 0, "max_tokens": 3}
    without = plain(answer(app, path, **body))
    for name, neutral in NEUTRAL[KIND[path]].items():
        for value in (None, *neutral.values):
            assert plain(answer(app, path, **(body | {name: value}))) == without, name
    for name, kind in HARMLESS.items():
        for value in (None, kind()):
            assert plain(answer(app, path, **(body | {name: value}))) == without, name
    nulls = dict.fromkeys(("model", "n", "stream", "stop", "seed", "logit_bias", "response_format", "determinism"))
    assert plain(answer(app, path, **(body | nulls | {"best_of": 1}))) == without


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_what_is_not_supported_is_named_with_what_to_do(path: str) -> None:
    app = app_of(FakeEngine())
    for name, neutral in NEUTRAL[KIND[path]].items():
        for value in ("x", ["x"], {"x": 1}, 3):
            found = error(app, path, 400, **(BASE[path] | {name: value}))
            assert (found["param"], found["code"]) == (name, "unsupported_parameter")
            assert name in found["message"] and neutral.advice in found["message"]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_an_unknown_field_is_named_and_the_known_ones_are_listed(path: str) -> None:
    found = error(app_of(FakeEngine()), path, 400, **(BASE[path] | {"max_token": 3}))
    assert (found["param"], found["code"]) == ("max_token", "unknown_parameter")
    assert "did you mean 'max_tokens'" in found["message"] and "temperature" in found["message"]
    # null does not make it known.
    error(app_of(FakeEngine()), path, 400, **(BASE[path] | {"max_token": None}))


def test_each_route_has_fields_of_its_own() -> None:
    app = app_of(FakeEngine())
    assert error(app, CHAT, 400, messages=HELLO, prompt="x")["param"] == "prompt"
    assert error(app, CHAT, 400, messages=HELLO, echo=True)["param"] == "echo"
    assert error(app, COMPLETIONS, 400, prompt="x", messages=HELLO)["param"] == "messages"
    assert error(app, COMPLETIONS, 400, prompt="x", top_logprobs=1)["param"] == "top_logprobs"
    assert error(app, COMPLETIONS, 400, prompt="x", suffix="y")["param"] == "suffix"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 1e-6),
        ("temperature", "0.5"),
        ("temperature", True),
        ("temperature", 10**400),
        ("top_p", 0),
        ("top_p", 1.1),
        ("top_k", -2),
        ("top_k", 1.5),
        ("min_p", 2),
        ("repetition_penalty", 0),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("n", 0),
        ("n", 129),
        ("n", 10**300),
        ("n", "2"),
        ("seed", -1),
        ("seed", 1 << 64),
        ("seed", 1.0),
        ("stop", ""),
        ("stop", [""]),
        ("stop", [1]),
        ("stop", ["x"] * 33),
        ("stop", ["x" * 5000]),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", ["1"]),
        ("stop_token_ids", [1] * 5000),
        ("logit_bias", {"x": 1}),
        ("logit_bias", {"-1": 1}),
        ("logit_bias", {"258": 1}),
        ("logit_bias", {"1": 101}),
        ("logit_bias", {"1": "1"}),
        ("logit_bias", {"1": 1, "01": 1}),
        ("logit_bias", [1]),
        ("logit_bias", {str(i): 1 for i in range(5000)}),
        ("min_tokens", -1),
        ("min_tokens", 17),
        ("max_tokens", -1),
        ("max_tokens", 1 << 40),
        ("ignore_eos", 1),
        ("ignore_eos", "true"),
        ("prompt_logprobs", 21),
        ("prompt_logprobs", -1),
        ("cache_salt", ""),
        ("cache_salt", 3),
        ("cache_salt", "x" * 1025),
        ("best_of", 2),
        ("response_format", {"type": "grammar"}),
        ("response_format", {"type": "json_schema"}),
        ("response_format", "json"),
        ("determinism", 3),
        ("determinism", {"class": "batch", "x": 1}),
        ("user", 3),
        ("metadata", "x"),
        ("stream", "yes"),
    ],
    ids=lambda value: str(value)[:30],
)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_values_out_of_range_or_of_another_type(path: str, name: str, value: Any) -> None:
    found = error(app_of(FakeEngine()), path, 400, **(BASE[path] | {"max_tokens": 16, name: value}))
    where = found["param"].split(".")[0]
    assert where == name or (name, found["code"]) == ("max_tokens", "context_length_exceeded")
    assert len(found["message"]) < 1000


def test_chat_logprobs_and_completion_logprobs_have_limits() -> None:
    app = app_of(FakeEngine(), max_logprobs=5)
    assert error(app, CHAT, 400, messages=HELLO, logprobs=True, top_logprobs=6)["param"] == "top_logprobs"
    assert error(app, CHAT, 400, messages=HELLO, top_logprobs=1)["param"] == "top_logprobs"
    assert error(app, CHAT, 400, messages=HELLO, logprobs=3)["param"] == "logprobs"
    assert error(app, COMPLETIONS, 400, prompt="x", logprobs=6)["param"] == "logprobs"
    assert error(app, COMPLETIONS, 400, prompt="x", logprobs=True)["param"] == "logprobs"
    assert answer(app, COMPLETIONS, prompt="x", logprobs=5)


def test_two_names_of_one_limit_must_agree() -> None:
    app = app_of(FakeEngine())
    assert answer(app, CHAT, messages=HELLO, max_tokens=3, max_completion_tokens=3)["usage"]["completion_tokens"] == 3
    found = error(app, CHAT, 400, messages=HELLO, max_tokens=3, max_completion_tokens=4)
    assert found["param"] == "max_completion_tokens"


def test_answers_to_one_request_have_a_limit_over_its_prompts() -> None:
    app = app_of(FakeEngine(), max_choices=6)
    assert len(answer(app, COMPLETIONS, prompt=["a"] * 3, n=2)["choices"]) == 6
    assert error(app, COMPLETIONS, 400, prompt=["a"] * 3, n=3)["param"] == "n"


def test_the_text_of_a_prompt_has_a_limit() -> None:
    app = app_of(FakeEngine(), max_prompt_text=100)
    assert error(app, COMPLETIONS, 400, prompt="x" * 101)["code"] == "context_length_exceeded"
    assert error(app, CHAT, 400, messages=[{"role": "user", "content": "x" * 101}])["code"] == "context_length_exceeded"
    assert error(app, "/tokenize", 400, prompt="x" * 101)["code"] == "context_length_exceeded"


def test_many_errors_are_told_at_once() -> None:
    found = error(app_of(FakeEngine()), CHAT, 400, messages=HELLO, n="1", seed="2", top_p="3", stop=4)
    for name in ("n=", "seed=", "top_p=", "stop"):
        assert name in found["message"]


def test_tokenize_and_detokenize() -> None:
    app = app_of(FakeEngine())
    assert answer(app, "/tokenize", prompt="aé", return_token_strs=True) == {
        "count": 4,
        "max_model_len": 512,
        "tokens": [256, 97, 0xC3, 0xA9],
        "token_strs": ["<bos>", "a", "�", "�"],
    }
    assert answer(app, "/tokenize", prompt="a", add_special_tokens=False)["tokens"] == [97]
    of_chat = answer(app, "/tokenize", messages=HELLO, model="fake")["tokens"]
    assert answer(app, "/detokenize", tokens=of_chat) == {"prompt": "<bos>user: hello\nassistant: "}
    assert answer(app, "/detokenize", tokens=[]) == {"prompt": ""}
    for path, body in (
        ("/tokenize", {}),
        ("/tokenize", {"prompt": 3}),
        ("/tokenize", {"prompt": "x", "messages": HELLO}),
        ("/tokenize", {"messages": HELLO, "tools": [{}]}),
        ("/tokenize", {"prompt": "x", "echo": False}),
        ("/detokenize", {"tokens": [258]}),
        ("/detokenize", {"tokens": [-1]}),
        ("/detokenize", {"tokens": "abc"}),
    ):
        error(app, path, 400, **body)
    assert error(app, "/tokenize", 404, prompt="x", model="other")["code"] == "model_not_found"


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": [None] * 600_000},
        {"prompt": [[None] * 600_000]},
        {"prompt": [["x"]] * 300_000},
        {"prompt": "x", "logit_bias": {str(i): "x" for i in range(200_000)}},
        {"prompt": "x", "stop": [1] * 600_000},
        {"prompt": "x", "stop_token_ids": ["1"] * 600_000},
        {"prompt": "x", "t" * 3_000_000: 1},
        {"prompt": "x", "n": "t" * 3_000_000},
        {"prompt": "x", "user": {"t" * 100: ["t" * 3_000_000]}},
        {"prompt": "x", "tools": [["x"] * 1000] * 1000},
        {"messages": [{}] * 600_000},
    ],
    ids=lambda body: next(reversed(body))[:16],
)
def test_millions_of_errors_cost_as_little_as_one(body: dict[str, Any]) -> None:
    path = CHAT if "messages" in body else COMPLETIONS
    app = app_of(FakeEngine(), max_body=1 << 25)
    before = time.process_time()
    found = error(app, path, 400, **body)
    assert len(found["message"]) < 1500 and len(found["param"]) < 100
    # Reading the JSON of some megabytes takes a part of a second; a list of all that is wrong took many.
    assert time.process_time() - before < 3


def send(body: bytes, content_type: str = "application/json", **headers: str) -> httpx.Response:
    options = {"Content-Type": content_type, **{k.replace("_", "-"): v for k, v in headers.items()}}
    return request(app_of(FakeEngine(), max_body=20_000_000), "POST", CHAT, content=body, headers=options)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"3",
        b'"x"',
        b"null",
        b"{} {}",
        b'{"messages": NaN}',
        b'{"temperature": Infinity}',
        b"\xff\xfe{}",
        b'{"messages": "\xc3("}',
        b'{"messages": "\xed\xa0\x80"}',
        '{"a": 1}'.encode("utf-16"),
        b'{"n": 1, "n": 2}',
        b'{"messages": [{"role": "user", "content": "a", "content": "b"}]}',
        b'{"messages": [{"role": "user", "content": "\\ud83d"}]}',
        b'{"\\udc00": 1}',
        b'{"n": ' + b"9" * 5000 + b"}",
        b"[" * 100_000,
        b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
        b'{"messages": ' + b"[" * 70 + b"]" * 70 + b"}",
        b'{"messages": ' + b"[" * 900 + b"]" * 900 + b"}",
    ],
    ids=lambda body: repr(body[:24]),
)
def test_bodies_that_are_no_json_object(body: bytes) -> None:
    found = error_of(send(body), 400)
    assert found["code"] == "invalid_json" and len(found["message"]) < 300


def test_escaped_text_is_text() -> None:
    got = send(b'{"messages": [{"role": "user", "content": "\\ud83d\\ude00 \\u0000 \\u00e9"}], "max_tokens": 1}')
    assert got.status_code == 200, got.text


@pytest.mark.parametrize(
    "content_type",
    ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/json; charset=latin-1"],
)
def test_another_content_type_is_415(content_type: str) -> None:
    assert error_of(send(b'{"messages": []}', content_type), 415)["code"] == "unsupported_media_type"


@pytest.mark.parametrize(
    "content_type", ["application/json", "Application/JSON; charset=UTF-8", 'application/json;charset="utf-8"']
)
def test_content_types_that_are_json(content_type: str) -> None:
    body = json.dumps({"messages": HELLO, "max_tokens": 1}).encode()
    assert send(body, content_type).status_code == 200


def test_a_compressed_body_is_415() -> None:
    assert error_of(send(b"\x1f\x8b", Content_Encoding="gzip"), 415)["code"] == "unsupported_media_type"


names = st.sampled_from(
    [*BASE[CHAT], "n", "stop", "seed", "logit_bias", "stream", "temperature", "response_format", "determinism"]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(body=st.dictionaries(names | st.text(max_size=8), values, max_size=4), path=st.sampled_from([CHAT, COMPLETIONS]))
def test_any_json_is_an_answer_or_an_error_that_says_why(body: dict[str, Any], path: str) -> None:
    async def ask() -> httpx.Response:
        async with client_of(app_of(FakeEngine())) as client:
            return await client.post(
                path, content=json.dumps(BASE[path] | body), headers={"Content-Type": "application/json"}
            )

    got = run(ask())
    if got.status_code != 200:
        error_of(got, got.status_code)
        assert got.status_code in (400, 404, 422)


@settings(max_examples=150, deadline=None)
@given(body=st.binary(max_size=64))
def test_any_bytes_are_an_error(body: bytes) -> None:
    error_of(send(body), 400)
