"""An engine behind asyncio: the step loop has a thread of its own, requests come and go while it runs.

After a step the thread leaves each reader a snapshot of its request, in the place of one that was not read yet, and wakes
those who wait. Outputs are made by the readers: a slow one costs neither memory nor time, and finds several steps in one.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
from collections.abc import AsyncGenerator, Callable
from functools import partial
from os import PathLike
from types import TracebackType
from typing import Any, Self

from queueproof.contract.errors import EngineError, InvalidParameter
from queueproof.contract.load import Load
from queueproof.engine.engine import Engine
from queueproof.engine.llm import open_engine
from queueproof.engine.load import load_of
from queueproof.engine.outputs import RequestOutput, Snapshot
from queueproof.engine.protocols import LoadedModel
from queueproof.engine.request import Request
from queueproof.engine.sampling_params import SamplingParams
from queueproof.engine.stats import EngineStats

_News = Snapshot | BaseException


class _Listener:
    """Who waits for a request, and on which event loop.

    news: the latest, put there by the engine's thread. told: whether a call that wakes the reader is on its way. The reader
    takes that back first and looks at the news then, so that nothing is missed; at worst it is woken once for nothing.
    """

    __slots__ = ("awake", "loop", "news", "told")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop, self.awake = loop, asyncio.Event()
        self.news: _News | None = None
        self.told = False

    async def next(self, last: _News | None) -> _News:
        """The latest news, once they are not the last ones any more."""
        while True:
            self.awake.clear()
            self.told = False
            news = self.news
            if news is not None and news is not last:
                return news
            await self.awake.wait()


class AsyncEngine:
    """Owns its engine: nothing else may use it. Made and used from any event loop; closed by `close` or `async with`.

    model: an engine, or what `LLM` takes, with the same options.
    """

    def __init__(self, model: Engine | str | PathLike[str] | LoadedModel, dtype: str = "auto", **options: Any) -> None:
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
        self._moment = self._observed = self.engine.moment()
        self._load = load_of(self._moment)
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
        """Outputs as the answers grow: `text` and `token_ids` are all so far, `delta_text` is what is new since the last one.
        Who is slow to ask for the next one finds several steps in it.

        The last one has finished=True. Leaving the generator early aborts the request. Raises InvalidParameter or
        RequestTooLong before anything is computed, EngineError if the engine ends under the request.
        """
        params = sampling_params or SamplingParams()
        make = partial(self.engine.make_request, prompt, params, request_id, cache_salt)
        # A guide may be long in the making, and the event loop has others to serve.
        guided = isinstance(params, SamplingParams) and params.guide is not None
        request = await asyncio.to_thread(make) if guided else make()
        listener = _Listener(asyncio.get_running_loop())
        self._order(lambda: self._add(request, listener))
        finished, news = False, None
        try:
            while not finished:
                news = await listener.next(news)
                if isinstance(news, BaseException):
                    finished = True
                    raise news
                finished = news.finished
                yield self.engine.output(request, news)
        finally:
            if not finished:
                self._abandon(request, listener)

    def abort(self, request_id: str) -> None:
        """Ends a request; its stream gets a last output with finish_reason "abort". Nothing for an unknown id."""
        self._order(lambda: self._abort(request_id))

    def reset_prefix_cache(self) -> None:
        """Between two steps: requests that come later find nothing of what was computed before."""
        self._order(self.engine.reset_prefix_cache)

    def load(self) -> Load:
        """As it was after the last step. Costs next to nothing while there is no other step."""
        moment = self._moment
        if moment is not self._observed:
            self._observed, self._load = moment, load_of(moment)
        return self._load

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
                self._moment = self.engine.moment()
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
            self._moment = self.engine.moment()

    def _add(self, request: Request, listener: _Listener) -> None:
        try:
            self.engine.add(request)
        except Exception as error:  # a duplicate id: the caller's error, not the loop's
            self._tell([(listener, error)])
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
        news: list[tuple[_Listener, _News]] = []
        for request in requests:
            listener = self._listeners[request.request_id]
            if request.finished:
                del self._listeners[request.request_id]
            news.append((listener, request.snapshot()))
        self._tell(news)

    def _tell(self, news: list[tuple[_Listener, _News]]) -> None:
        waking: dict[asyncio.AbstractEventLoop, list[_Listener]] = {}
        for listener, item in news:
            listener.news = item
            if not listener.told:
                listener.told = True
                waking.setdefault(listener.loop, []).append(listener)
        for loop, listeners in waking.items():
            try:
                loop.call_soon_threadsafe(_wake, listeners)
            except RuntimeError:
                if not loop.is_closed():
                    raise
                for listener in listeners:
                    self._forget(listener)

    def _forget(self, listener: _Listener) -> None:
        """Its event loop is closed: nobody can be listening."""
        for request_id in [r for r, other in self._listeners.items() if other is listener]:
            del self._listeners[request_id]
            self.engine.abort(request_id)

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
        errors: list[tuple[_Listener, _News]] = []
        for listener in self._listeners.values():
            error = EngineError(str(reason))
            error.__cause__ = cause
            errors.append((listener, error))
        self._listeners.clear()
        self.engine.abandon()
        self._moment = self.engine.moment()
        self._tell(errors)


def _wake(listeners: list[_Listener]) -> None:
    for listener in listeners:
        listener.awake.set()
