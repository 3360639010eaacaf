"""An engine behind asyncio: the step loop has a thread of its own, requests come and go while it runs."""

from __future__ import annotations

import asyncio
import os
import queue
import threading
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from os import PathLike
from types import TracebackType
from typing import Any, Self

from queueproof.contract.errors import EngineError, InvalidParameter
from queueproof.engine.engine import Engine
from queueproof.engine.llm import open_engine
from queueproof.engine.outputs import RequestOutput
from queueproof.engine.protocols import LoadedModel
from queueproof.engine.request import Request
from queueproof.engine.sampling_params import SamplingParams
from queueproof.engine.stats import EngineStats

_Item = RequestOutput | BaseException


@dataclass(slots=True)
class _Listener:
    """Who waits for the outputs of a request, and on which event loop."""

    loop: asyncio.AbstractEventLoop
    items: asyncio.Queue[_Item] = field(default_factory=asyncio.Queue)


class AsyncEngine:
    """Owns its engine: nothing else may use it. Made and used from any event loop; closed by `close` or `async with`.

    model: an engine, or what `LLM` takes, with the same options.
    """

    def __init__(
        self, model: Engine | str | PathLike[str] | LoadedModel, dtype: str = "auto", **options: Any
    ) -> None:
        if isinstance(model, Engine):
            if options or dtype != "auto":
                raise InvalidParameter("options", sorted({"dtype", *options}), "an engine has its options already")
            self.engine = model
        else:
            self.engine = open_engine(model, dtype, **options)
        # What the thread shall do between two steps; None ends it.
        self._orders: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._listeners: dict[str, _Listener] = {}  # the thread's own
        self._lock = threading.Lock()  # over _end and putting orders: none comes after the thread took its last
        self._end: EngineError | None = None
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._run, name="queueproof-engine", daemon=True)
        self._thread.start()

    async def generate(
        self,
        prompt: object,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        cache_salt: str | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Outputs as the answers grow: `text` and `token_ids` are all so far, `delta_text` is what is new.

        The last one has finished=True. Leaving the generator early aborts the request. Raises InvalidParameter or
        RequestTooLong before anything is computed, EngineError if the engine ends under the request.
        """
        request = self.engine.make_request(prompt, sampling_params or SamplingParams(), request_id, cache_salt)
        listener = _Listener(asyncio.get_running_loop())
        self._order(lambda: self._add(request, listener))
        finished = False
        try:
            while not finished:
                item = await listener.items.get()
                if isinstance(item, BaseException):
                    finished = True
                    raise item
                finished = item.finished
                yield item
        finally:
            if not finished:
                self._abandon(request, listener)

    def abort(self, request_id: str) -> None:
        """Ends a request; its stream gets a last output with finish_reason "abort". Nothing for an unknown id."""
        self._order(lambda: self._abort(request_id))

    @property
    def stats(self) -> EngineStats:
        """Counts that the thread goes on changing."""
        return self.engine.stats

    @property
    def running(self) -> bool:
        return self._end is None

    def close(self) -> None:
        """Ends the thread and the engine; requests that wait get EngineError. Safe to call twice."""
        with self._lock:
            if self._end is None:
                self._end = EngineError("the engine is closed")
            self._orders.put(None)
        self._thread.join()
        self.engine.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

    def _order(self, order: Callable[[], None]) -> None:
        if self._process != os.getpid():  # a forked child has the engine without its thread
            raise EngineError("the engine runs in the process that made it; make one after the fork")
        with self._lock:
            if self._end is not None:
                raise EngineError(str(self._end)) from self._end.__cause__
            self._orders.put(order)

    def _abandon(self, request: Request, listener: _Listener) -> None:
        """The listener has left; an engine that ended meanwhile has nothing left to abort."""
        with self._lock:
            if self._end is None:
                self._orders.put(lambda: self._drop(request, listener))

    # What follows runs on the thread.

    def _run(self) -> None:
        try:
            while self._obey():
                changed = self.engine.step()
                if changed:
                    self._deliver(changed)
        except BaseException as error:
            self._fail(error)
        else:
            self._fail(None)

    def _obey(self) -> bool:
        """Carries out the orders; waits for one if there is nothing else to do. False: the last one."""
        while True:
            try:
                order = self._orders.get(block=not self.engine.has_work)
            except queue.Empty:
                return True
            if order is None:
                return False
            order()

    def _add(self, request: Request, listener: _Listener) -> None:
        try:
            self.engine.add(request)
        except Exception as error:  # a duplicate id: the caller's error, not the loop's
            self._send(listener.loop, [(listener, error)])
        else:
            self._listeners[request.request_id] = listener

    def _abort(self, request_id: str) -> None:
        request = self.engine.abort(request_id)
        if request is not None:
            self._deliver([request])

    def _drop(self, request: Request, listener: _Listener) -> None:
        # Another request may have the same id by now, or may have had it all along.
        if self._listeners.get(request.request_id) is listener:
            self.engine.abort(request.request_id)
            del self._listeners[request.request_id]

    def _deliver(self, requests: list[Request]) -> None:
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Listener, _Item]]] = {}
        for request in requests:
            listener = self._listeners[request.request_id]
            if request.finished:
                del self._listeners[request.request_id]
            by_loop.setdefault(listener.loop, []).append((listener, self.engine.output(request)))
        for loop, items in by_loop.items():
            if not self._send(loop, items):
                for listener in [listener for listener, _ in items]:
                    self._forget(listener)

    def _forget(self, listener: _Listener) -> None:
        for request_id in [r for r, other in self._listeners.items() if other is listener]:
            del self._listeners[request_id]
            self.engine.abort(request_id)

    def _send(self, loop: asyncio.AbstractEventLoop, items: list[tuple[_Listener, _Item]]) -> bool:
        """False if the event loop is closed, and nobody can be listening."""

        def put() -> None:
            for listener, item in items:
                listener.items.put_nowait(item)

        try:
            loop.call_soon_threadsafe(put)
        except RuntimeError:
            if not loop.is_closed():
                raise
            return False
        return True

    def _fail(self, cause: BaseException | None) -> None:
        """No more steps: every request that waits, or is in the queue, gets the reason."""
        with self._lock:
            if cause is not None:
                self._end = EngineError(f"the step loop failed: {type(cause).__name__}: {cause}")
                self._end.__cause__ = cause
            reason = self._end
        assert reason is not None
        self.engine.abandon()  # first: a failed step may have left anything behind, and orders follow
        while True:  # requests whose order came before the end: they have no listener yet
            try:
                order = self._orders.get_nowait()
            except queue.Empty:
                break
            if order is not None:
                order()
        for listener in self._listeners.values():
            error = EngineError(str(reason))
            error.__cause__ = cause
            self._send(listener.loop, [(listener, error)])
        self._listeners.clear()
        self.engine.abandon()
