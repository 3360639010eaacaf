"""Streams from a loop on its own thread: cancelling, crashing and closing leave nobody waiting."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

import pytest

from queueproof.contract.errors import EngineError, InvalidParameter, RequestTooLong
from queueproof.engine.async_engine import AsyncEngine
from queueproof.engine.config import EngineConfig
from queueproof.engine.engine import Engine
from queueproof.engine.llm import LLM
from queueproof.engine.outputs import RequestOutput
from queueproof.engine.sampling_params import SamplingParams
from tests.support.fake_backend import load_fake

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
LONG = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)
TIMEOUT = 20


def serve(**model: Any) -> AsyncEngine:
    return AsyncEngine(Engine(load_fake(**model), EngineConfig(num_blocks=256, max_num_batched_tokens=16)))


def run(body: Callable[[AsyncEngine], Coroutine[Any, Any, None]], **model: Any) -> AsyncEngine:
    async def main() -> AsyncEngine:
        async with asyncio.timeout(TIMEOUT), serve(**model) as engine:
            await body(engine)
        return engine

    engine = asyncio.run(main())
    assert not engine._thread.is_alive() and not engine._listeners
    return engine


async def collect(stream: AsyncGenerator[RequestOutput, None]) -> list[RequestOutput]:
    return [output async for output in stream]


async def tokens(stream: AsyncGenerator[RequestOutput, None]) -> int:
    return len((await collect(stream))[-1].outputs[0].token_ids)


async def until_idle(engine: AsyncEngine) -> None:
    """Until the thread has nothing left to do; on a missed abort this runs into the test's timeout."""
    while engine.engine._requests:
        await asyncio.sleep(0.001)


def test_streams_add_up_to_the_offline_answers() -> None:
    prompts = [[i] * (3 * i + 1) for i in range(1, 9)]
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True, stop=["ab", "XONI"], logprobs=1)
    expected = LLM(load_fake(), num_blocks=256).generate(prompts, params)

    async def body(engine: AsyncEngine) -> None:
        streams = await asyncio.gather(*(collect(engine.generate(p, params)) for p in prompts))
        for outputs, want in zip(streams, expected, strict=True):
            last = outputs[-1].outputs[0]
            assert outputs[-1].finished and not any(o.finished for o in outputs[:-1])
            assert last.token_ids == want.outputs[0].token_ids and last.logprobs == want.outputs[0].logprobs
            assert last.text == want.outputs[0].text == "".join(o.outputs[0].delta_text for o in outputs)
            assert last.finish_reason == want.outputs[0].finish_reason
            lengths = [len(o.outputs[0].token_ids) for o in outputs]
            assert lengths == sorted(lengths)
        assert engine.stats.largest_batch > 1

    run(body)


def test_several_answers_in_one_stream() -> None:
    params = SamplingParams(n=3, seed=5, max_tokens=9, ignore_eos=True)

    async def body(engine: AsyncEngine) -> None:
        outputs = await collect(engine.generate([1, 2], params))
        for i, answer in enumerate(outputs[-1].outputs):
            assert answer.text == "".join(o.outputs[i].delta_text for o in outputs) and len(answer.token_ids) == 9

    run(body)


def test_bad_requests_are_refused_where_they_are_made() -> None:
    async def body(engine: AsyncEngine) -> None:
        with pytest.raises(InvalidParameter):
            await collect(engine.generate("", GREEDY))
        with pytest.raises(RequestTooLong):
            await collect(engine.generate([1] * 600, GREEDY))
        first = engine.generate([1], LONG, request_id="a")
        await anext(first)
        with pytest.raises(InvalidParameter, match="request_id='a'"):
            await collect(engine.generate([2], GREEDY, request_id="a"))
        assert len((await collect(first))[-1].outputs[0].token_ids) == 400  # untouched by its namesake
        assert await tokens(engine.generate([1], GREEDY)) == 12

    run(body)


def test_a_nan_ends_one_stream_only() -> None:
    async def body(engine: AsyncEngine) -> None:
        good, bad = await asyncio.gather(
            collect(engine.generate([5] * 20, GREEDY)), collect(engine.generate([5, 61], GREEDY))
        )
        assert good[-1].outputs[0].finish_reason == "length"
        assert bad[-1].outputs[0].finish_reason == "error" and bad[-1].finished

    run(body, nan_token=61)


def test_leaving_a_stream_aborts_the_request() -> None:
    async def body(engine: AsyncEngine) -> None:
        stream = engine.generate([1], LONG)
        await anext(stream)
        await stream.aclose()
        await until_idle(engine)
        task = asyncio.create_task(collect(engine.generate([2], LONG)))
        while not engine.engine._requests:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until_idle(engine)
        engine.engine.check_integrity()
        assert engine.stats.generated_tokens < 800

    run(body)


def test_aborting_by_id() -> None:
    async def body(engine: AsyncEngine) -> None:
        stream = engine.generate([1], LONG, request_id="a")
        await anext(stream)
        engine.abort("a")
        engine.abort("nobody")
        rest = await collect(stream)
        assert rest[-1].finished and rest[-1].outputs[0].finish_reason == "abort"

    run(body)


def test_when_the_loop_crashes_everybody_learns_of_it() -> None:
    async def body(engine: AsyncEngine) -> None:
        waiting = [asyncio.create_task(collect(engine.generate([i], LONG))) for i in range(1, 5)]
        await asyncio.sleep(0.01)
        waiting.append(asyncio.create_task(collect(engine.generate([50], LONG))))
        results = await asyncio.gather(*waiting, return_exceptions=True)
        for error in results:
            assert isinstance(error, EngineError) and "the step loop failed: RuntimeError: the fake model" in str(error)
            assert isinstance(error.__cause__, RuntimeError)
        assert not engine.running
        with pytest.raises(EngineError, match="the step loop failed"):
            await collect(engine.generate([1], GREEDY))
        with pytest.raises(EngineError):
            engine.abort("a")

    run(body, crash_token=50)


def test_closing_ends_those_who_wait() -> None:
    async def body(engine: AsyncEngine) -> None:
        tasks = [asyncio.create_task(collect(engine.generate([i], LONG))) for i in range(1, 4)]
        while not engine.engine.has_work:
            await asyncio.sleep(0.001)
        await asyncio.to_thread(engine.close)
        engine.close()
        for error in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(error, EngineError) and "closed" in str(error)
        with pytest.raises(EngineError, match="closed"):
            await collect(engine.generate([1], GREEDY))

    run(body)


def test_a_listener_whose_event_loop_is_gone() -> None:
    """Its request is dropped, and the others go on."""
    engine = serve()

    async def leave() -> None:
        stream = engine.generate([1], LONG)
        await anext(stream)
        leave.stream = stream  # type: ignore[attr-defined]  # kept, so that nothing closes it in order

    loop = asyncio.new_event_loop()
    loop.run_until_complete(leave())
    loop.close()

    async def other() -> None:
        async with asyncio.timeout(TIMEOUT):
            assert await tokens(engine.generate([2], GREEDY)) == 12
            await until_idle(engine)

    asyncio.run(other())
    engine.close()
    assert not engine._thread.is_alive()


def test_a_forked_child_is_told_that_the_engine_stayed_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(engine: AsyncEngine) -> None:
        with monkeypatch.context() as child:
            child.setattr(os, "getpid", lambda: -1)
            with pytest.raises(EngineError, match="after the fork"):
                await collect(engine.generate([1], GREEDY))
            with pytest.raises(EngineError, match="after the fork"):
                engine.abort("request-0")

    run(body)


def test_it_takes_what_llm_takes() -> None:
    async def ask() -> list[int]:
        async with AsyncEngine(load_fake(), num_blocks=64) as engine:
            last = [o async for o in engine.generate([1, 2, 3], SamplingParams(temperature=0, max_tokens=4))][-1]
        return list(last.outputs[0].token_ids)

    assert asyncio.run(ask())
    engine = Engine(load_fake(), EngineConfig(num_blocks=64))
    with pytest.raises(InvalidParameter, match="options"):
        AsyncEngine(engine, threads=1)
    engine.close()
