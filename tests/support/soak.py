"""Many clients at once against a real server: what they ask, what they got, and whether each answer is the one alone.

Every client draws its requests from a seed: arrivals, lengths, sampling, classes, streamed or whole, and leaving early.
Shared by tests/server/test_soak.py and benchmarks/server_soak.py.
"""

from __future__ import annotations

import asyncio
import json
import random
import struct
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np

from queueproof.contract.classes import parse_class
from queueproof.engine.protocols import LoadedModel
from queueproof.engine.sampling_params import SamplingParams
from tests.support.simulation import Alone

TEXT = "the queue is part of an answer and no batch may change what it told"
WORDS = TEXT.split(" ")
SYSTEM = f"You are the help desk of a library. {TEXT}"


@dataclass(frozen=True)
class Draw:
    """One request. leave_after: events of its stream, or thousandths of a second of a whole answer; None stays to the end.

    pause: seconds between reading two events.
    """

    path: str
    body: dict[str, Any]
    wait: float
    leave_after: int | None = None
    pause: float = 0.0


@dataclass
class Told:
    """What a client was told of one answer. logprobs: f32 bits. ids and logprobs are empty if it did not ask for them."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: str | None = None
    receipt: str | None = None


@dataclass
class Asked:
    """A request and all of its answers, if it came to its end. prompt: empty if it was not told."""

    draw: Draw
    prompt: list[int] = field(default_factory=list)
    answers: list[Told] = field(default_factory=list)
    left: bool = False


@dataclass(frozen=True)
class Sizes:
    """What requests are drawn from. pool: different requests that there are; each may come many times."""

    vocabulary: int
    longest_prompt: int
    longest_answer: int
    pool: int
    rate: float
    """Requests a second of each client, while it waits for nothing."""
    classes: Sequence[str] = ("portable", "portable", "request", "batch", "best-effort")


def draw_pool(seed: int, sizes: Sizes) -> list[Draw]:
    """The requests of a soak, without their timing."""
    rng = random.Random(seed)
    common = [rng.randrange(3, sizes.vocabulary) for _ in range(sizes.longest_prompt)]
    return [_draw(rng, sizes, common, number) for number in range(sizes.pool)]


def _draw(rng: random.Random, sizes: Sizes, common: list[int], number: int) -> Draw:
    sampled = rng.random() < 0.6
    body: dict[str, Any] = {
        "determinism": rng.choice(sizes.classes),
        "max_tokens": rng.choice([1, 2, sizes.longest_answer // 4, sizes.longest_answer // 2, sizes.longest_answer]),
        "temperature": rng.choice([0.5, 1.0, 1.5]) if sampled else 0.0,
        "top_k": rng.choice([0, 0, 20]),
        "top_p": rng.choice([1.0, 0.9]),
        "repetition_penalty": rng.choice([1.0, 1.0, 1.0, 1.1]),
        "presence_penalty": rng.choice([0.0, 0.0, 0.0, 0.5]),
        "n": rng.choice([1, 1, 1, 1, 3]) if sampled else 1,
        "ignore_eos": rng.random() < 0.8,
        "stop": rng.choice([None, None, None, ["zq", " the"]]),
        "stream": rng.random() < 0.5,
    }
    shows_ids = rng.random() < 0.7  # without them streams go through other code
    if shows_ids:
        body["return_token_ids"] = True
    if rng.random() < 0.8:  # the others get a seed from the server, which their receipts hold
        body["seed"] = rng.getrandbits(63)
    if rng.random() < 0.1:
        body["cache_salt"] = f"salt {rng.randrange(2)}"
    if rng.random() < 0.4:
        words = " ".join(rng.choice(WORDS) for _ in range(rng.randrange(1, 8)))
        asked = [{"role": "user", "content": f"{words} {number}"}]
        messages = ([{"role": "system", "content": SYSTEM}] if rng.random() < 0.6 else []) + asked
        return Draw("/v1/chat/completions", body | {"messages": messages, "logprobs": shows_ids}, 0.0)
    longest = sizes.longest_prompt
    shared = rng.choice([0, 0, 15, 16, 17, 32, longest // 2, longest - 8])
    own = [rng.randrange(3, sizes.vocabulary) for _ in range(rng.choice([1, 2, 7, max(1, min(40, longest - shared))]))]
    logprobs = {"logprobs": 0} if shows_ids else {}
    return Draw("/v1/completions", body | {"prompt": [*common[:shared], *own]} | logprobs, 0.0)


class Soak:
    """Runs the clients. `asked` grows while they run."""

    def __init__(self, url: str, pool: Sequence[Draw], sizes: Sizes, clients: int, seed: int) -> None:
        self.asked: list[Asked] = []
        self.errors: list[str] = []
        self._url, self._pool, self._sizes, self._clients, self._seed = url, pool, sizes, clients, seed

    async def run(self, seconds: float) -> None:
        """New requests come for so long; those that are under way come to their end."""
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=self._clients)
        async with httpx.AsyncClient(base_url=self._url, timeout=300.0, limits=limits) as http:
            end = asyncio.get_running_loop().time() + seconds
            clients = (self._client(http, random.Random(f"{self._seed}/{i}"), end) for i in range(self._clients))
            await asyncio.gather(*clients)

    async def _client(self, http: httpx.AsyncClient, rng: random.Random, end: float) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            draw = self._timed(rng)
            if clock() + draw.wait >= end:
                return
            await asyncio.sleep(draw.wait)
            asked = Asked(draw)
            self.asked.append(asked)
            try:
                await ask(http, asked)
            except (httpx.HTTPError, AssertionError, KeyError) as error:
                self.errors.append(f"{type(error).__name__}: {error} for {draw.path} {draw.body}"[:600])

    def _timed(self, rng: random.Random) -> Draw:
        draw = rng.choice(self._pool)
        leaves = rng.randrange(12) if rng.random() < 0.15 else None
        pause = 0.02 if rng.random() < 0.1 else 0.0
        return Draw(draw.path, draw.body, rng.expovariate(self._sizes.rate), leaves, pause)


async def ask(http: httpx.AsyncClient, asked: Asked) -> None:
    """Raises httpx.HTTPError, AssertionError for an answer of another status or shape."""
    draw = asked.draw
    if draw.body["stream"]:
        async with http.stream("POST", draw.path, json=draw.body) as response:
            assert response.status_code == 200, f"{response.status_code} {(await response.aread()).decode()}"
            await _read_stream(asked, response)
        return
    try:
        async with asyncio.timeout(None if draw.leave_after is None else 0.001 + draw.leave_after / 1000):
            response = await http.post(draw.path, json=draw.body)
    except TimeoutError:
        asked.left = True
        return
    assert response.status_code == 200, f"{response.status_code} {response.text}"
    whole = response.json()
    asked.prompt = whole.get("prompt_token_ids") or whole["choices"][0].get("prompt_token_ids") or []
    _check_class(draw, whole["determinism"])
    for choice in whole["choices"]:
        told = Told(receipt=choice.get("receipt", whole["determinism"]["receipt"]))
        _add(told, choice)
        asked.answers.append(told)


async def _read_stream(asked: Asked, response: httpx.Response) -> None:
    told = [Told() for _ in range(asked.draw.body["n"])]
    count = 0
    async with aclosing(events(response)) as heard:
        async for event in heard:
            count += 1
            if asked.draw.leave_after is not None and count > asked.draw.leave_after:
                asked.left = True
                return
            if event == "[DONE]":
                asked.answers = told
                return
            assert "error" not in event, event
            asked.prompt = event.get("prompt_token_ids") or asked.prompt
            for choice in event["choices"]:
                asked.prompt = choice.get("prompt_token_ids") or asked.prompt
                mine = told[choice["index"]]
                _add(mine, choice)
                if choice["finish_reason"] is not None:
                    _check_class(asked.draw, event["determinism"])
                    mine.receipt = event["determinism"]["receipt"]
            if asked.draw.pause:
                await asyncio.sleep(asked.draw.pause)
    raise AssertionError("the stream ended without [DONE]")


async def events(response: httpx.Response) -> AsyncIterator[Any]:
    """The data of each event, parsed; "[DONE]" as it is."""
    async for line in response.aiter_lines():
        if line.startswith("data: "):
            data = line.removeprefix("data: ")
            yield data if data == "[DONE]" else json.loads(data)


def _add(told: Told, choice: dict[str, Any]) -> None:
    """A choice of a whole answer, or of a chunk."""
    part = choice.get("message") or choice.get("delta") or {}
    told.text += part.get("content") or choice.get("text") or ""
    told.ids += choice.get("token_ids") or []
    told.logprobs += map(bits, logprobs_of(choice))
    told.finish_reason = choice["finish_reason"] or told.finish_reason


def logprobs_of(choice: dict[str, Any]) -> list[float]:
    found = choice.get("logprobs")
    if found is None:
        return []
    if "content" in found:
        return [entry["logprob"] for entry in found["content"]]
    logprobs: list[float] = found["token_logprobs"]
    return logprobs


def bits(value: float) -> int:
    """Of an f32; the value must be one."""
    (found,) = struct.unpack("<I", struct.pack("<f", value))
    assert struct.unpack("<f", struct.pack("<f", value))[0] == value, f"{value!r} is no f32"
    return int(found)


def _check_class(draw: Draw, determinism: dict[str, Any]) -> None:
    """Never a weaker class than the one that was asked for."""
    assert parse_class(determinism["class"]).satisfies(parse_class(draw.body["determinism"])), determinism


_OPTIONS = (
    "temperature",
    "top_k",
    "top_p",
    "repetition_penalty",
    "presence_penalty",
    "ignore_eos",
    "stop",
    "max_tokens",
)


class Judge:
    """Compares answers with those that a model gives alone in this process, bit by bit.

    receipts: by id, as the server tells them; all answers have one, and its bits are compared too.
    """

    def __init__(self, loaded: LoadedModel, receipts: Mapping[str, Any]) -> None:
        self._loaded, self._alone, self._receipts = loaded, Alone(loaded), receipts
        self.compared = 0

    def differences(self, asked: Iterable[Asked]) -> list[str]:
        return [
            f"{item.draw.path} {item.draw.body} answer {index}: {what}"
            for item in asked
            for index, told in enumerate(item.answers)
            for what in self._wrong(item, index, told)
        ]

    def _wrong(self, asked: Asked, index: int, told: Told) -> list[str]:
        body, receipt = asked.draw.body, self._receipts[str(told.receipt)]
        used = int(receipt["sampling"]["seed"])
        if "seed" in body and used != (body["seed"] + index) % (1 << 64):
            return [f"the seed was {used}"]
        prompt = body.get("prompt") or self._loaded.tokenizer.encode_chat(body["messages"])
        params = SamplingParams(seed=used, **{name: body[name] for name in _OPTIONS})
        ((ids, logprobs, lses, text, _, finish_reason, _, _),), _ = self._alone(tuple(prompt), params)
        right = {
            "text": (told.text, text),
            "finish reason": (told.finish_reason, finish_reason),
            "prompt of the receipt": (receipt["prompt_token_ids"], prompt),
            "ids of the receipt": (receipt["answer"]["token_ids"], list(ids)),
            "logprobs of the receipt": (_parsed(receipt["answer"]["logprob_bits"]), _words(logprobs)),
            "lses of the receipt": (_parsed(receipt["answer"]["lse_bits"]), _words(lses)),
        }
        if body.get("return_token_ids"):
            right |= {
                "prompt": (asked.prompt, prompt),
                "ids": (told.ids, list(ids)),
                "logprobs": (told.logprobs, _words(logprobs)),
            }
        self.compared += 1
        return [f"{what} {was}, alone {alone}" for what, (was, alone) in right.items() if was != alone]


def _parsed(digits: Sequence[str]) -> list[int]:
    return [int(text, 16) for text in digits]


def _words(data: bytes) -> list[int]:
    return [int(word) for word in np.frombuffer(data, np.uint32)]


async def fetch_receipts(url: str, asked: Iterable[Asked]) -> dict[str, Any]:
    """The receipts of all answers, by id."""
    found: dict[str, Any] = {}
    async with httpx.AsyncClient(base_url=url, timeout=60.0) as http:
        for receipt_id in (str(told.receipt) for item in asked for told in item.answers):
            response = await http.get(f"/v1/receipts/{receipt_id}")
            assert response.status_code == 200, response.text
            found[receipt_id] = response.json()["receipt"]
    return found


async def watch(url: str, work: Coroutine[Any, Any, None]) -> int:
    """Awaits the work; the largest batch of an engine that was seen meanwhile."""
    largest = 0
    task = asyncio.ensure_future(work)
    async with httpx.AsyncClient(base_url=url, timeout=60.0) as http:
        while not (await asyncio.wait({task}, timeout=0.05))[0]:
            for line in (await http.get("/metrics")).text.splitlines():
                if line.startswith("queueproof_num_requests_running{"):
                    largest = max(largest, int(float(line.rsplit(" ", 1)[1])))
    await task
    return largest
