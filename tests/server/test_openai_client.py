"""OpenAI's own client against `queueproof serve`, a process of its own with a tiny model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam

from tests.support.checkpoints import checkpoint, tokens, write_hf
from tests.support.server_process import ServerProcess

KEY = "sk-test"
WILD = 20.0  # the tiny model is nearly sure of its nonsense
HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hello world"}]
END = "2"  # <|im_end|>
# JSON may have spaces anywhere, and the tiny model goes on with one for ever. In the byte-level alphabet they are letters.
NO_SPACES = {str(token): -100 for token, text in enumerate(tokens()) if set(text) & set("ĠĊčĉ")}
SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["he", "hello"]}, "count": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["name", "count"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("served")
    model = write_hf(checkpoint(), folder / "tiny")
    options = (
        "--api-key",
        KEY,
        "--served-model-name",
        "tiny",
        "--threads",
        "1",
        "--max-num-seqs",
        "8",
        "--best-effort",
    )
    with ServerProcess(model, *options, log=folder / "log.txt") as running:
        yield running


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0, timeout=60) as made:
        yield made


def extra(answer: Any) -> dict[str, Any]:
    """Fields of an answer that OpenAI's API does not have."""
    found: dict[str, Any] = answer.model_extra
    return found


def test_models(client: OpenAI) -> None:
    (model,) = client.models.list().data
    assert model.id == "tiny" and model.object == "model" and model.owned_by == "queueproof"
    assert {offer["class"] for offer in extra(model)["determinism"]["offers"]} >= {"portable", "best-effort"}
    assert client.models.retrieve("tiny") == model


def test_a_chat(client: OpenAI) -> None:
    got = client.chat.completions.create(model="tiny", messages=HELLO, max_completion_tokens=12, seed=3)
    (choice,) = got.choices
    assert got.id.startswith("chatcmpl-") and got.object == "chat.completion" and got.model == "tiny"
    assert choice.message.role == "assistant" and choice.finish_reason in ("length", "stop")
    assert got.usage is not None and got.usage.completion_tokens == 12
    assert got.usage.prompt_tokens_details is not None
    assert got.system_fingerprint is not None and got.system_fingerprint.startswith("qp-")
    determinism = extra(got)["determinism"]
    assert determinism["class"] == "portable" and determinism["receipt"].startswith("rcpt-")


def test_the_same_request_has_the_same_answer_in_a_crowd(client: OpenAI) -> None:
    def ask(seed: int) -> Any:
        return client.chat.completions.create(
            model="tiny", messages=HELLO, max_tokens=16, seed=seed, temperature=WILD, logprobs=True, top_logprobs=2
        ).choices[0]

    from concurrent.futures import ThreadPoolExecutor

    alone = ask(5)
    with ThreadPoolExecutor(8) as crowd:
        others = list(crowd.map(ask, [5, 1, 5, 2, 5, 3, 5, 4]))
    assert [other == alone for other in others[::2]] == [True] * 4
    assert any(other.message.content != alone.message.content for other in others[1::2])


def test_several_answers_and_stops(client: OpenAI) -> None:
    got = client.chat.completions.create(model="tiny", messages=HELLO, n=3, max_tokens=8, seed=1, stop=["zzz", "\n\n"])
    assert [choice.index for choice in got.choices] == [0, 1, 2]
    assert len({extra(choice)["receipt"] for choice in got.choices}) == 3


def test_a_chat_stream_is_the_whole_answer(client: OpenAI) -> None:
    options: dict[str, Any] = {
        "model": "tiny",
        "messages": HELLO,
        "max_tokens": 24,
        "seed": 8,
        "n": 2,
        "temperature": WILD,
    }
    whole = client.chat.completions.create(**options)
    texts, ends = ["", ""], [None, None]
    usage = None
    classes = []
    for chunk in client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        if "determinism" in extra(chunk):
            classes.append(extra(chunk)["determinism"])
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            ends[choice.index] = choice.finish_reason or ends[choice.index]
    assert texts == [choice.message.content for choice in whole.choices]
    assert ends == [choice.finish_reason for choice in whole.choices]
    assert usage is not None and whole.usage is not None and usage.completion_tokens == whole.usage.completion_tokens
    assert "receipt" not in classes[0] and [c["receipt"][:5] for c in classes[1:]] == ["rcpt-"] * 2


def test_the_streaming_helper(client: OpenAI) -> None:
    # The helper takes answers that end by themselves: the model's end token is made likely, and put off for four tokens.
    options: dict[str, Any] = {"model": "tiny", "messages": HELLO, "seed": 8, "temperature": WILD}
    options |= {"logit_bias": {END: 100}, "extra_body": {"min_tokens": 4}}
    with client.chat.completions.stream(**options) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    whole = client.chat.completions.create(**options)
    assert whole.choices[0].finish_reason == "stop" and whole.choices[0].message.content
    assert "content.delta" in kinds and final.choices[0].message.content == whole.choices[0].message.content


def test_chat_logprobs(client: OpenAI) -> None:
    options: dict[str, Any] = {"model": "tiny", "messages": HELLO, "max_tokens": 6, "temperature": 0, "seed": 0}
    got = client.chat.completions.create(**options, logprobs=True, top_logprobs=4)
    logprobs = got.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None and len(logprobs.content) == 6
    for entry in logprobs.content:
        assert entry.logprob <= 0 and entry.bytes is not None and len(entry.top_logprobs) == 4
        assert entry.logprob == entry.top_logprobs[0].logprob, "greedy takes the best"
        assert [t.logprob for t in entry.top_logprobs] == sorted((t.logprob for t in entry.top_logprobs), reverse=True)
    text = b"".join(bytes(entry.bytes or []) for entry in logprobs.content).decode("utf-8", "replace")
    assert text == got.choices[0].message.content


def test_a_completion_of_every_kind_of_prompt(client: OpenAI) -> None:
    ids = [5, 6, 7]
    for prompt, count in (("hello", 1), (["hello", "he"], 2), (ids, 1), ([ids, ids[:1]], 2)):
        got = client.completions.create(model="tiny", prompt=prompt, max_tokens=4, temperature=0)  # type: ignore[arg-type]
        assert got.object == "text_completion" and [choice.index for choice in got.choices] == list(range(count))
        streamed = [""] * count
        for chunk in client.completions.create(model="tiny", prompt=prompt, max_tokens=4, temperature=0, stream=True):  # type: ignore[arg-type]
            for choice in chunk.choices:
                streamed[choice.index] += choice.text
        assert streamed == [choice.text for choice in got.choices]


def test_the_loglikelihood_of_a_text(client: OpenAI) -> None:
    got = client.completions.create(model="tiny", prompt="hello world", max_tokens=0, echo=True, logprobs=1)
    (choice,) = got.choices
    assert choice.text == "hello world" and choice.logprobs is not None
    logprobs = choice.logprobs
    assert "".join(logprobs.tokens or []) == "hello world"
    assert logprobs.token_logprobs is not None and logprobs.top_logprobs is not None
    assert logprobs.token_logprobs[0] is None and all(value <= 0 for value in logprobs.token_logprobs[1:])
    assert [choice.text[o] for o in logprobs.text_offset or []] == [token[0] for token in logprobs.tokens or []]
    # The same text in the answer and in the prompt: the same numbers, bit for bit.
    one = client.completions.create(model="tiny", prompt="hello", max_tokens=3, temperature=0, logprobs=0)
    ids = extra(
        client.completions.create(
            model="tiny", prompt="hello", max_tokens=3, temperature=0, extra_body={"return_token_ids": True}
        ).choices[0]
    )
    again = client.completions.create(
        model="tiny", prompt=ids["prompt_token_ids"] + ids["token_ids"], max_tokens=0, echo=True, logprobs=0
    )
    first, second = one.choices[0].logprobs, again.choices[0].logprobs
    assert first is not None and second is not None and second.token_logprobs is not None
    assert first.token_logprobs == second.token_logprobs[-3:]


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_follows_a_json_schema(client: OpenAI, stream: bool) -> None:
    response_format: Any = {"type": "json_schema", "json_schema": {"name": "thing", "schema": SCHEMA, "strict": True}}
    for seed in range(3):
        got: Any = client.chat.completions.create(
            model="tiny",
            messages=HELLO,
            max_tokens=300,
            seed=seed,
            temperature=WILD,
            logit_bias=NO_SPACES,
            response_format=response_format,
            stream=stream,
        )
        text = "".join(c.choices[0].delta.content or "" for c in got) if stream else got.choices[0].message.content
        made = json.loads(text)
        assert set(made) == {"name", "count"} and made["name"] in ("he", "hello") and 0 <= made["count"] <= 9


def test_the_client_parses_what_it_asked_for(client: OpenAI) -> None:
    from pydantic import BaseModel

    class Answer(BaseModel):
        ok: bool

    got = client.chat.completions.parse(
        model="tiny", messages=HELLO, response_format=Answer, max_tokens=200, logit_bias=NO_SPACES
    )
    assert isinstance(got.choices[0].message.parsed, Answer)


def test_classes_by_field_and_header(client: OpenAI) -> None:
    got = client.chat.completions.create(
        model="tiny", messages=HELLO, max_tokens=1, extra_body={"determinism": "best-effort"}
    )
    assert extra(got)["determinism"]["arithmetic"] == "vendor"
    raw = client.chat.completions.with_raw_response.create(
        model="tiny", messages=HELLO, max_tokens=1, extra_headers={"Queueproof-Determinism": "request"}
    )
    assert raw.headers["queueproof-determinism"] == "portable"
    with pytest.raises(openai.UnprocessableEntityError) as caught:
        client.chat.completions.create(model="tiny", messages=HELLO, extra_body={"determinism": "psychic"})
    assert caught.value.code == "unsupported_class" and caught.value.param == "determinism"
    body: Any = caught.value.body
    assert {offer["class"] for offer in body["offers"]} == {"portable", "best-effort"}


def test_errors_are_the_clients_own(client: OpenAI, server: ServerProcess) -> None:
    with pytest.raises(openai.NotFoundError, match="is not served here"):
        client.chat.completions.create(model="gpt-x", messages=HELLO)
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="tiny", messages=HELLO, temperature=-1)
    assert caught.value.param == "temperature" and caught.value.type == "invalid_request_error"
    with pytest.raises(openai.BadRequestError, match="tools"):
        client.chat.completions.create(
            model="tiny", messages=HELLO, tools=[{"type": "function", "function": {"name": "f"}}]
        )
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="tiny", prompt=[1] * 5000)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="tiny", input="x")
    stranger = OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0)
    with stranger, pytest.raises(openai.AuthenticationError) as refused:
        stranger.models.list()
    assert refused.value.code == "invalid_api_key"


def test_a_stream_that_is_left_frees_its_place(client: OpenAI, server: ServerProcess) -> None:
    for _ in range(20):  # more than may run at once
        with client.chat.completions.create(model="tiny", messages=HELLO, stream=True) as stream:
            next(iter(stream))
    got = client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=1)
    assert got.choices


def test_the_asynchronous_client(server: ServerProcess) -> None:
    import asyncio

    async def work() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as client:

            async def ask() -> str:
                text = ""
                stream = await client.chat.completions.create(
                    model="tiny", messages=HELLO, max_tokens=10, seed=4, stream=True
                )
                async for chunk in stream:
                    text += chunk.choices[0].delta.content or ""
                return text

            return list(await asyncio.gather(*(ask() for _ in range(6))))

    assert len(set(asyncio.run(work()))) == 1
