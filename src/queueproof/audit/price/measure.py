"""Baseline, candidate, baseline, and so on: the turns of a price measurement, and its result."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from queueproof.audit.endpoint import Endpoint, Trouble
from queueproof.audit.price import load
from queueproof.audit.price.load import Load
from queueproof.audit.price.ratios import compare
from queueproof.audit.price.records import Plan, PriceResult, Role, Run, Side
from queueproof.audit.records import Problem
from queueproof.contract.errors import ServerError
from queueproof.version import __version__

LEAST_ROUNDS, MOST_ROUNDS = 2, 8  # where the time decides
TRIES = 2  # of a run, if a request meets trouble
_WARM_UP = -1  # the seed of its prompts


class Site(Protocol):
    """Where one of the two sides is asked."""

    @property
    def fresh(self) -> bool:
        """Each visit begins with a server that was just started, so each has a warm-up."""

    def visit(self) -> AbstractAsyncContextManager[Endpoint]:
        """The endpoint for a turn. Raises ServerError where it cannot be had."""

    def side(self) -> Side:
        """Who answers there, as far as it is known."""

    def problems(self) -> tuple[Problem, ...]:
        """The trouble there was, handled or not."""


class Watcher(Protocol):
    """Is told how a measurement goes on, for a screen."""

    def stage(self, text: str) -> None:
        """What is done now, such as `warming up the baseline`."""

    def planned(self, rounds: int, runs: int, seconds: float) -> None:
        """runs: that are counted, in all. seconds: that all of it will take from now on, about."""

    def ran(self, run: Run) -> None: ...


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be measured. rounds: None is as many as `seconds` are enough for, from LEAST_ROUNDS to MOST_ROUNDS,
    and one of servers that are started for it."""

    users: tuple[int, ...] = (1, 8, 32)
    seeds: tuple[int, ...] = (0, 1)
    rounds: int | None = None
    repeats: int = 1
    max_tokens: int = 48
    prompt_words: int = 64
    confidence: float = 0.95
    seconds: float = 240.0


class PriceFailed(ServerError):
    """An endpoint failed in the midst of it. result: what was measured until then."""

    code = "price"

    def __init__(self, message: str, result: PriceResult) -> None:
        super().__init__(message)
        self.result = result


async def measure(baseline: Site, candidate: Site, wish: Wish, watcher: Watcher) -> PriceResult:
    """Measures. Cancelled (Ctrl-C) after the first run, it returns what the whole rounds say, `interrupted`.

    Raises ServerError where a server does not start, or a run meets trouble twice; PriceFailed after the first run.
    """
    return await _Measurement(baseline, candidate, wish, watcher).run()


class _Measurement:
    def __init__(self, baseline: Site, candidate: Site, wish: Wish, watcher: Watcher) -> None:
        self._sites = {Role.BASELINE: baseline, Role.CANDIDATE: candidate}
        self._fresh = baseline.fresh or candidate.fresh
        self._wish, self._watcher = wish, watcher
        self._loop = asyncio.get_running_loop()
        self._began, self._started = self._loop.time(), datetime.now(UTC)
        self._runs: list[Run] = []
        self._rounds = wish.rounds or (1 if self._fresh else LEAST_ROUNDS)
        self._again = self._spoilt = 0  # runs made again, and those that met trouble even then

    async def run(self) -> PriceResult:
        try:
            if not self._fresh:
                await self._fit_rounds()
            for turn in range(2 * self._rounds + 1):
                await self._turn(Role.CANDIDATE if turn % 2 else Role.BASELINE, turn)
        except asyncio.CancelledError:
            if not self._runs:
                raise
            return self._result(interrupted=True)
        except ServerError as error:
            if not self._runs:
                raise
            raise PriceFailed(str(error), self._result(interrupted=True)) from error
        return self._result(interrupted=False)

    async def _fit_rounds(self) -> None:
        """Both stand ready: the warm-up of both tells for how many rounds there is time."""
        turns = []
        for role in Role:
            async with self._sites[role].visit() as endpoint:
                turns.append(await self._warm_up(role, endpoint) * self._runs_each())
        fitting = int((self._wish.seconds - turns[0]) / max(sum(turns), 1e-9))
        if self._wish.rounds is None and fitting < LEAST_ROUNDS:
            self._watcher.stage(f"{LEAST_ROUNDS} rounds are the least, and take longer than {self._wish.seconds:.0f} s")
        self._rounds = self._wish.rounds or min(MOST_ROUNDS, max(LEAST_ROUNDS, fitting))
        self._planned(self._rounds * sum(turns) + turns[0])

    async def _turn(self, role: Role, turn: int) -> None:
        name = f"{role.value}, turn {turn + 1} of {2 * self._rounds + 1}"
        began = self._loop.time()
        async with self._sites[role].visit() as endpoint:
            if self._fresh:
                seconds = await self._warm_up(role, endpoint) * self._runs_each()
                if turn == 0:
                    self._planned(seconds + 2 * self._rounds * (self._loop.time() - began + seconds))
            self._watcher.stage(name)
            for repeat in range(self._wish.repeats):
                for seed in self._wish.seeds:
                    for load_ in self._loads(seed):
                        run = await self._tried(endpoint, load_, role, turn, repeat)
                        self._runs.append(run)
                        self._watcher.ran(run)

    async def _warm_up(self, role: Role, endpoint: Endpoint) -> float:
        """A run at each number of users, not counted. Returns their seconds, together."""
        self._watcher.stage(f"warming up the {role.value}")
        began = self._loop.time()
        for load_ in self._loads(_WARM_UP):
            await self._tried(endpoint, load_, role, -1, 0)
        return self._loop.time() - began

    async def _tried(self, endpoint: Endpoint, load_: Load, role: Role, turn: int, repeat: int) -> Run:
        """A run in which no request met trouble: the time of one that did, or that was sent again, says little."""
        for left in reversed(range(TRIES)):
            before = self._trouble(role)
            try:
                run = await load.run(endpoint, load_, role, turn, repeat)
            except Trouble:
                if not left:
                    raise
            else:
                if self._trouble(role) == before:
                    return run
            if left:
                self._again += 1
        self._spoilt += 1
        return run

    def _trouble(self, role: Role) -> int:
        return sum(problem.count for problem in self._sites[role].problems())

    def _loads(self, seed: int) -> Iterator[Load]:
        for users in self._wish.users:
            yield Load(users, seed, self._wish.max_tokens, self._wish.prompt_words)

    def _runs_each(self) -> int:
        """Of a turn, at each number of users."""
        return len(self._wish.seeds) * self._wish.repeats

    def _planned(self, seconds: float) -> None:
        runs = (2 * self._rounds + 1) * self._runs_each() * len(self._wish.users)
        self._watcher.planned(self._rounds, runs, seconds)

    def _result(self, interrupted: bool) -> PriceResult:
        wish = self._wish
        sides = {role: site.side() for role, site in self._sites.items()}
        return PriceResult(
            tool=f"queueproof {__version__}",
            started=self._started.isoformat(timespec="seconds"),
            seconds=self._loop.time() - self._began,
            machine=f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
            baseline=sides[Role.BASELINE],
            candidate=sides[Role.CANDIDATE],
            plan=Plan(
                users=wish.users,
                seeds=wish.seeds,
                rounds=self._rounds,
                repeats=wish.repeats,
                max_tokens=wish.max_tokens,
                prompt_words=wish.prompt_words,
                confidence=wish.confidence,
            ),
            comparisons=compare(self._runs, wish.users, wish.confidence),
            runs=tuple(self._runs),
            interrupted=interrupted,
            notes=tuple(self._notes(sides, interrupted)),
            problems=_together(site.problems() for site in self._sites.values()),
        )

    def _notes(self, sides: dict[Role, Side], interrupted: bool) -> Iterator[str]:
        baseline, candidate = sides[Role.BASELINE], sides[Role.CANDIDATE]
        runs = self._runs
        if interrupted:
            yield f"ended early, after {len(runs)} runs: the rounds that are whole are compared"
        if "unknown" not in (baseline.model, candidate.model) and baseline.model != candidate.model:
            yield f"the baseline is the model {baseline.model}, the candidate {candidate.model}"
        if baseline.vendor != candidate.vendor or baseline.version != candidate.version:
            one, other = (f"{side.vendor} {side.version or 'of unknown version'}" for side in (baseline, candidate))
            yield f"the servers are not the same software: the baseline is {one}, the candidate {other}"
        short, requests = sum(run.short for run in runs), sum(run.requests for run in runs)
        if short:
            yield (
                f"{short} of {requests} answers ended before {self._wish.max_tokens} tokens: the server cannot be told to "
                "go on, so lengths are not equal; tokens/s counts those that came"
            )
        if any(run.ttft is None or run.tpot is None for run in runs):
            yield "answers came in one piece: TTFT and TPOT cannot be told"
        if self._again:
            yield f"{self._again} times a run met trouble and was made again"
        if self._spoilt:
            yield f"{self._spoilt} runs met trouble again, of a kind that the client mends: their times hold the wait"
        if self._fresh and self._rounds == 1:
            yield (
                "one round: how much one start of the server differs from another is known from two starts of the "
                "baseline only; --rounds 2 or more says more"
            )


def _together(several: Iterator[tuple[Problem, ...]]) -> tuple[Problem, ...]:
    """Counts of one kind are added; the first example stays."""
    found: dict[str, Problem] = {}
    for problem in (problem for problems in several for problem in problems):
        known = found.get(problem.kind)
        count = problem.count + (known.count if known else 0)
        found[problem.kind] = Problem(problem.kind, count, known.example if known else problem.example)
    return tuple(found.values())
