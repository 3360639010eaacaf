"""One server of the zoo: a continuous batcher on the event loop's clock, with a prefix cache and chunked prefills.

Each step computes the next tokens of all that run, and pieces of prompts within a budget of tokens. What a step computes
depends on nothing but the request, unless a fault says so.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from dataclasses import dataclass, field

from tests.support.zoo.faults import Faults
from tests.support.zoo.model import Step, after, moved, sampled

LONG = 128  # tokens of a prompt, or of a piece of it, that count as long


@dataclass(frozen=True, slots=True)
class Pace:
    """Times in seconds. burst: tokens that a step writes. budget: tokens of a step, of prompts and answers together.

    slots: requests that run at once; the others wait.
    """

    step: float = 0.012
    prompt_token: float = 1e-4
    running: float = 1e-4
    burst: int = 4
    budget: int = 256
    slots: int = 64
    block: int = 16


@dataclass(slots=True, eq=False)
class Work:
    """A request inside. cached: may take from the prefix cache. forced: goes on to its limit.

    fixed: the key of all its steps, see `model.moved`. ends: where the pieces of its prompt ended. pieces: of its answer,
    each a list of what was computed and which candidate was taken. gone: nobody waits for it any more.
    """

    ids: tuple[int, ...]
    limit: int
    temperature: float
    seed: int | None
    salt: str | None
    cached: bool
    logprobs: bool
    stream: bool
    forced: bool
    number: int = 0
    start: int = 0
    state: int = 0
    hit: int = 0
    computed: int = 0
    ends: list[int] = field(default_factory=list)
    slot: int = 0
    fixed: int = 0
    made: int = 0
    finish: str | None = None
    pieces: deque[list[tuple[Step, int]]] = field(default_factory=deque)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    gone: bool = False


class Engine:
    """weights: what the start of all states is. rng: for what is random, faults alone."""

    def __init__(self, weights: int, faults: Faults, pace: Pace, rng: random.Random) -> None:
        self.weights, self._faults, self.pace, self._rng = weights, faults, pace, rng
        self._waiting: deque[Work] = deque()
        self._running: list[Work] = []
        self._known: set[tuple[str | None, int]] = set()
        self._sizes: dict[int, int] = {}
        self._task: asyncio.Task[None] | None = None
        self._slots: list[int] = list(range(pace.slots))
        self.queried = self.hits = self.prompt_tokens = 0
        self.steps = 0
        self.most = 0  # that ran at once, ever

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def forget(self) -> None:
        self._known.clear()

    def put(self, work: Work) -> None:
        self._waiting.append(work)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        await asyncio.sleep(0)  # those that were sent at one moment begin together
        while self._waiting or self._running:
            self._admit()
            pieces = self._cut()
            seconds = self.pace.step + self.pace.running * len(self._running)
            await asyncio.sleep(seconds + self.pace.prompt_token * sum(pieces.values()))
            self._step(pieces)

    # Before a step

    def _admit(self) -> None:
        while self._waiting and self._slots:
            work = self._waiting.popleft()
            if work.gone:
                continue
            work.slot = self._slots.pop(0)
            work.start = work.state = self.weights
            self._look_up(work)
            work.fixed = self._fixed(work)
            self._running.append(work)
        self.most = max(self.most, len(self._running))

    def _look_up(self, work: Work) -> None:
        """Takes what the cache has, whole blocks, but not the last token; puts in what this one will leave."""
        block, hit, state = self.pace.block, 0, self.weights
        self.prompt_tokens += len(work.ids)
        self.queried += len(work.ids) if work.cached else 0
        fresh = []
        for end in range(block, len(work.ids) + 1, block):
            state = after(work.ids[end - block : end], state)
            if (work.salt, state) in self._known:
                if work.cached and hit == end - block and end < len(work.ids):
                    hit = end
            else:
                fresh.append((work.salt, state))
        self._known.update(fresh)
        work.hit = work.computed = hit
        self.hits += hit

    def _fixed(self, work: Work) -> int:
        faults, key = self._faults, 0
        if faults.cache and work.hit:
            key = 3
        if faults.boundary and work.hit and self._offset(len(work.ids)) in faults.boundary:
            key = 5
        if faults.logprobs and work.logprobs:
            key ^= 1 << 8
        if faults.whole and not work.stream:
            key ^= 1 << 9
        if work.number < faults.first_asks:
            key ^= 1 << 10
        if faults.unstable and self._rng.random() < faults.unstable:
            key ^= self._rng.getrandbits(30) << 11
        if faults.order and work.slot:
            key ^= work.slot << 42
        return key

    def _offset(self, length: int) -> int:
        """From the nearest boundary: -1, 0, 1 and so on."""
        half = self.pace.block // 2
        return (length + half) % self.pace.block - half

    def _cut(self) -> dict[int, int]:
        """How many tokens of each prompt this step computes, by the index of the request. Short prompts are not cut."""
        left = self.pace.budget - sum(1 for work in self._running if work.computed == len(work.ids))
        pieces: dict[int, int] = {}
        for i, work in enumerate(self._running):
            todo = len(work.ids) - work.computed
            if not todo or left <= 0:
                continue
            piece = min(todo, left)
            if piece < todo and len(work.ids) < LONG and left < self.pace.budget // 2:
                continue
            pieces[i] = piece
            left -= piece
        return pieces

    # A step

    def _step(self, pieces: dict[int, int]) -> None:
        self.steps += 1
        count = len(pieces) + sum(1 for work in self._running if work.computed == len(work.ids))
        shared = self._shared(count, pieces)
        for i, work in enumerate(self._running):
            if work.gone:
                continue
            if i in pieces:
                work.computed += pieces[i]
                work.ends.append(work.computed)
                if work.computed < len(work.ids):
                    continue
                work.state = after(work.ids, work.start)
                if self._faults.split and not self._cut_as_alone(work):
                    work.fixed ^= 1 << 50
                self._write(work, 1, shared, count)
            elif work.computed == len(work.ids):
                self._write(work, self.pace.burst, shared, count)
        for work in self._running:
            if work.finish is not None or work.gone:
                self._slots.append(work.slot)
        self._slots.sort()
        self._running = [work for work in self._running if work.finish is None and not work.gone]

    def _shared(self, count: int, pieces: dict[int, int]) -> int:
        """The key that all of a step share."""
        faults, key = self._faults, 0
        if faults.batch_from and count >= faults.batch_from:
            key ^= count << 51
        if faults.mixed and count > 1 and any(size >= LONG for size in pieces.values()):
            key ^= 1 << 58
        if faults.first_crowds and count > 1:
            size = (count - 1).bit_length()
            met = sum(steps for known, steps in self._sizes.items() if known >= size)
            self._sizes[size] = self._sizes.get(size, 0) + 1
            key ^= (met < faults.first_crowds) << 59
        return key

    def _cut_as_alone(self, work: Work) -> bool:
        alone = [*range(work.hit + self.pace.budget, len(work.ids), self.pace.budget), len(work.ids)]
        return work.ends == alone

    def _write(self, work: Work, count: int, shared: int, together: int) -> None:
        piece = []
        faults, key = self._faults, work.fixed ^ shared
        for _ in range(count):
            found = moved(work.state, key, faults.scale)
            if found.ends and not work.forced and work.made > 1:
                work.finish = "stop"
                break
            chosen = self._choose(work, found, together)
            piece.append((found, chosen))
            work.state = after((found.ids[chosen],), work.state)
            work.made += 1
            if work.made >= work.limit:
                work.finish = "length"
                break
        work.pieces.append(piece)
        work.arrived.set()

    def _choose(self, work: Work, found: Step, together: int) -> int:
        faults = self._faults
        if work.temperature > 0:
            seed = work.seed
            if seed is None or faults.seed_ignored:
                seed = self._rng.getrandbits(32)
            if faults.seed_load and together > 1:
                seed += 7919 * together
            return sampled(found, work.temperature, seed, work.made)
        other = faults.sampler and together > 1 and work.made > 1 and (work.state * 2654435761 >> 7) % 24 == 0
        return int(other)
