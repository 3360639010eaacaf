"""What is found out of endpoints of several kinds, in process: by what comes back, not by what is taken."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from queueproof.audit.ask import Answer, Ask, Cache, Cold, Prompt
from queueproof.audit.budget import Budget
from queueproof.audit.client.abilities import Ability
from queueproof.audit.client.http import HttpEndpoint
from queueproof.audit.client.trouble import Failure, Kind, Retries
from queueproof.audit.endpoint import BudgetSpent, Counters, Trouble
from queueproof.contract.errors import UsageError

CHAT = Prompt("c", "chat", messages=(("user", "hello"),))
TEXT = Prompt("t", "text", text="hello")
_COMMON = {"model", "messages", "prompt", "max_tokens", "temperature", "stream", "seed", "echo"}


@dataclass
class Fake:
    """A server. known: the extra fields that it obeys; it ignores others, or rejects them where it is strict."""

    known: set[str]
    pages: dict[str, Any] = field(default_factory=dict)
    routes: tuple[str, ...] = ("/v1/chat/completions", "/v1/completions")
    models: list[dict[str, str]] = field(default_factory=lambda: [{"id": "m", "owned_by": ""}])
    strict: Callable[[set[str]], str] | None = None
    tells_cached: bool = True
    counts_hits: bool = False
    named: str | None = None
    limit: str = "max_tokens"
    bodies: list[dict[str, Any]] = field(default_factory=list)
    _cache: set[str] = field(default_factory=set)
    _hits: int = 0

    def __call__(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        if path == "/v1/models":
            return httpx.Response(200, json={"data": self.models})
        if path == "/metrics" and self.counts_hits:
            return httpx.Response(200, text=f"vllm:prefix_cache_hits_total {self._hits}\nvllm:num_requests_running 0\n")
        if path in self.pages:
            page = self.pages[path]
            return httpx.Response(200, json=page) if not isinstance(page, str) else httpx.Response(200, text=page)
        if path not in self.routes:
            return httpx.Response(404, json={"detail": "Not Found"})
        body = json.loads(request.content)
        self.bodies.append(body)
        return self._answer(path, body)

    def _answer(self, path: str, body: dict[str, Any]) -> httpx.Response:
        unknown = set(body) - self.known - (_COMMON - {"max_tokens"} | {self.limit})
        if self.strict is not None and unknown:
            return httpx.Response(400, json={"error": {"message": self.strict(unknown)}})
        chat = path.endswith("chat/completions")
        cached = self._cached(body)
        on = {name for name in self.known if body.get(name)}
        ids = body["prompt"] if isinstance(body.get("prompt"), list) else [1, 2, 3]
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length"}
        choice |= {"message": {"content": "ab"}} if chat else {"text": "ab"}
        if "logprobs" in on:
            tops = [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -1.5}]
            choice["logprobs"] = {"content": [{"token": "ab", "logprob": -0.5, "top_logprobs": tops}]}
        if "return_token_ids" in on:
            choice |= {"token_ids": [9], "prompt_token_ids": ids}
        if "prompt_logprobs" in on:
            choice["prompt_logprobs"] = [None, *[{str(i): {"logprob": -1.0}} for i in ids[1:]]]
        usage: dict[str, Any] = {"prompt_tokens": len(ids), "completion_tokens": 1}
        if self.tells_cached and cached:
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        answer = {"model": self.named or body["model"], "choices": [choice], "usage": usage}
        if not body["stream"]:
            return httpx.Response(200, json=answer)
        choice["delta"] = choice.pop("message", None)
        text = f"data: {json.dumps(answer)}\n\ndata: [DONE]\n\n"
        return httpx.Response(
            200, stream=httpx.ByteStream(text.encode()), headers={"content-type": "text/event-stream"}
        )

    def _cached(self, body: dict[str, Any]) -> int:
        if "cache_prompt" in self.known and not body.get("cache_prompt", True):
            return 0
        salt = body.get("cache_salt") if "cache_salt" in self.known else None
        key = json.dumps([salt, body.get("messages"), body.get("prompt")])
        hit = key in self._cache and len(key) > 200
        self._cache.add(key)
        self._hits += 96 * hit
        return 96 * hit


VLLM_FIELDS = {
    *("stream_options", "logprobs", "top_logprobs", "return_token_ids", "cache_salt", "ignore_eos", "prompt_logprobs")
}


def with_endpoint(
    fake: Fake, use: Callable[[HttpEndpoint], Any] = lambda endpoint: None, **options: Any
) -> HttpEndpoint:
    """The endpoint after `use`, which may be asynchronous."""

    async def run() -> HttpEndpoint:
        options.setdefault("retries", Retries(count=0))
        async with HttpEndpoint.open("http://fake/v1", transport=httpx.MockTransport(fake), **options) as endpoint:
            found = use(endpoint)
            if asyncio.iscoroutine(found):
                await found
            return endpoint

    return asyncio.run(run())


def test_vllm_that_tells_nothing_of_its_cache_is_seen_by_its_counters() -> None:
    version = {"/version": {"version": "0.32.0"}}
    models = [{"id": "m", "owned_by": "vllm"}]
    fake = Fake(VLLM_FIELDS, version, models=models, tells_cached=False, counts_hits=True)
    endpoint = with_endpoint(fake)
    identity = endpoint.identity()
    assert (identity.vendor, identity.version, identity.model, identity.url) == ("vllm", "0.32.0", "m", "http://fake")
    assert identity.cold_by == Cold.SALT and "96 tokens" in endpoint.how["cold cache"]
    expected = set(Ability) - {Ability.CACHED_TOKENS, Ability.TOKENIZE}
    assert endpoint.abilities == expected == set(identity.abilities)
    assert set(endpoint.how) == {*map(str, expected), "cold cache"}
    assert endpoint.problems() == ()


def test_counts_that_are_left_out_where_they_are_zero_are_zero() -> None:
    async def use(endpoint: HttpEndpoint) -> None:
        assert Ability.CACHED_TOKENS in endpoint.abilities
        assert (await endpoint.ask(Ask(CHAT, 4))).cached_tokens == 0

    with_endpoint(Fake(VLLM_FIELDS), use)


def test_a_salt_that_is_ignored_is_not_believed() -> None:
    endpoint = with_endpoint(Fake(VLLM_FIELDS - {"cache_salt"}))
    assert endpoint.cold_by is Cold.PREFIX and endpoint.identity().vendor == "unknown"


def test_a_salt_of_unknown_software_that_cannot_be_seen_to_work_is_not_believed() -> None:
    assert with_endpoint(Fake(VLLM_FIELDS, tells_cached=False)).cold_by is Cold.PREFIX


def test_llama_cpp_forgets_by_its_field() -> None:
    fake = Fake(
        {"stream_options", "logprobs", "top_logprobs", "cache_prompt", "ignore_eos"},
        {"/props": {"default_generation_settings": {}, "build_info": "b1"}, "/slots": [{"is_processing": False}]},
    )

    async def use(endpoint: HttpEndpoint) -> None:
        assert await endpoint.counters() == Counters(running=0.0)
        await endpoint.ask(Ask(CHAT, 1))
        assert fake.bodies[-1]["cache_prompt"] is False
        await endpoint.ask(Ask(CHAT, 1, cache=Cache.WARM, namespace="n"))
        assert fake.bodies[-1]["cache_prompt"] is True
        await endpoint.ask(Ask(CHAT, 1, cache=Cache.FREE))
        assert "cache_prompt" not in fake.bodies[-1] and not await endpoint.forget()

    endpoint = with_endpoint(fake, use)
    assert (endpoint.identity().vendor, endpoint.identity().version, endpoint.cold_by) == (
        "llama.cpp",
        "b1",
        Cold.FIELD,
    )
    assert Ability.PROMPT_LOGPROBS not in endpoint.abilities


@pytest.mark.parametrize(
    "says",
    [
        lambda unknown: f"Unexpected fields in the request: {unknown}",
        lambda unknown: f"Unrecognized request argument supplied: {sorted(unknown)[0]}",
        lambda unknown: "Bad request",
    ],
)
def test_a_strict_server_is_asked_for_what_it_takes(says: Callable[[set[str]], str]) -> None:
    endpoint = with_endpoint(Fake({"stream_options", "logprobs", "top_logprobs"}, strict=says))
    chat = {Ability.CHAT, Ability.COMPLETIONS, Ability.STREAM, Ability.LOGPROBS, Ability.TOP_LOGPROBS, Ability.USAGE}
    assert endpoint.abilities == chat
    assert (endpoint.cold_by, endpoint.problems()) == (Cold.PREFIX, ())


def test_transformers_is_known_by_its_routes() -> None:
    routes = {"/v1/chat/completions": {}, "/load_model": {}}
    endpoint = with_endpoint(Fake(set(), {"/openapi.json": {"paths": routes}}, strict=str))
    assert endpoint.identity().vendor == "transformers"
    assert endpoint.abilities == {Ability.CHAT, Ability.COMPLETIONS, Ability.STREAM, Ability.USAGE}


def test_hosts_that_have_another_name_for_max_tokens() -> None:
    fake = Fake({"logprobs", "top_logprobs"}, limit="max_completion_tokens", routes=("/v1/chat/completions",))
    fake.strict = lambda unknown: f"Unsupported: {sorted(unknown)}. Use 'max_completion_tokens' instead of max_tokens."

    async def use(endpoint: HttpEndpoint) -> None:
        await endpoint.ask(Ask(CHAT, 7))
        with pytest.raises(Failure, match="does not answer /completions") as caught:
            await endpoint.ask(Ask(TEXT, 7))
        assert caught.value.kind == Kind.REJECTED

    with_endpoint(fake, use)
    assert fake.bodies[-1]["max_completion_tokens"] == 7 and "max_tokens" not in fake.bodies[-1]


@pytest.mark.parametrize(
    ("pages", "vendor", "version", "block"),
    [
        (
            {"/.well-known/queueproof": {"schema": "queueproof/contract/1"}, "/version": {"version": "1"}},
            "queueproof",
            "1",
            None,
        ),
        ({"/get_server_info": {"max_total_num_tokens": 9, "page_size": 64, "version": "0.5"}}, "sglang", "0.5", 64),
        ({"/info": {"model_id": "x", "router": "r", "version": "3.2"}}, "tgi", "3.2", None),
        ({"/metrics": '#\nvllm:cache_config_info{block_size="16"} 1\n'}, "vllm", None, 16),
        ({"/version": {"version": "9"}}, "unknown", "9", None),
    ],
)
def test_vendors(pages: dict[str, Any], vendor: str, version: str | None, block: int | None) -> None:
    identity = with_endpoint(Fake(set(), pages)).identity()
    assert (identity.vendor, identity.version, identity.block_size) == (vendor, version, block)


def test_sglang_is_emptied_by_its_route() -> None:
    pages = {"/get_server_info": {"max_total_num_tokens": 9}, "/flush_cache": "Cache flushed."}
    assert with_endpoint(Fake(set(), pages)).cold_by is Cold.RESET


def test_several_models_are_listed() -> None:
    fake = Fake(set(), models=[{"id": "one"}, {"id": "two"}])
    with pytest.raises(UsageError, match="one, two"):
        with_endpoint(fake)
    assert with_endpoint(fake, model="two").identity().model == "two"
    with pytest.raises(UsageError, match="lists no models"):
        with_endpoint(Fake(set(), models=[]))


def test_an_api_without_v1() -> None:
    fake = Fake(set(), {"/models": {"data": [{"id": "m"}]}}, routes=("/chat/completions",))

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(404) if request.url.path == "/v1/models" else fake(request)

    async def run() -> None:
        async with HttpEndpoint.open("http://fake", transport=httpx.MockTransport(answer)) as endpoint:
            assert (await endpoint.ask(Ask(CHAT, 1))).text == "ab"

    asyncio.run(run())


def test_a_key_that_is_wrong_ends_it_at_once() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        assert request.headers["authorization"] == "Bearer k"
        return httpx.Response(401, json={"error": {"message": "wrong key"}})

    async def run() -> None:
        async with HttpEndpoint.open("http://fake", api_key="k", transport=httpx.MockTransport(answer)):
            raise AssertionError

    with pytest.raises(Trouble, match="wrong key") as caught:
        asyncio.run(run())
    assert caught.value.kind == Kind.UNAUTHORIZED


def test_an_endpoint_that_rejects_everything() -> None:
    fake = Fake(set(), strict=lambda unknown: "no", limit="never")
    with pytest.raises(Trouble, match="400: no"):
        with_endpoint(fake)


def test_another_model_is_trouble_and_no_answer() -> None:
    fake = Fake({"logprobs", "top_logprobs"}, named="m-2026-12-02")

    async def use(endpoint: HttpEndpoint) -> None:
        assert (await endpoint.ask(Ask(CHAT, 1))).model == "m-2026-12-02"  # a longer name of the same
        fake.named = "another"
        with pytest.raises(Failure, match="another") as caught:
            await endpoint.ask(Ask(CHAT, 1))
        assert caught.value.kind == Kind.OTHER_MODEL

    assert [p.kind for p in with_endpoint(fake, use).problems()] == [Kind.OTHER_MODEL]
    with pytest.raises(Failure, match="answers as 'n'"):
        with_endpoint(Fake(set(), models=[{"id": "m"}, {"id": "n"}], named="n"), model="m")


def test_missing_log_probabilities_are_written_down() -> None:
    fake = Fake({"logprobs", "top_logprobs"})

    async def use(endpoint: HttpEndpoint) -> None:
        fake.known.clear()
        assert (await endpoint.ask(Ask(CHAT, 1))).logprobs is None
        await endpoint.ask(Ask(CHAT, 1, logprobs=False))

    assert [(p.kind, p.count) for p in with_endpoint(fake, use).problems()] == [(Kind.NO_LOGPROBS, 1)]


def test_what_is_sent() -> None:
    fake = Fake(VLLM_FIELDS, models=[{"id": "m", "owned_by": "vllm"}])

    async def use(endpoint: HttpEndpoint) -> None:
        warm = [endpoint.body(Ask(CHAT, 5, cache=Cache.WARM, namespace=n))["cache_salt"] for n in ("a", "a", "b")]
        assert warm[0] == warm[1] != warm[2]
        odd = endpoint.body(Ask(CHAT, 5, cache=Cache.WARM, namespace="a/b@\\" * 50))["cache_salt"]
        assert all(re.fullmatch(r"[0-9a-f-]{1,64}", salt) for salt in (odd, *warm))  # vLLM is strict
        cold = {endpoint.body(Ask(CHAT, 5))["cache_salt"] for _ in range(3)}
        assert len(cold | set(warm)) == 5 and all(re.fullmatch(r"[0-9a-f-]{1,64}", salt) for salt in cold)
        body = endpoint.body(Ask(CHAT, 5, seed=3, temperature=0.7, exact_tokens=True, cache=Cache.FREE))
        assert body == {
            "model": "m",
            "messages": [{"role": "user", "content": "hello"}],
            "max_tokens": 5,
            "stream": True,
            "temperature": 0.7,
            "seed": 3,
            "return_token_ids": True,
            "stream_options": {"include_usage": True},
            "logprobs": True,
            "top_logprobs": 2,
            "ignore_eos": True,
            "determinism": "portable",
        }
        ids = endpoint.body(
            Ask(Prompt("i", "ids", ids=(4, 5)), 1, prompt_logprobs=True, cache=Cache.FREE, logprobs=False)
        )
        assert (ids["prompt"], ids["prompt_logprobs"], ids["stream"]) == ([4, 5], 1, False)
        answer: Answer = await endpoint.ask(Ask(Prompt("i", "ids", ids=(4, 5)), 1, prompt_logprobs=True))
        assert (answer.prompt_logprobs, answer.prompt_ids) == ((None, -1.0), (4, 5))

    with_endpoint(fake, use, extra_body={"determinism": "portable"})
    assert all(body["determinism"] == "portable" for body in fake.bodies)


def test_tokens_are_counted_by_a_route_else_by_an_answer() -> None:
    async def use(endpoint: HttpEndpoint) -> None:
        assert await endpoint.count(Prompt("i", "ids", ids=(1, 2, 3, 4))) == 4
        before = endpoint.requests
        assert await endpoint.count(CHAT) == await endpoint.count(CHAT) == expected
        assert endpoint.requests == before + asked

    vllm = [{"id": "m", "owned_by": "vllm"}]
    expected, asked = 11, 0
    with_endpoint(Fake(VLLM_FIELDS, {"/tokenize": {"count": 11}}, models=vllm), use)
    expected, asked = 3, 1
    with_endpoint(Fake(VLLM_FIELDS, models=vllm), use)


def test_a_budget_that_is_spent_while_exploring() -> None:
    with pytest.raises(BudgetSpent, match="3 requests"):
        with_endpoint(Fake(VLLM_FIELDS), budget=Budget(seconds=None, requests=3))
