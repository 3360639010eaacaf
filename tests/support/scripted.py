"""An endpoint without HTTP: a deterministic word machine with a prefix cache, which lacks or spoils what a test says.

A token is a word. The next token and its log-probability are functions of all token ids before it, as in a model, so that
a prompt that holds an answer has the answer's log-probabilities. Times are reckoned, nothing sleeps.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from queueproof.audit.ask import Answer, Ask, Cache, Cold, Prompt
from queueproof.audit.book import Book
from queueproof.audit.client.abilities import Ability
from queueproof.audit.endpoint import Counters, Trouble
from queueproof.audit.lab import Lab, Settings
from queueproof.audit.probes.base import Probe
from queueproof.audit.records import ProbeResult

TEMPLATE = (7, 7, 7, 7, 7)  # ids around a message


class Moment(NamedTuple):
    """What a fault may look at. number: of the request, from 0; hit: tokens from the cache; length: of the prompt."""

    ask: Ask
    number: int
    hit: int
    length: int
    running: int


def never(moment: Moment) -> int:
    return 0


@dataclass(slots=True)
class Scripted:
    """fault: changes the answer from its third token on where it is not 0. trouble: raised where it gives one.

    offered: its abilities. lacks: names of fields of Answer that stay None. metrics: whether counters are offered; counts: whether prompts are
    counted. seeded: a seed decides. two_tokens: words that are two tokens. extra_prompt_token: log-probabilities of a
    prompt have one more.
    """

    cold_by: Cold | None = Cold.SALT
    block_size: int | None = 16
    offered: frozenset[str] = frozenset(Ability) - {Ability.TOKENIZE}
    caching: bool = True
    lacks: frozenset[str] = frozenset()
    metrics: bool = False
    counts: bool = False
    seeded: bool = True
    greedy_only: bool = False
    one_at_a_time: bool = False
    extra_prompt_token: bool = False
    two_tokens: frozenset[str] = frozenset()
    step: float = 0.01
    per_token: float = 0.001
    fault: Callable[[Moment], int] = never
    trouble: Callable[[Ask], Trouble | None] = lambda ask: None
    fingerprint: Callable[[int], str] = lambda number: "build-1"
    asks: list[Ask] = field(default_factory=list)
    _known: set[tuple[object, ...]] = field(default_factory=set)
    _running: int = 0
    _hits: int = 0

    @property
    def abilities(self) -> frozenset[str]:
        return self.offered | {Ability.TOKENIZE} if self.counts else self.offered

    async def ask(self, ask: Ask) -> Answer:
        trouble = self.trouble(ask)
        if trouble is not None:
            raise trouble
        number = len(self.asks)
        self.asks.append(ask)
        self._running += 1
        try:
            await asyncio.sleep(0)
            return self._answer(ask, number)
        finally:
            await asyncio.sleep(0)
            self._running -= 1

    async def forget(self) -> bool:
        self._known.clear()
        return self.cold_by is Cold.RESET

    async def counters(self) -> Counters | None:
        return Counters(running=float(self._running), cache_hit_tokens=float(self._hits)) if self.metrics else None

    async def count(self, prompt: Prompt) -> int | None:
        if not self.counts:
            raise AssertionError("counted where a count is a request, which warms the cache")
        return len(self._ids(prompt))

    def _answer(self, ask: Ask, number: int) -> Answer:
        ids = self._ids(ask.prompt)
        hit = self._hit(ask, ids, number)
        self._hits += hit
        fault = self.fault(Moment(ask, number, hit, len(ids), self._running))
        state = 0
        prompt_logprobs: list[float | None] = []
        for i in ids:
            prompt_logprobs.append(_logprob(state, i))
            state = _next(state, i)
        prompt_logprobs[0] = None
        prompt_logprobs += [-1.0] * self.extra_prompt_token
        sampled = ask.temperature > 0 and not self.greedy_only
        seed = (ask.seed if self.seeded else number) if sampled else 0
        made: list[int] = []
        logprobs: list[float] = []
        for i in range(ask.max_tokens):
            made.append((state + (seed or 0) * 31 + (fault if i >= 2 else 0)) % 1000)
            logprobs.append(_logprob(state, made[-1]) - (fault if i >= 2 else 0) / 1024)
            state = _next(state, made[-1])
        now = asyncio.get_running_loop().time() + (number * 10.0 if self.one_at_a_time else 0.0)
        first = now + self.per_token * (len(ids) - hit) + self.step
        arrivals = tuple(first + i * self.step for i in range(len(made))) if ask.stream else ()
        answer = Answer(
            ask.prompt.key,
            " ".join(f"w{i}" for i in made),
            "length",
            now,
            first + len(made) * self.step - now,
            ids=tuple(made),
            tokens=tuple(f" w{i}" for i in made) if ask.logprobs else None,
            logprobs=tuple(logprobs) if ask.logprobs else None,
            margins=(0.5,) * len(made) if ask.logprobs else None,
            prompt_ids=ids,
            prompt_logprobs=tuple(prompt_logprobs) if ask.prompt_logprobs else None,
            prompt_tokens=len(ids),
            completion_tokens=len(made),
            cached_tokens=hit,
            ttft=arrivals[0] - now if arrivals else None,
            arrivals=arrivals,
            fingerprint=self.fingerprint(number),
            model="words",
        )
        empty = {name: () if name == "arrivals" else None for name in self.lacks}
        return replace(answer, **empty)  # type: ignore[arg-type]

    def _hit(self, ask: Ask, ids: tuple[int, ...], number: int) -> int:
        if not self.caching:
            return 0
        name: object = ""
        if self.cold_by is Cold.SALT:
            name = number if ask.cache is Cache.COLD else ask.namespace
        size = self.block_size or 16
        hit = 0
        if not (self.cold_by is Cold.FIELD and ask.cache is Cache.COLD):
            while hit + size < len(ids) and (name, ids[: hit + size]) in self._known:
                hit += size
        self._known |= {(name, ids[:end]) for end in range(size, len(ids) + 1, size)}
        return hit

    def _ids(self, prompt: Prompt) -> tuple[int, ...]:
        if prompt.ids is not None:
            return prompt.ids
        if prompt.text is not None:
            return self._words(prompt.text)
        return tuple(i for _, content in prompt.messages or () for i in (*TEMPLATE, *self._words(content)))

    def _words(self, text: str) -> tuple[int, ...]:
        ids: list[int] = []
        for word in text.split():
            ids += [1000 + zlib.crc32(word.encode()) % 50_000] * (2 if word in self.two_tokens else 1)
        return tuple(ids)


def _next(state: int, token: int) -> int:
    return zlib.crc32(token.to_bytes(4, "little"), state)


def _logprob(state: int, token: int) -> float:
    return -((state ^ token) % 1024) / 256


def chat(count: int, words: int = 30) -> list[Prompt]:
    """That many prompts of a chat, of that many words."""
    return [Prompt(f"p{i}", "chat", (("user", " ".join(f"{i}-{j}" for j in range(words))),)) for i in range(count)]


def result(
    probe: Probe, endpoint: Scripted, prompts: list[Prompt] | None = None, users: int = 8, rounds: int = 1
) -> ProbeResult:
    """What the probe finds."""

    async def run() -> ProbeResult:
        lab = Lab(endpoint, prompts or chat(10), Settings(max_tokens=6, users=users))
        book = Book(probe.name, probe.question, probe.axis, probe.needs_witness)
        for _ in range(rounds):
            await probe.run(lab, book)
        return book.close(1.0, lab.requests, lab.tokens, False)

    return asyncio.run(run())
