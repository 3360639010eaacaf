"""An engine as a server wants it: coalesced streams, what it is doing, its own cache for replays, and how it ends."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

import pytest

from queueproof.contract.errors import EngineError, InvalidParameter, RequestTooLong, UsageError
from queueproof.contract.load import Load, Member
from queueproof.contract.receipt import ReceiptModel
from queueproof.engine.config import EngineConfig
from queueproof.engine.engine import Engine
from queueproof.engine.guide import library
from queueproof.engine.llm import LLM
from queueproof.engine.load import load_of
from queueproof.engine.outputs import Prefix, RequestOutput
from queueproof.engine.sampling_params import SamplingParams
from queueproof.engine.service import EngineService
from tests.support.fake_backend import load_fake

TIMEOUT = 30
LONG: dict[str, Any] = {"temperature": 0, "max_tokens": 400, "ignore_eos": True}
Body = Callable[[EngineService], Coroutine[Any, Any, None]]


def run(body: Body, options: dict[str, Any] | None = None, **model: Any) -> None:
    async def main() -> None:
        service = EngineService(
            load_fake(**model), **({"num_blocks": 256, "max_num_batched_tokens": 64} | (options or {}))
        )
        try:
            async with asyncio.timeout(TIMEOUT):
                await body(service)
        finally:
            await service.aclose()
        assert not service.running

    asyncio.run(main())


async def collect(stream: AsyncGenerator[RequestOutput, None]) -> list[RequestOutput]:
    return [output async for output in stream]


async def until(true: Callable[[], bool]) -> None:
    while not true():
        await asyncio.sleep(0.001)


class Held:
    """Holds the engine's thread between two steps while it is entered."""

    def __init__(self, service: EngineService) -> None:
        self._engine, self._go, self._there = service._engine, threading.Event(), threading.Event()

    async def __aenter__(self) -> None:
        def hold() -> None:
            self._there.set()
            assert self._go.wait(TIMEOUT)

        self._engine._order(hold)
        await asyncio.to_thread(self._there.wait, TIMEOUT)

    async def __aexit__(self, *_: object) -> None:
        self._go.set()


def test_what_it_says_about_itself() -> None:
    async def body(service: EngineService) -> None:
        assert (service.arithmetic, service.determinism_class) == ("ieee/1", "portable")
        assert (service.device, service.family, service.vocab_size) == ("cpu", "any", 64)
        assert (service.max_num_seqs, service.max_model_len, service.running) == (7, 512, True)
        assert service.model.name == "fake" and service.model.sha256 and service.model.tokenizer_sha256
        assert service.guide_library == library()
        ids = service.encode("abc")
        assert service.encode("abc", False) == ids and service.decode(ids) == "abc"
        assert service.token_bytes(1) == b"1" and service.token_bytes(0) == b"<0>"
        assert service.encode_chat([{"role": "user", "content": "x"}])
        with pytest.raises(InvalidParameter):
            service.encode_chat([{"role": "user", "content": "x"}], tools=[])
        with pytest.raises(InvalidParameter, match="no such sampling parameter"):
            service.params(temperatur=0)

    run(body, {"max_num_seqs": 7})


def test_a_known_name_saves_reading_the_weights() -> None:
    name = ReceiptModel("known", "1" * 64, "2" * 64, "bfloat16")
    service = EngineService(load_fake(), name, num_blocks=16)
    assert service.model is name
    service.close()
    service.close()


def test_streams_add_up_to_the_offline_answer() -> None:
    options = {
        "n": 2,
        "temperature": 1.0,
        "seed": 4,
        "max_tokens": 40,
        "ignore_eos": True,
        "stop": ["ab"],
        "logprobs": 2,
    }

    async def body(service: EngineService) -> None:
        params = service.params(**options)
        with LLM(load_fake(), num_blocks=64) as llm:
            (want,) = llm.generate([[1, 2, 3]], params)
        outputs = await collect(service.generate([1, 2, 3], params, "a"))
        assert outputs[-1].finished and outputs[-1].request_id == "a"
        for i, (answer, expected) in enumerate(zip(outputs[-1].outputs, want.outputs, strict=True)):
            assert answer.text == expected.text == "".join(o.outputs[i].delta_text for o in outputs)
            assert answer.token_ids == expected.token_ids and answer.logprobs == expected.logprobs
            assert answer.logprob_bits.tolist() == expected.logprob_bits.tolist()
            assert answer.lse_bits.tolist() == expected.lse_bits.tolist()
            for output in outputs:
                part = output.outputs[i]
                assert part.token_ids == expected.token_ids[: len(part.token_ids)]
                assert len(part.logprob_bits) == len(part.lse_bits) == len(part.token_ids) == len(part.logprobs or ())

    run(body)


def test_a_slow_reader_finds_many_steps_in_one_output() -> None:
    async def body(service: EngineService) -> None:
        slow = service.generate([5], service.params(**LONG), "slow")
        fast = service.generate([6], service.params(**LONG), "fast")
        first = await anext(slow)
        rest = await collect(fast)
        await until(lambda: service.load().running == 0)
        last = await collect(slow)
        assert len(last) == 1 and last[0].finished and len(last[0].outputs[0].token_ids) == 400
        early, late = first.outputs[0], last[0].outputs[0]
        assert late.text == early.text + late.delta_text
        # The early output still says what it said.
        assert (
            len(early.token_ids) == len(early.logprob_bits) < 400
            and early.token_ids == late.token_ids[: len(early.token_ids)]
        )
        assert len(rest) > 3

    run(body)


def test_a_view_of_a_list_that_grows() -> None:
    items = [1, 2, 3]
    view = Prefix(items, 2)
    items.append(4)
    assert view == [1, 2] and view == Prefix([1, 2], 2) and view != [1, 2, 3] and view != (1, 2)
    assert len(view) == 2 and list(view) == [1, 2] and view[-1] == 2 and 3 not in view
    assert view[1:] == [2] and view[::-1] == [2, 1] and view[5:] == [] and repr(view) == "[1, 2]"
    with pytest.raises(IndexError):
        view[2]
    with pytest.raises(TypeError):
        hash(view)


def test_who_leaves_while_waiting_holds_nothing() -> None:
    """Two sequences run, the others wait; also a request of which one answer runs and one waits."""

    async def body(service: EngineService) -> None:
        def ask(name: str, **more: Any) -> AsyncGenerator[RequestOutput, None]:
            return service.generate([1] * 20, service.params(**(LONG | more)), name)

        tasks = [asyncio.create_task(collect(ask(str(i)))) for i in range(5)]
        await until(lambda: service.load().running == 2 and service.load().waiting == 3)
        async with Held(service):
            for task in tasks[1:]:
                task.cancel()
            await asyncio.gather(*tasks[1:], return_exceptions=True)
        await until(lambda: service.load().waiting == 0 and service.load().running == 1)
        assert service.load().kv_blocks_used <= -(-420 // 16)
        tasks.append(asyncio.create_task(collect(ask("siblings", n=3, temperature=1.0))))
        await until(lambda: service.load().waiting == 2)
        for task in tasks:
            task.cancel()
        await until(lambda: service.load().kv_blocks_used == 0 and service.load().waiting == 0)
        assert service.load().batch == ()

    run(body, {"max_num_seqs": 2})


def test_the_load_of_an_engine_step_by_step() -> None:
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    engine = Engine(load_fake(), EngineConfig(num_blocks=64, max_num_batched_tokens=64, num_speculative_tokens=2))

    def step() -> Load:
        engine.step()
        return load_of(engine.moment())

    assert load_of(engine.moment()) == Load(0, 0, 0, 64, 0, 0, 0, 0, 0, 0, ())
    engine.add_request([1] * 5, params, "short")
    load = step()
    assert load.batch == (Member("short", "prefill", 5, 6),)
    assert load[:6] == (1, 0, 1, 64, 5, 1) and load.steps == 1
    engine.add_request([2] * 100, params, "long")
    load = step()
    assert [m[:2] for m in load.batch] == [("short", "decode"), ("long", "prefill")]
    assert sum(m.tokens for m in load.batch) <= 64 and load.batch[1].length == 100 and load.prompt_tokens == 105
    load = step()
    assert [m[:2] for m in load.batch] == [("long", "prefill")] or load.batch[0].phase == "decode"
    while engine.has_work:
        load = step()
    assert load[:4] == (0, 0, 0, 64) and load.generated_tokens == 6 and load.batch == ()
    engine.close()


def test_its_load() -> None:
    async def body(service: EngineService) -> None:
        empty = Load(0, 0, 0, 256, 0, 0, 0, 0, 0, 0, ())
        assert service.load() == empty and service.load() is service.load()
        stream = service.generate([1] * 5, service.params(**LONG), "one")
        await anext(stream)
        async with Held(service):
            load = service.load()
            assert load is service.load() and (load.running, load.waiting) == (1, 0)
            assert [m[:3] for m in load.batch] == [("one", "decode", 1)] or load.steps == 1
            assert load.kv_blocks_used > 0 and load.prompt_tokens == 5 and load.generated_tokens >= 1
        await stream.aclose()
        await until(lambda: service.load().running == 0)
        assert service.load().batch == () and service.load().kv_blocks_used == 0

    run(body)


def test_alone_uses_nothing_that_was_computed_before() -> None:
    async def body(service: EngineService) -> None:
        params = service.params(temperature=0, max_tokens=4, ignore_eos=True)
        prompt = [7] * 100

        async def cached(name: str, **how: Any) -> int:
            return (await collect(service.generate(prompt, params, name, **how)))[-1].num_cached_tokens

        assert [await cached("1"), await cached("2")] == [0, 96]
        assert [await cached("3", alone=True), await cached("4", alone=True)] == [0, 0]
        assert [await cached("5", cache_salt="x"), await cached("6", cache_salt="x"), await cached("7")] == [0, 96, 96]
        service.reset_prefix_cache()
        assert [await cached("8"), await cached("9")] == [0, 96]
        assert service.load().prefix_cache_hit_tokens == 4 * 96

    run(body)


def test_what_cannot_be_served_is_said_at_once() -> None:
    async def body(service: EngineService) -> None:
        params = service.params(max_tokens=5)
        for prompt, error in (
            ([], InvalidParameter),
            ([64], InvalidParameter),
            ([True], InvalidParameter),
            ([1] * 600, RequestTooLong),
        ):
            with pytest.raises(error):
                await collect(service.generate(prompt, params, "bad"))
        with pytest.raises(InvalidParameter, match="params"):
            await collect(service.generate([1], object(), "bad"))
        assert service.load().steps == 0

    run(body)


@pytest.mark.skipif(library() is None, reason="needs the extra guided")
def test_guided_answers() -> None:
    pieces = {i + 1: text.encode() for i, text in enumerate([*'{}":, 0123456789abc'])}

    async def body(service: EngineService) -> None:
        service.prepare_guides()
        guide = json.dumps({"type": "array", "items": {"enum": [1, 2]}, "maxItems": 3})
        with pytest.raises(InvalidParameter, match="guide"):
            await collect(service.generate([1], service.params(guide='{"type": "x"}'), "bad"))
        del guide
        guide = json.dumps({"enum": ["a", 12, "bc"]})
        outputs = await collect(service.generate([1], service.params(guide=guide, max_tokens=20), "good"))
        assert json.loads(outputs[-1].outputs[0].text) in ("a", 12, "bc")

    run(body, pieces=pieces)


def test_a_step_that_fails_fails_every_request() -> None:
    async def body(service: EngineService) -> None:
        tasks = [
            asyncio.create_task(collect(service.generate([i], service.params(**LONG), str(i)))) for i in (1, 2, 50)
        ]
        for error in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(error, EngineError) and "the step loop failed" in str(error)
        assert not service.running
        assert service.load().running == service.load().waiting == 0 and service.load().batch == ()
        with pytest.raises(EngineError, match="the step loop failed"):
            await collect(service.generate([1], service.params(**LONG), "late"))
        with pytest.raises(EngineError):
            service.reset_prefix_cache()

    run(body, crash_token=50)


def test_without_a_chat_template() -> None:
    async def body(service: EngineService) -> None:
        def none(messages: object, **options: object) -> list[int]:
            raise UsageError("this model has no chat template")

        service._tokenizer.encode_chat = none  # type: ignore[method-assign, assignment]
        with pytest.raises(UsageError):
            service.encode_chat([])

    run(body)
