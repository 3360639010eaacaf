"""Where probes work: asks one request alone or many together, and sees what the server did meanwhile."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

from queueproof.audit.ask import Answer, Ask, Cache, Cold, Prompt
from queueproof.audit.book import Book
from queueproof.audit.client.trouble import Kind
from queueproof.audit.endpoint import BudgetSpent, Counters, Endpoint, Trouble

_SAMPLE_SECONDS = 0.15  # between two looks at the server's counters
_LONGEST_REST = 10.0  # seconds; a server that is busy for longer has work of others
_BLIND_REST = 5.0  # where it does not say whether it is busy


@dataclass(frozen=True, slots=True)
class Settings:
    """users: the most at once. levels: the numbers of users that are tried, ascending, the last is `users`."""

    max_tokens: int = 32
    users: int = 24
    levels: tuple[int, ...] = (2, 8, 24)
    seed: int = 0
    confidence: float = 0.95


class Crowd(NamedTuple):
    """Many asked together: answers in the order of the asks, None where one did not come.

    shared: the most answers that were written side by side at one moment, by the arrival of their pieces; 0 where nothing
    was streamed. running: the most that the server said it was running at once. before, after: its counters.
    """

    answers: tuple[Answer | None, ...]
    shared: int
    running: float | None
    before: Counters | None
    after: Counters | None


class Lab:
    """answered: is told of every answer, with the role that it had.

    References are the answers of prompts asked alone, on a cold cache where there can be one: each is asked once.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        prompts: Sequence[Prompt],
        settings: Settings,
        answered: Callable[[Answer, Ask, str], None] = lambda answer, ask, role: None,
    ) -> None:
        self.endpoint, self.prompts, self.settings = endpoint, prompts, settings
        self.rng = random.Random(settings.seed)
        self.requests = self.tokens = 0  # answered so far
        self._answered = answered
        self._references: dict[Ask, Answer] = {}
        self._left_behind = False  # a request that nobody waits for, and that the server may still work on
        self._slowest = 0.0  # seconds of an answer

    def greedy(self, prompt: Prompt) -> Ask:
        """The plain request: greedy, streamed, with log-probabilities, cold."""
        return Ask(prompt, self.settings.max_tokens, cache=self.cold)

    @property
    def cold(self) -> Cache:
        """COLD where the endpoint can forget for each request; else FREE, and what it did is in `cached_tokens`."""
        can = self.endpoint.cold_by in (Cold.SALT, Cold.FIELD, Cold.RESET)
        return Cache.COLD if can else Cache.FREE

    async def ask(self, ask: Ask, role: str, book: Book) -> Answer | None:
        """One request. None if it met trouble, which is in the book then."""
        try:
            answer = await self.endpoint.ask(ask)
        except Trouble as trouble:
            self._left_behind |= trouble.kind == Kind.TIMEOUT
            book.problem(trouble.kind, str(trouble))
            return None
        except asyncio.CancelledError:
            self._left_behind = True
            raise
        self.requests += 1
        self._slowest = max(self._slowest, answer.latency)
        self.tokens += (answer.prompt_tokens or 0) + (answer.completion_tokens or 0)
        self._answered(answer, ask, role)
        return answer

    async def alone(self, ask: Ask, role: str, book: Book) -> Answer | None:
        """One request while nothing else of this audit runs."""
        await self.rest()
        if ask.cache is Cache.COLD and self.endpoint.cold_by is Cold.RESET:
            await self.endpoint.forget()
        return await self.ask(ask, role, book)

    async def reference(self, ask: Ask, book: Book) -> Answer | None:
        """The answer of that request asked alone: of this run's first time, for the same ask."""
        if ask not in self._references:
            answer = await self.alone(ask, "reference", book)
            if answer is None:
                return None
            self._references[ask] = answer
        return self._references[ask]

    def remember(self, ask: Ask, answer: Answer) -> None:
        """Takes an answer of an earlier part of this run as the reference of that ask."""
        self._references[ask] = answer

    def beside(self, endpoint: Endpoint) -> Lab:
        """A lab for another endpoint in the same run. What is asked there is not in this one's counts."""
        return Lab(endpoint, self.prompts, self.settings, self._answered)

    async def crowd(
        self,
        asks: Sequence[Ask],
        role: str,
        book: Book,
        delays: Sequence[float] | None = None,
        limit: int | None = None,
    ) -> Crowd:
        """All asks together. delays: seconds after the start at which each is sent; limit: the most under way at once."""
        await self.rest()
        if any(ask.cache is Cache.COLD for ask in asks) and self.endpoint.cold_by is Cold.RESET:
            await self.endpoint.forget()
        gate = asyncio.Semaphore(limit or len(asks))
        before = await self.endpoint.counters()
        samples: list[float] = []

        async def one(i: int, ask: Ask) -> Answer | None:
            if delays is not None:
                await asyncio.sleep(delays[i])
            async with gate:
                try:
                    return await self.ask(ask, role, book)
                except BudgetSpent:  # those under way are of use; the next request of the probe ends it
                    return None

        watch = asyncio.create_task(self._watch(samples)) if before is not None and before.running is not None else None
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(i, ask)) for i, ask in enumerate(asks)]
        finally:
            if watch is not None:
                watch.cancel()
                with suppress(asyncio.CancelledError):
                    await watch
        answers = tuple(task.result() for task in tasks)
        after = await self.endpoint.counters() if before is not None else None
        return Crowd(answers, shared(answers), max(samples, default=None), before, after)

    async def rest(self) -> None:
        """Lets the server end what was cut off: it would be the company of what is asked next."""
        if not self._left_behind:
            return
        loop = asyncio.get_running_loop()
        until = loop.time() + _LONGEST_REST
        now = await self.endpoint.counters()
        if now is None or now.running is None:
            await asyncio.sleep(min(_BLIND_REST, self._slowest))
        while now is not None and (now.running or now.waiting) and loop.time() < until:
            await asyncio.sleep(_SAMPLE_SECONDS)
            now = await self.endpoint.counters()
        self._left_behind = False

    async def _watch(self, samples: list[float]) -> None:
        while True:
            now = await self.endpoint.counters()
            if now is not None and now.running is not None:
                samples.append(now.running)
            await asyncio.sleep(_SAMPLE_SECONDS)


def shared(answers: Sequence[Answer | None]) -> int:
    """The most answers that were being written at one moment: each had pieces before and after it.

    0 where no answer came in at least two pieces at different times.
    """
    spans = [(a.arrivals[0], a.arrivals[-1]) for a in answers if a is not None and len(a.arrivals) > 1]
    events = sorted([(start, 1) for start, end in spans if end > start] + [(e, -1) for s, e in spans if e > s])
    most = now = 0
    for _, step in events:
        now += step
        most = max(most, now)
    return most


def warm(ask: Ask, namespace: str) -> Ask:
    """The same request on what earlier asks of that namespace left in the cache."""
    return replace(ask, cache=Cache.WARM, namespace=namespace)
