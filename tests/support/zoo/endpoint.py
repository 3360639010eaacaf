"""An endpoint of the zoo: the OpenAI-style API of one or two engines, as what sends the requests of an httpx client."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx

from tests.support.zoo import wire
from tests.support.zoo.engine import Engine, Pace, Work
from tests.support.zoo.faults import CLEAN, Faults
from tests.support.zoo.model import after, read, template, text_of, tokenize

_ASKS = 8  # tokens from which a request counts for `first_asks` and `build_after`: a client first tries what there is


@dataclass(frozen=True, slots=True)
class Offer:
    """What the endpoint offers. What it does not is left out of answers, and its routes do not exist.

    salt: `cache_salt`; reset: /reset_prefix_cache; field: llama.cpp's `cache_prompt`. whole: an answer comes in one piece
    though it is streamed. strict: unknown fields are rejected, those of what is not offered too. ends: answers may end
    before max_tokens. caching: there is a prefix cache.
    """

    vendor: str = "vllm"
    version: str = "0.0.1+zoo"
    model: str = "zoo"
    metrics: bool = True
    usage: bool = True
    cached_tokens: bool = True
    ids: bool = True
    logprobs: bool = True
    prompt_logprobs: bool = True
    echo: bool = True
    salt: bool = True
    reset: bool = True
    field: bool = False
    tokenize: bool = True
    whole: bool = False
    strict: bool = False
    ends: bool = True
    caching: bool = True
    id_prompts: bool = True


class Zoo(httpx.AsyncBaseTransport):
    """seed: of what is random in it, and of nothing else. asks: bodies of all requests that were answered."""

    def __init__(
        self, faults: Faults = CLEAN, offer: Offer | None = None, pace: Pace | None = None, seed: int = 0
    ) -> None:
        self.faults, self.offer, self.pace = faults, offer or Offer(), pace or Pace()
        self._rng = random.Random(seed)
        self.engines = [Engine(1 + i, faults, self.pace, random.Random(seed + 1)) for i in range(faults.replicas)]
        self.asks: list[dict[str, Any]] = []
        self._counted = 0

    async def aclose(self) -> None:
        for engine in self.engines:
            await engine.close()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        content = await request.aread()
        path = request.url.path
        if request.method == "GET":
            return self._page(path)
        if path == "/reset_prefix_cache" and self.offer.reset:
            for engine in self.engines:
                engine.forget()
            return httpx.Response(200)
        try:
            body = json.loads(content)
        except ValueError:
            return _error(400, "no JSON")
        if path == "/tokenize" and self.offer.tokenize:
            ids = self._ids(body)
            return httpx.Response(200, json={"count": len(ids), "max_model_len": 8192, "tokens": list(ids)})
        if path in ("/v1/chat/completions", "/v1/completions"):
            return await self._answer(body, path.endswith("chat/completions"))
        return _error(404, "Not Found")

    # Pages

    def _page(self, path: str) -> httpx.Response:
        offer = self.offer
        if path == "/v1/models":
            card = {"id": offer.model, "object": "model", "owned_by": offer.vendor, "max_model_len": 8192}
            return httpx.Response(200, json={"object": "list", "data": [card]})
        if path == "/version":
            return httpx.Response(200, json={"version": offer.version})
        if path == "/health":
            return httpx.Response(200)
        if path == "/metrics" and offer.metrics:
            return httpx.Response(200, text=self._metrics(), headers={"content-type": "text/plain; version=0.0.4"})
        return _error(404, "Not Found")

    def _metrics(self) -> str:
        engines, label = self.engines, f'{{model_name="{self.offer.model}"}}'
        lines = [
            f"vllm:num_requests_running{label} {float(sum(e.running for e in engines))}",
            f"vllm:num_requests_waiting{label} {float(sum(e.waiting for e in engines))}",
            f"vllm:prompt_tokens_total{label} {float(sum(e.prompt_tokens for e in engines))}",
            f"vllm:num_preemptions_total{label} 0.0",
            f'vllm:cache_config_info{{block_size="{self.pace.block}",enable_prefix_caching="True"}} 1.0',
        ]
        if self.offer.caching:
            lines.append(f"vllm:prefix_cache_queries_total{label} {float(sum(e.queried for e in engines))}")
            lines.append(f"vllm:prefix_cache_hits_total{label} {float(sum(e.hits for e in engines))}")
        return "\n".join(lines) + "\n"

    # Answers

    async def _answer(self, body: dict[str, Any], chat: bool) -> httpx.Response:
        wrong = self._wrong(body, chat)
        if wrong is not None:
            return _error(400, wrong)
        self.asks.append(body)
        work, engine, fingerprint = self._work(body, chat)
        form = wire.Form(chat, self.offer.model, fingerprint, self._top(body, chat), self._tells_ids(body))
        engine.put(work)
        if work.stream:
            return httpx.Response(
                200, headers={"content-type": "text/event-stream"}, stream=_Stream(self, work, form, body)
            )
        piece = await _all_of(work)
        said = wire.whole(form, piece, work.finish or "", self._of_prompt(body, work), self._usage(work), None)
        if body.get("echo") and self.offer.echo and not chat:
            echo = self._echo(body, work, piece)
            said = wire.whole(form, piece, work.finish or "", "", self._usage(work), echo)
        return httpx.Response(200, stream=httpx.ByteStream(said), headers={"content-type": "application/json"})

    def _wrong(self, body: dict[str, Any], chat: bool) -> str | None:
        offer = self.offer
        if body.get("model") not in (None, offer.model):
            return f"The model {body.get('model')} does not exist."
        if not chat and isinstance(body.get("prompt"), list) and not offer.id_prompts:
            return "prompt must be a string"
        if offer.strict:
            lacking = {
                "return_token_ids": offer.ids,
                "cache_salt": offer.salt,
                "cache_prompt": offer.field,
                "logprobs": offer.logprobs,
                "top_logprobs": offer.logprobs,
                "prompt_logprobs": offer.prompt_logprobs,
                "stream_options": offer.usage,
                "ignore_eos": False,
                "return_cached_tokens_details": False,
            }
            unknown = {name for name, has in lacking.items() if name in body and not has}
            if unknown:
                return f"Unexpected fields in the request: {unknown}"
        return None

    def _ids(self, body: dict[str, Any]) -> tuple[int, ...]:
        if "messages" in body:
            return template([(m["role"], m["content"]) for m in body["messages"]])
        prompt = body.get("prompt", "")
        return tokenize(prompt) if isinstance(prompt, str) else tuple(prompt)

    def _work(self, body: dict[str, Any], chat: bool) -> tuple[Work, Engine, str | None]:
        limit = body.get("max_completion_tokens") or body.get("max_tokens") or 16
        number = self._counted
        self._counted += limit >= _ASKS
        engine = self.engines[0] if len(self.engines) == 1 else self._rng.choice(self.engines)
        other = self.engines.index(engine)
        if self.faults.build_after is not None and number >= self.faults.build_after:
            engine.weights, other = 99, 9
        salt = body.get("cache_salt") if self.offer.salt else None
        cached = self.offer.caching and not (self.offer.field and not body.get("cache_prompt", True))
        work = Work(
            ids=self._ids(body) or (0,),
            limit=int(limit),
            temperature=float(body.get("temperature", 1.0)),
            seed=body.get("seed"),
            salt=salt,
            cached=cached,
            logprobs=self._top(body, chat) is not None,
            stream=bool(body.get("stream")),
            forced=bool(body.get("ignore_eos")) and not self.offer.strict or not self.offer.ends,
            number=number,
        )
        return work, engine, f"zoo-{other if self.faults.told else 0}"

    def _top(self, body: dict[str, Any], chat: bool) -> int | None:
        asked = body.get("logprobs")
        if not self.offer.logprobs or asked is None or asked is False:
            return None
        return int(body.get("top_logprobs") or 0) if chat else int(asked)

    def _tells_ids(self, body: dict[str, Any]) -> bool:
        return bool(body.get("return_token_ids")) and self.offer.ids

    def _usage(self, work: Work) -> str:
        if not self.offer.usage:
            return ""
        prompt, made = len(work.ids), work.made
        details = f',"prompt_tokens_details":{{"cached_tokens":{work.hit}}}' if self.offer.cached_tokens else ""
        return (
            f',"usage":{{"prompt_tokens":{prompt},"completion_tokens":{made},"total_tokens":{prompt + made}{details}}}'
        )

    def _prompt_values(self, work: Work) -> list[float]:
        """Of the prompt's tokens but the first."""
        key, state, found = int(self.faults.phase), work.start, []
        if self.faults.logprobs:  # as in an answer of which they are asked for
            key ^= 1 << 8
        for before, token in zip(work.ids, work.ids[1:], strict=False):
            state = after((before,), state)
            found.append(read(token, state, key, self.faults.scale))
        return found

    def _of_prompt(self, body: dict[str, Any], work: Work) -> str:
        said = ""
        if self._tells_ids(body):
            said += f',"prompt_token_ids":{json.dumps(work.ids)}'
        if self.offer.prompt_logprobs and body.get("prompt_logprobs") is not None:
            entries = [
                f'{{"{token}":{{"logprob":{value!r},"rank":1,"decoded_token":"{text_of(token)}"}}}}'
                for token, value in zip(work.ids[1:], self._prompt_values(work), strict=True)
            ]
            said += f',"prompt_logprobs":[{",".join(["null", *entries])}]'
        return said

    def _echo(self, body: dict[str, Any], work: Work, piece: wire.Piece) -> tuple[str, str]:
        prompt = [text_of(token) for token in work.ids]
        said = "".join(prompt) + wire.text(piece)
        if body.get("logprobs") is None:
            return said, ""
        texts = prompt + [text_of(found.ids[chosen]) for found, chosen in piece]
        values = ["null", *map(repr, self._prompt_values(work))]
        values += [repr(found.logprobs[chosen]) for found, chosen in piece]
        tops = [""] * len(prompt) + [
            ",".join([f'"{text_of(t)}":{p!r}' for t, p in zip(found.ids, found.logprobs, strict=True)])
            for found, _ in piece
        ]
        return said, ',"logprobs":' + wire.completion_logprobs(texts, values, tops)


class _Stream(httpx.AsyncByteStream):
    """The events of an answer as they are computed."""

    def __init__(self, zoo: Zoo, work: Work, form: wire.Form, body: dict[str, Any]) -> None:
        self._zoo, self._work, self._form, self._body = zoo, work, form, body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        work, form, head = self._work, self._form, self._form.head.replace("completion", "completion.chunk", 1)
        first = f',"prompt_token_ids":{json.dumps(work.ids)}' if form.ids else ""
        if self._zoo.offer.whole:
            piece = await _all_of(work)
            yield wire.chunk(form, head, piece, work.finish, first)
        else:
            ended = False
            while not ended:
                piece = await _next_of(work)
                ended = work.finish is not None and not work.pieces
                yield wire.chunk(form, head, piece, work.finish if ended else None, first)
                first = ""
        if (self._body.get("stream_options") or {}).get("include_usage") and self._zoo.offer.usage:
            yield f'data: {head}"choices":[]{self._zoo._usage(work)}}}\n\n'.encode()
        yield b"data: [DONE]\n\n"

    async def aclose(self) -> None:
        self._work.gone = self._work.finish is None


async def _next_of(work: Work) -> wire.Piece:
    while not work.pieces:
        work.arrived.clear()
        await work.arrived.wait()
    return work.pieces.popleft()


async def _all_of(work: Work) -> wire.Piece:
    try:
        found = list(await _next_of(work))
        while work.finish is None or work.pieces:
            found += await _next_of(work)
    except asyncio.CancelledError:
        work.gone = True
        raise
    return found


def _error(status: int, message: str) -> httpx.Response:
    return httpx.Response(status, json={"error": {"message": message, "type": "BadRequestError", "code": status}})
