"""Any backend on an asynchronous device: work is handed over in order, and done when somebody waits for it, or at once.

A late device runs as far behind the host as it can, an eager one never does; both must give the answers of the backend
itself. Whatever the door forbids is an assertion here: a draw that is waited for twice or too late, a row of a draw that is
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

from queueproof.kernels.ops import (
    F32,
    I32,
    Backend,
    DrawBatch,
    Drawn,
    Executor,
    ForwardModel,
    Limits,
    RowOps,
    StepBatch,
)
from tests.support.fake_backend import FakeLoaded, load_fake


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
        self.values: Any = None


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
    if isinstance(batch, np.ndarray):
        return batch.copy()
    if not dataclasses.is_dataclass(batch):
        return batch
    return type(batch)(**{f.name: _copied(getattr(batch, f.name)) for f in dataclasses.fields(batch)})


class LateExecutor:
    def __init__(self, executor: Executor, device: Device, bug: str | None) -> None:
        self.limits, self._executor, self._device, self._bug = executor.limits, executor, device, bug
        self.draws: list[LateDraw] = []
        self.referred = 0  # tokens that were taken from a draw

    def forward(self, batch: StepBatch) -> None:
        batch, drawn = _copied(batch), batch.drawn
        batch.drawn = None
        if drawn is None:
            self._device.put(lambda: self._executor.forward(batch))
            return
        last, taken, drawn = self.draws[-1], drawn >= 0, drawn.copy()
        assert (drawn < last.rows).all(), "a row that the last draw does not have"
        self.referred += int(taken.sum())
        source = last
        if self._bug == "stale" and len(self.draws) > 1:
            source = self.draws[-2]
        if self._bug == "shifted":
            drawn[taken] = (drawn[taken] + 1) % last.rows
        if self._bug == "dropped":
            taken = np.zeros_like(taken)

        def run() -> None:
            assert source.drawn is not None, "the device does not work in order"
            # A row without a token may stand for any: what it leads to is dropped.
            tokens = np.maximum(source.drawn.tokens, 0)
            batch.token_ids[taken] = tokens[drawn[taken] % tokens.size]
            self._executor.forward(batch)

        self._device.put(run)

    def logits(self, rows: I32) -> LateLogits:
        assert 0 < rows.size <= self.limits.max_logit_rows
        found, rows = LateLogits(self), rows.copy()

        def run() -> None:
            found.values = self._executor.logits(rows)

        self._device.put(run)
        return found

    def close(self) -> None:
        self._executor.close()


class LateRows:
    def __init__(self, rows: RowOps, device: Device) -> None:
        self._rows, self._device = rows, device

    def host(self, logits: LateLogits) -> F32:
        self._device.run_until(lambda: logits.values is not None)
        return self._rows.host(logits.values)

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


class LateBackend:
    """A synchronous backend, made asynchronous."""

    asynchronous = True

    def __init__(self, backend: Backend, eager: bool = False, bug: str | None = None) -> None:
        self._backend, self._stream, self._bug = backend, Device(eager), bug
        self.arithmetic, self.device, self.family = backend.arithmetic, backend.device, backend.family
        self.defaults, self.packer, self.warm_up = backend.defaults, backend.packer, backend.warm_up
        self.kv_bytes_per_token = backend.kv_bytes_per_token
        self.executors: list[LateExecutor] = []

    @property
    def waits(self) -> int:
        return self._stream.waits

    def rows(self, threads: int) -> LateRows:
        return LateRows(self._backend.rows(threads), self._stream)

    def executor(self, model: ForwardModel, limits: Limits, threads: int) -> LateExecutor:
        self.executors.append(LateExecutor(self._backend.executor(model, limits, threads), self._stream, self._bug))
        return self.executors[-1]


def late(loaded: FakeLoaded, eager: bool = False, bug: str | None = None) -> Any:
    """A loaded model whose steps are late."""
    return dataclasses.replace(loaded, backend=LateBackend(loaded.backend, eager, bug))  # type: ignore[arg-type]


def load_late(eager: bool = False, bug: str | None = None, **options: Any) -> Any:
    """A fake model on an asynchronous device; options as for `load_fake`."""
    return late(load_fake(**options), eager, bug)
