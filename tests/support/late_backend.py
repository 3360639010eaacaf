"""The fake model on an asynchronous device: work is handed over in order, and done when somebody waits for it, or at once.

A late device runs as far behind the host as it can, an eager one never does; both must give the answers of the synchronous
fake. Whatever the door forbids is an assertion here: a draw that is waited for twice or too late, a row of a draw that is
not the last, logits that the host looks into.

bug: makes the device wrong on purpose, for the controls of the tests. "stale": tokens come from the draw before the last
one. "shifted": from the row beside. "dropped": rows of a draw are left out of the step, so that it computes token_ids.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from queueproof.kernels.ops import F32, I32, DrawBatch, Drawn, ForwardModel, Limits, StepBatch
from tests.support.fake_backend import FakeBackend, FakeExecutor, FakeLoaded, FakeModel, FakeRows, load_fake


class Device:
    """A stream. waits: how often the host had to wait for work that was not done."""

    def __init__(self, eager: bool) -> None:
        self.eager, self.waits = eager, 0
        self._work: deque[Callable[[], None]] = deque()

    def put(self, work: Callable[[], None]) -> None:
        self._work.append(work)
        if self.eager:
            self.run_until(lambda: False)

    def run_until(self, done: Callable[[], bool]) -> None:
        while self._work and not done():
            work = self._work.popleft()
            try:
                work()
            except BaseException:
                self._work.clear()  # what came after it can rely on nothing
                raise


class LateLogits:
    """Where logits will be."""

    def __init__(self, executor: LateExecutor) -> None:
        self.executor = executor
        self.values: F32 | None = None


class LateDraw:
    def __init__(self, device: Device, rows: int) -> None:
        self._device, self.rows = device, rows
        self.drawn: Drawn | None = None
        self.collected = self.overwritten = False

    def result(self) -> Drawn:
        assert not self.collected, "the result of a draw was asked for twice"
        assert not self.overwritten, "the result of a draw was asked for after two more had begun"
        self.collected = True
        if self.drawn is None:
            self._device.waits += 1
        self._device.run_until(lambda: self.drawn is not None)
        assert self.drawn is not None
        return self.drawn


def _copied(batch: Any) -> Any:
    """Arrays may be reused by the host as soon as a call returns."""
    fields = {f.name: getattr(batch, f.name) for f in dataclasses.fields(batch)}
    return type(batch)(**{name: v.copy() if isinstance(v, np.ndarray) else v for name, v in fields.items()})


class LateExecutor(FakeExecutor):
    def __init__(self, model: FakeModel, limits: Limits, device: Device, bug: str | None) -> None:
        super().__init__(model, limits)
        self._device, self._bug = device, bug
        self.draws: list[LateDraw] = []
        self.referred = 0  # tokens that were taken from a draw

    def forward(self, batch: StepBatch) -> None:
        batch, drawn = _copied(batch), None if batch.drawn is None else batch.drawn.copy()
        batch.drawn = None
        if drawn is None:
            self._device.put(lambda: FakeExecutor.forward(self, batch))
            return
        last = self.draws[-1]
        assert (drawn < last.rows).all(), "a row that the last draw does not have"
        self.referred += int((drawn >= 0).sum())
        source, taken = last, drawn >= 0
        if self._bug == "stale" and len(self.draws) > 1:
            source = self.draws[-2]
        if self._bug == "shifted":
            drawn = np.where(taken, (drawn + 1) % last.rows, drawn)
        if self._bug == "dropped":
            taken = np.zeros_like(taken)

        def run() -> None:
            assert source.drawn is not None, "the device does not work in order"
            # A row without a token may stand for any: what it leads to is dropped.
            tokens = np.maximum(source.drawn.tokens, 0)
            batch.token_ids[taken] = tokens[drawn[taken] % tokens.size]
            FakeExecutor.forward(self, batch)

        self._device.put(run)

    def logits(self, rows: I32) -> Any:
        assert 0 < rows.size <= self.limits.max_logit_rows
        found, rows = LateLogits(self), rows.copy()

        def run() -> None:
            found.values = FakeExecutor.logits(self, rows)

        self._device.put(run)
        return found


class LateRows:
    def __init__(self, device: Device) -> None:
        self._device, self._rows = device, FakeRows()

    def host(self, logits: LateLogits) -> F32:
        self._device.run_until(lambda: logits.values is not None)
        assert logits.values is not None
        return logits.values.copy()

    def draw(self, logits: LateLogits, batch: DrawBatch) -> LateDraw:
        draw, batch = LateDraw(self._device, batch.tokens.size), _copied(batch)
        draws = logits.executor.draws
        draws.append(draw)
        if len(draws) > 2 and not draws[-3].collected:
            draws[-3].overwritten = True

        def run() -> None:
            assert logits.values is not None
            draw.drawn = self._rows.draw(logits.values, batch).result()

        self._device.put(run)
        return draw


class LateBackend(FakeBackend):
    asynchronous = True

    def __init__(self, eager: bool, bug: str | None = None) -> None:
        super().__init__()
        self.stream, self._bug = Device(eager), bug

    def rows(self, threads: int) -> Any:
        return LateRows(self.stream)

    def executor(self, model: ForwardModel, limits: Limits, threads: int) -> LateExecutor:
        assert isinstance(model, FakeModel)
        executor = LateExecutor(model, limits, self.stream, self._bug)
        self.executors.append(executor)
        return executor


def load_late(eager: bool = False, bug: str | None = None, **options: Any) -> FakeLoaded:
    """A fake model on an asynchronous device; options as for `load_fake`."""
    loaded = load_fake(**options)
    loaded.backend = LateBackend(eager, bug)
    return loaded
