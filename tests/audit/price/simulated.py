"""A server of known speed, for measurements on a clock that jumps: its price, drift and noise are what a test says."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from queueproof.audit.ask import Answer, Ask, Cold, Prompt
from queueproof.audit.endpoint import Counters, Endpoint, Trouble
from queueproof.audit.price.records import Run, Side
from queueproof.audit.records import Problem

STEP, PREFILL = 0.01, 0.02  # seconds for a token, and for a prompt, alone


@dataclass
class Server:
    """An endpoint and the place where it is. slower: factor of all times, by the users there are, and by the clock.
    noise: standard deviation of a factor that each answer has, normal. fails: the numbers of the requests that do."""

    slower: Callable[[int, float], float] = lambda users, now: 1.0
    noise: float = 0.0
    cold_by: Cold | None = Cold.SALT
    fails: Callable[[int], bool] = lambda number: False
    length: int | None = None  # of answers, whatever is asked for
    pieces: bool = True
    starts: float | None = None  # seconds of a start; None: it runs already
    name: str = "m"
    asked: list[Ask] = field(default_factory=list)
    forgot: int = 0
    visits: int = 0
    block_size: int | None = None
    abilities: frozenset[str] = frozenset()
    _running: int = 0
    _random: random.Random = field(default_factory=lambda: random.Random(3))

    async def ask(self, ask: Ask) -> Answer:
        self.asked.append(ask)
        if self.fails(len(self.asked)):
            raise Trouble("500", "it said 500")
        loop = asyncio.get_running_loop()
        started = loop.time()
        self._running += 1
        await asyncio.sleep(0)  # so that all who ask at once are counted
        factor = self.slower(self._running, started) * max(0.2, self._random.gauss(1.0, self.noise))
        count = self.length or ask.max_tokens
        await asyncio.sleep((PREFILL + STEP) * factor)
        first = loop.time()
        await asyncio.sleep(STEP * factor * (count - 1))
        self._running -= 1
        now = loop.time()
        arrivals = (first, now) if self.pieces else ()
        ttft = first - started if self.pieces else None
        return Answer(
            ask.prompt.key, "x" * count, "length", started, now - started,
            prompt_tokens=70, completion_tokens=count, ttft=ttft, arrivals=arrivals,
        )  # fmt: skip

    async def forget(self) -> bool:
        self.forgot += 1
        return True

    async def counters(self) -> Counters | None:
        return None

    async def count(self, prompt: Prompt) -> int | None:
        return None

    @property
    def fresh(self) -> bool:
        return self.starts is not None

    @asynccontextmanager
    async def visit(self) -> AsyncIterator[Endpoint]:
        self.visits += 1
        await asyncio.sleep(self.starts or 0)
        yield self

    def side(self) -> Side:
        return Side("http://simulated", self.name, "vllm", str(self.cold_by), "1")

    def problems(self) -> tuple[Problem, ...]:
        return (Problem("500", 1, self.name),) if any(self.fails(i + 1) for i in range(len(self.asked))) else ()


@dataclass
class Diary:
    """A watcher that remembers."""

    stages: list[str] = field(default_factory=list)
    plans: list[tuple[int, int, float]] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)

    def stage(self, text: str) -> None:
        self.stages.append(text)

    def planned(self, rounds: int, runs: int, seconds: float) -> None:
        self.plans.append((rounds, runs, seconds))

    def ran(self, run: Run) -> None:
        self.runs.append(run)
