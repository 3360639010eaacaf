"""Who shares the running batch over time, and how fast it goes: what the live page draws.

Samples are kept in rings of fixed length and sent to whoever listens. A request appears under a label that only its owner
can connect with it: a short hash of the random id of its answer. No prompt, text or id is in here.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import statistics
import time
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from queueproof.server.extension import GenerationRecord
from queueproof.server.jsonio import dumps
from queueproof.server.metrics import kv_usage, time_per_token
from queueproof.server.protocol import Load, ServedEngine

PERIOD = 0.1
"""Seconds between two samples, at most: a change of the batch is seen earlier, as tokens arrive."""
SHORTEST = 0.02
MAX_MEMBERS = 64
"""Rows of one sample; of a larger batch the number of the others is kept."""
SAMPLES, SECONDS, ENDED = 600, 120, 128
MAX_LANES, MAX_LEFT = 16384, 1024
MAX_TIMES = 4096
MAX_LISTENERS = 64
BACKLOG = 256


class Event(NamedTuple):
    """kind: "sample", "second" or "ended". json: an object whose "type" is that; written once, for all who listen."""

    kind: str
    json: str


def label_of(response_id: str) -> str:
    """Eight hexadecimal digits: 32-bit FNV-1a. The page computes the same of its own answers' ids.

    The ids are random, of 96 bits and more, so that a label gives nobody else the id.
    """
    value = 0x811C9DC5
    for byte in response_id.encode():
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return f"{value:08x}"


@dataclass(slots=True)
class _Lane:
    """A request in the batch. largest: most sequences that were seen in a batch with it."""

    label: str
    class_: str
    arithmetic: str
    largest: int = 0


@dataclass(slots=True)
class _Second:
    """What is gathered for the current second."""

    first_token: list[float] = field(default_factory=list)
    inter_token: list[float] = field(default_factory=list)
    largest: int = 0
    waiting: int = 0


class Timeline:
    """Lives on the event loop; `run` reads the engines until it is cancelled."""

    def __init__(self, engines: Sequence[ServedEngine]) -> None:
        self._engines = tuple(engines)
        self._samples: deque[Event] = deque(maxlen=SAMPLES)
        self._seconds: deque[Event] = deque(maxlen=SECONDS)
        self._ended: deque[Event] = deque(maxlen=ENDED)
        self._lanes: OrderedDict[str, _Lane] = OrderedDict()  # by the engine's id of a request
        self._left: OrderedDict[str, _Lane] = OrderedDict()  # the engine may not have noticed yet that they left
        self._listeners: set[asyncio.Queue[Event]] = set()
        self._secret = secrets.token_hex(16)
        self._last_sample = self._last_look = -math.inf
        self._last_batch: object = None
        self._second = _Second()
        self._counted = self._totals()
        self._counted_at = time.monotonic()

    # What the server tells.

    def started(self, record: GenerationRecord) -> None:
        label = label_of(record.response_id)
        for number, engine_id in enumerate(record.engine_ids):
            own = label if len(record.engine_ids) == 1 else f"{label}.{number}"
            self._lanes[engine_id] = _Lane(own, record.class_.value, record.arithmetic)
        _shorten(self._lanes, MAX_LANES)

    def tokens(self, record: GenerationRecord, count: int, before: float | None, now: float) -> None:
        second = self._second
        if before is None:
            if len(second.first_token) < MAX_TIMES:
                second.first_token.append(now - record.arrival)
        elif len(second.inter_token) < MAX_TIMES:
            second.inter_token.append(time_per_token(record, count, now - before))
        if now - self._last_look >= SHORTEST:
            self.sample(now)

    def finished(self, record: GenerationRecord) -> None:
        lanes = []
        for engine_id in record.engine_ids:
            lane = self._lanes.pop(engine_id, None)
            if lane is not None:
                self._left[engine_id] = lane
                lanes.append(lane)
        _shorten(self._left, MAX_LEFT)
        event = _event(
            "ended",
            {
                "label": label_of(record.response_id),
                "class": record.class_.value,
                "arithmetic": record.arithmetic,
                "largest": max((lane.largest for lane in lanes), default=0),
                "prompt": record.prompt_tokens,
                "cached": record.cached_tokens,
                "generated": record.generated_tokens,
                "ttft": _since(record.arrival, record.first_token),
                "e2e": _since(record.arrival, record.last_token),
                "outcome": record.outcome,
            },
        )
        self._ended.append(event)
        self._send(event)

    # Samples.

    async def run(self) -> None:
        """Samples every PERIOD and closes every second."""
        while True:
            now = time.monotonic()
            if now - self._last_sample >= PERIOD:
                self.sample(now)
            if now - self._counted_at >= 1.0:
                self.close_second(now)
            await asyncio.sleep(PERIOD)

    def sample(self, now: float) -> None:
        """Reads every engine. A batch that stays as it is becomes a new sample every PERIOD, an idle engine's never."""
        self._last_look = now
        engines, batch = [], []
        for engine in self._engines:
            load = engine.load()
            members = self._members(engine, load)
            self._second.largest = max(self._second.largest, load.running)
            self._second.waiting = max(self._second.waiting, load.waiting)
            batch.append([(label, phase) for label, phase, _, _ in members])
            engines.append(
                {
                    "arithmetic": engine.arithmetic,
                    "running": load.running,
                    "waiting": load.waiting,
                    "kv": round(kv_usage(load), 4),
                    "members": members,
                }
            )
        idle = not any(batch)
        if (idle or now - self._last_sample < PERIOD) and batch == self._last_batch:
            return
        self._last_sample, self._last_batch = now, batch
        event = _event("sample", {"engines": engines})
        self._samples.append(event)
        self._send(event)

    def _members(self, engine: ServedEngine, load: Load) -> list[tuple[str, str, int, int]]:
        """(label, "p" or "d", tokens of the step, length) of each sequence, MAX_MEMBERS at most."""
        seen: Counter[str] = Counter()
        members: list[tuple[str, str, int, int]] = []
        for member in load.batch:
            name = member.request_id
            lane = self._lanes.get(name) or self._left.get(name) or self._unknown(name, engine)
            lane.largest = max(lane.largest, len(load.batch))
            if len(members) < MAX_MEMBERS:
                seen[lane.label] += 1
                choice = seen[lane.label]
                label = lane.label if choice == 1 else f"{lane.label}/{choice}"
                members.append((label, member.phase[0], member.tokens, member.length))
        return members

    def _unknown(self, request_id: str, engine: ServedEngine) -> _Lane:
        """Of a request that did not come through the API: a receipt that is replayed. Salted: its id may not be random."""
        return _Lane("~" + label_of(self._secret + request_id)[1:], engine.determinism_class, engine.arithmetic)

    def close_second(self, now: float) -> None:
        """Adds a point to the series of speeds and times."""
        totals, second, seconds = self._totals(), self._second, now - self._counted_at
        event = _event(
            "second",
            {
                # An engine that was made anew counts from 0.
                "prompt_rate": round(max(0, totals[0] - self._counted[0]) / seconds, 1),
                "token_rate": round(max(0, totals[1] - self._counted[1]) / seconds, 1),
                "ttft": _quantiles(second.first_token),
                "itl": _quantiles(second.inter_token),
                "running": second.largest,
                "waiting": second.waiting,
                "kv": max(kv_usage(engine.load()) for engine in self._engines),
            },
        )
        self._counted, self._counted_at, self._second = totals, now, _Second()
        self._seconds.append(event)
        self._send(event)

    def _totals(self) -> tuple[int, int]:
        """Prompt tokens and generated tokens of all engines."""
        loads = [engine.load() for engine in self._engines]
        return sum(load.prompt_tokens for load in loads), sum(load.generated_tokens for load in loads)

    # What is told to those who look.

    def snapshot(self) -> str:
        """JSON of everything in the rings, oldest first: {"samples": [...], "seconds": [...], "ended": [...]}."""
        rings = {"samples": self._samples, "seconds": self._seconds, "ended": self._ended}
        lists = (f'"{name}":[{",".join(event.json for event in ring)}]' for name, ring in rings.items())
        return "{" + ",".join(lists) + "}"

    @property
    def has_room(self) -> bool:
        """Whether one more may listen."""
        return len(self._listeners) < MAX_LISTENERS

    async def listen(self) -> AsyncGenerator[Event, None]:
        """Events from now on, at least one each second while `run` runs. One who reads too slowly misses the oldest."""
        events: asyncio.Queue[Event] = asyncio.Queue(BACKLOG)
        self._listeners.add(events)
        try:
            while True:
                yield await events.get()
        finally:
            self._listeners.discard(events)

    def _send(self, event: Event) -> None:
        for events in self._listeners:
            if events.full():
                events.get_nowait()
            events.put_nowait(event)


def _event(kind: str, values: dict[str, Any]) -> Event:
    """t: seconds since 1970."""
    return Event(kind, dumps({"type": kind, "t": time.time()} | values))


def _shorten(lanes: OrderedDict[str, _Lane], most: int) -> None:
    """Forgets the oldest."""
    while len(lanes) > most:
        lanes.popitem(last=False)


def _since(start: float, end: float | None) -> float | None:
    return None if end is None else round(end - start, 6)


def _quantiles(times: list[float]) -> list[float] | None:
    """[median, the longest but 1 percent], seconds; None of nothing."""
    if not times:
        return None
    ordered = sorted(times)
    return [round(statistics.median(ordered), 6), round(ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)], 6)]
