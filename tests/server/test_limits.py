"""Limits of size, number and time; and that whatever ends a request gives back what it held."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest

from queueproof.server.extension import Extension, GenerationRecord
from queueproof.server.limits import Interrupted, Shutdown, Watch
from tests.support.fake_engine import FakeEngine
from tests.support.serving import (
    CHAT,
    COMPLETIONS,
    HELLO,
    NumberedReceipts,
    app_of,
    client_of,
    error_of,
    events,
    post,
    request,
    run,
)

JSON = {"Content-Type": "application/json"}


class Recorder(Extension):
    """All that extensions are told, in order."""

    def __init__(self) -> None:
        self.started_records: list[GenerationRecord] = []
        self.records: list[GenerationRecord] = []
        self.steps: list[tuple[int, float | None, float]] = []

    def started(self, record: GenerationRecord) -> None:
        assert record.engine_ids and record.prompt_tokens and record.max_tokens
        self.started_records.append(record)

    def tokens(self, record: GenerationRecord, count: int, before: float | None, now: float) -> None:
        self.steps.append((count, before, now))

    def finished(self, record: GenerationRecord) -> None:
        assert record.finished is not None
        self.records.append(record)


def test_a_body_may_have_just_as_many_bytes_as_the_limit() -> None:
    body = json.dumps({"messages": HELLO, "max_tokens": 1}).encode()
    app = app_of(FakeEngine(), max_body=len(body))
    assert request(app, "POST", CHAT, content=body, headers=JSON).status_code == 200
    got = request(app, "POST", CHAT, content=body + b" ", headers=JSON)
    assert error_of(got, 413)["code"] == "body_too_large" and got.headers["connection"] == "close"


def test_a_body_without_a_length_is_cut_off_while_it_comes() -> None:
    sent = 0

    async def endless() -> AsyncGenerator[bytes, None]:
        nonlocal sent
        while True:
            sent += 1000
            yield b" " * 1000

    app = app_of(FakeEngine(), max_body=10_000)
    error_of(request(app, "POST", CHAT, content=endless(), headers=JSON), 413)
    assert sent == 11_000


def test_a_body_that_does_not_come_is_408() -> None:
    async def stuck() -> AsyncGenerator[bytes, None]:
        yield b"{"
        await asyncio.Event().wait()

    app = app_of(FakeEngine(), body_timeout=0.05)
    assert error_of(request(app, "POST", CHAT, content=stuck(), headers=JSON), 408)["code"] == "body_timeout"


def test_bodies_in_hand_have_a_limit_together() -> None:
    async def work() -> None:
        go = asyncio.Event()

        async def slow() -> AsyncGenerator[bytes, None]:
            yield b" " * 901
            await go.wait()
            yield json.dumps({"messages": HELLO, "max_tokens": 1}).encode()

        app = app_of(FakeEngine(), max_body=1000, max_bodies=1500)
        async with client_of(app) as client:
            first = asyncio.create_task(client.post(CHAT, content=slow(), headers=JSON))
            await asyncio.sleep(0.01)
            got = await client.post(CHAT, content=b" " * 600, headers=JSON)
            assert error_of(got, 429)["code"] == "server_busy" and int(got.headers["retry-after"]) >= 1
            go.set()
            assert (await first).status_code == 200
            assert (await client.post(CHAT, json={"messages": HELLO, "max_tokens": 1})).status_code == 200

    run(work())


def test_a_body_counts_until_its_answer_is_out() -> None:
    """Its text waits as long for the engine."""

    async def work() -> None:
        engine = FakeEngine(hold=asyncio.Event())
        assert engine.hold is not None
        app = app_of(engine, max_body=1000, max_bodies=1500)
        body = json.dumps({"messages": HELLO, "max_tokens": 1}).encode().ljust(900)
        async with client_of(app) as client:
            first = asyncio.create_task(client.post(CHAT, content=body, headers=JSON))
            while not engine.seen:
                await asyncio.sleep(0.001)
            assert error_of(await client.post(CHAT, content=body, headers=JSON), 429)["code"] == "server_busy"
            engine.hold.set()
            assert (await first).status_code == 200
            assert (await client.post(CHAT, content=body, headers=JSON)).status_code == 200

    run(work())


def test_who_announces_much_and_sends_nothing_takes_no_room() -> None:
    async def work() -> None:
        async def stuck() -> AsyncGenerator[bytes, None]:
            yield b"{"
            await asyncio.Event().wait()

        app = app_of(FakeEngine(), max_body=1000, max_bodies=1500, body_timeout=5.0)
        announcing = JSON | {"Content-Length": "1000"}
        async with client_of(app) as client:
            waiting = [asyncio.create_task(client.post(CHAT, content=stuck(), headers=announcing)) for _ in range(20)]
            await asyncio.sleep(0.05)
            assert (await client.post(CHAT, json={"messages": HELLO, "max_tokens": 1})).status_code == 200
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    run(work())


def test_more_than_may_wait_is_429_until_there_is_room() -> None:
    async def work() -> None:
        engine = FakeEngine(max_num_seqs=2, hold=asyncio.Event())
        assert engine.hold is not None
        app = app_of(engine, max_waiting=3, retry_after=2.5)
        async with client_of(app) as client:
            body = {"messages": HELLO, "max_tokens": 1}
            running = [asyncio.create_task(client.post(CHAT, json=body)) for _ in range(5)]
            while len(engine.active) < 5:
                await asyncio.sleep(0.001)
            for stream in (False, True):
                got = await client.post(CHAT, json=body | {"stream": stream})
                assert error_of(got, 429)["code"] == "server_busy" and got.headers["retry-after"] == "3"
            assert (await client.get("/v1/models")).status_code == 200
            engine.hold.set()
            assert [(await task).status_code for task in running] == [200] * 5
            assert (await client.post(CHAT, json=body)).status_code == 200

    run(work())


def test_two_engines_have_queues_of_their_own() -> None:
    async def work() -> None:
        engine, vendor = FakeEngine(max_num_seqs=1, hold=asyncio.Event()), FakeEngine(arithmetic="vendor")
        app = app_of(engine, vendor, max_waiting=0)
        async with client_of(app) as client:
            body = {"messages": HELLO, "max_tokens": 1}
            first = asyncio.create_task(client.post(CHAT, json=body))
            while not engine.active:
                await asyncio.sleep(0.001)
            error_of(await client.post(CHAT, json=body), 429)
            assert (await client.post(CHAT, json=body | {"determinism": "best-effort"})).status_code == 200
            assert engine.hold is not None
            engine.hold.set()
            assert (await first).status_code == 200

    run(work())


def test_a_request_larger_than_the_queue_runs_when_nothing_else_does() -> None:
    app = app_of(FakeEngine(max_num_seqs=1), max_waiting=1)
    got = post(app, COMPLETIONS, prompt=["a", "b"], n=4, max_tokens=1)
    assert len(got.json()["choices"]) == 8


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_after_the_deadline_there_is_no_answer(path: str) -> None:
    recorder, receipts = Recorder(), NumberedReceipts()
    engine = FakeEngine(step=0.01)
    app = app_of(engine, receipts=receipts, extensions=[recorder], deadline=0.1)
    body: dict[str, Any] = {"messages": HELLO} if path == CHAT else {"prompt": ["a", "b"]}
    assert error_of(post(app, path, max_tokens=400, **body), 504)["code"] == "deadline_exceeded"
    assert all(seen.ended == "aborted" for seen in engine.seen)
    got = post(app, path, max_tokens=400, stream=True, **body)
    *chunks, last = events(got.text)
    assert got.status_code == 200 and len(chunks) > 2 and last["error"]["code"] == "deadline_exceeded"
    assert all(choice["finish_reason"] is None for chunk in chunks for choice in chunk["choices"])
    assert not engine.active and not receipts.kept
    assert [(r.outcome, r.error) for r in recorder.records] == [("deadline", "deadline_exceeded")] * 2


def test_a_deadline_in_the_queue_is_504() -> None:
    async def work() -> None:
        engine = FakeEngine(hold=asyncio.Event())
        async with client_of(app_of(engine, deadline=0.05)) as client:
            for stream in (False, True):
                body = {"messages": HELLO, "stream": stream}
                assert error_of(await client.post(CHAT, json=body), 504)["code"] == "deadline_exceeded"
        assert not engine.active and len(engine.seen) == 2

    run(work())


def test_no_deadline_is_possible() -> None:
    assert post(app_of(FakeEngine(), deadline=None), CHAT, messages=HELLO, max_tokens=2).status_code == 200


def test_a_server_that_ends_lets_answers_end_and_takes_no_new_ones() -> None:
    async def work(grace: float) -> list[httpx.Response]:
        engine = FakeEngine(step=0.01, script=lambda *_: b"x" * 20)
        app = app_of(engine)
        async with client_of(app) as client:
            body = {"messages": HELLO, "max_tokens": 20}
            running = [
                asyncio.create_task(client.post(CHAT, json=body | {"stream": stream})) for stream in (False, True)
            ]
            while len(engine.active) < 2 or not all(seen.made for seen in engine.active):
                await asyncio.sleep(0.001)
            app.state.queueproof.shutdown.begin(grace)
            assert error_of(await client.post(CHAT, json=body), 503)["code"] == "shutting_down"
            assert (await client.get("/health")).status_code == 503
            got = [await task for task in running]
            assert not engine.active
            return got

    whole, stream = run(work(10.0))
    assert whole.status_code == 200 and events(stream.text)[-1] == "[DONE]"
    whole, stream = run(work(0.03))
    assert error_of(whole, 503)["code"] == "shutting_down"
    assert events(stream.text)[-1]["error"]["code"] == "shutting_down"


def test_extensions_hear_of_every_request() -> None:
    recorder = Recorder()
    engine = FakeEngine(cached=3, tokens_per_output=2)
    app = app_of(engine, receipts=NumberedReceipts(), extensions=[recorder])
    headers = {"X-Request-Id": "mine", "traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01"}
    got = post(app, COMPLETIONS, headers=headers, prompt=["a", "bc"], n=2, max_tokens=5, stream=False)
    (record,) = recorder.records
    assert recorder.started_records == [record]
    assert (record.request_id, record.response_id, record.kind) == ("mine", got.json()["id"], "completion")
    assert record.engine_ids == tuple(sorted(seen.request_id for seen in engine.seen))
    assert (record.prompt_tokens, record.cached_tokens, record.generated_tokens) == (5, 6, 20)
    assert (record.n, record.max_tokens, record.stream, record.outcome) == (2, 5, False, "ok")
    assert record.finish_reasons == ["length"] * 4 and len(record.receipts) == 4
    assert record.headers == {"traceparent": headers["traceparent"]}
    assert record.arrival <= record.first_token <= record.last_token <= record.finished  # type: ignore[operator]
    assert sum(count for count, _, _ in recorder.steps) == 20 and recorder.steps[0][1] is None
    assert sum(before is None for _, before, _ in recorder.steps) == 2, "each prompt has a first token"
    assert all(before <= now for _, before, now in recorder.steps if before is not None)
    post(app, COMPLETIONS, prompt="a", n=0)
    assert len(recorder.records) == 1, "what is refused was never started"


def test_a_watch_tells_why_it_ended_and_nothing_else_cancels_as_it_does() -> None:
    async def never() -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    async def gone() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def inside(receive: Any, until: float | None) -> None:
        async with Watch(receive, Shutdown(), until):
            await asyncio.sleep(30)

    async def work() -> None:
        loop = asyncio.get_running_loop()
        for receive, until, reason in ((gone, None, "disconnect"), (never, loop.time() + 0.01, "deadline")):
            with pytest.raises(Interrupted) as caught:
                await inside(receive, until)
            assert caught.value.reason == reason
        # An outer cancellation stays one.
        task = asyncio.create_task(inside(never, None))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await inside(never, None)
        async with Watch(never, Shutdown(), loop.time() + 0.02):
            pass
        await asyncio.sleep(0.04)  # the timer is gone with the watch

    run(work())
