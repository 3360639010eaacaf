"""What a server tells of requests that came through its API: metrics, log lines, spans and the page's state."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from queueproof.server.logs import JsonFormatter, LogsExtension
from queueproof.server.metrics import PREFIX, MetricsExtension
from queueproof.server.routes.page import PageExtension
from queueproof.server.timeline import label_of
from queueproof.server.tracing import TracingExtension
from tests.support.fake_engine import FakeEngine, contract_of
from tests.support.serving import CHAT, COMPLETIONS, MODEL, NumberedReceipts, app_of, client_of, run

SECRET = "the colour of my true love's hair"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
LABELS = {"model_name": MODEL, "arithmetic": "ieee/1", "class": "portable"}


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """Everything that the server logs."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger("queueproof")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield stream
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


class Watched:
    """A server with everything that watches it."""

    def __init__(self, **options: Any) -> None:
        self.engine = FakeEngine(step=0.002, cached=3, **options)
        self.metrics = MetricsExtension([self.engine], contract_of(self.engine), MODEL, "1.2.3")
        self.page = PageExtension([self.engine])
        self.spans = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.spans))
        extensions = [self.metrics, LogsExtension(), TracingExtension(provider, MODEL, "1.2.3"), self.page]
        self.app = app_of(self.engine, receipts=NumberedReceipts(), extensions=extensions)

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(PREFIX + name, LABELS | labels)


def ask(watched: Watched, path: str = CHAT, headers: dict[str, str] | None = None, **body: Any) -> httpx.Response:
    async def work() -> httpx.Response:
        async with client_of(watched.app) as client:
            given = {"messages": [{"role": "user", "content": SECRET}]} if path == CHAT else {"prompt": SECRET}
            return await client.post(path, json=given | {"max_tokens": 9} | body, headers=headers)

    return run(work())


@pytest.mark.parametrize("stream", [False, True])
def test_one_request_is_told_everywhere_and_its_words_nowhere(log: io.StringIO, stream: bool) -> None:
    watched = Watched()
    headers = {"x-request-id": "abc-1", "traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
    got = ask(watched, headers=headers, stream=stream)
    assert got.status_code == 200 and got.headers["x-request-id"] == "abc-1"
    first = json.loads(got.text.split("\n\n")[0].removeprefix("data: ")) if stream else got.json()

    assert watched.value("time_to_first_token_seconds_count") == 1
    assert watched.value("inter_token_latency_seconds_count") == 8
    assert watched.value("e2e_request_latency_seconds_count") == 1
    assert watched.value("request_generation_tokens_sum") == 9
    assert watched.value("request_success_total", finished_reason="length") == 1
    assert watched.value("request_outcomes_total", outcome="ok") == 1
    assert watched.value("receipts_written_total") == 1
    http = {"handler": CHAT, "method": "POST", "status": "200"}
    assert watched.metrics.registry.get_sample_value("http_requests_total", http) == 1

    [line] = [json.loads(line) for line in log.getvalue().splitlines() if '"event": "request"' in line]
    assert line["request_id"] == "abc-1" and line["response_id"] == first["id"] and line["trace_id"] == TRACE
    assert line["class"] == "portable" and line["arithmetic"] == "ieee/1" and line["status"] == 200
    assert line["completion_tokens"] == 9 and line["cached_tokens"] == 3 and line["stream"] is stream
    assert 0 <= line["ttft_s"] <= line["e2e_s"] <= line["duration_s"]

    [span] = watched.spans.get_finished_spans()
    assert span.context is not None and f"{span.context.trace_id:032x}" == TRACE
    state = watched.page.timeline.snapshot()
    assert label_of(first["id"]) in state and first["id"] not in state
    for told in (log.getvalue(), span.to_json(), state):
        assert SECRET not in told and "true love" not in told


def test_each_prompt_of_a_request_has_its_own_times() -> None:
    watched = Watched()
    ask(watched, COMPLETIONS, prompt=["one", "two", "three"], n=2)
    assert watched.value("time_to_first_token_seconds_count") == 3
    assert watched.value("inter_token_latency_seconds_count") == 3 * 2 * 8
    # A step takes 2 ms and more; prompts that take turns do not make it look faster.
    gaps, count = (watched.value(f"inter_token_latency_seconds_{what}") for what in ("sum", "count"))
    assert gaps is not None and count is not None and gaps / count >= 0.002
    assert watched.value("request_success_total", finished_reason="length") == 6


def test_a_request_that_fails(log: io.StringIO) -> None:
    watched = Watched(fail_at={"love": "nan"})
    got = ask(watched)
    assert got.status_code == 500
    assert watched.value("request_outcomes_total", outcome="error") == 1
    assert watched.value("e2e_request_latency_seconds_count") == 0
    [line] = [json.loads(line) for line in log.getvalue().splitlines() if '"event": "request"' in line]
    assert line["outcome"] == "error" and line["error"] == got.json()["error"]["code"] and line["status"] == 500
    assert "true love" not in log.getvalue()


def test_a_request_that_is_refused(log: io.StringIO) -> None:
    watched = Watched()
    got = ask(watched, headers={"x-request-id": "not well formed\t"}, temperatur=1)
    assert got.status_code == 400
    made = got.headers["x-request-id"]
    assert made != "not well formed" and len(made) == 32
    [line] = [json.loads(line) for line in log.getvalue().splitlines() if '"event": "request"' in line]
    assert line["request_id"] == made and line["status"] == 400 and "class" not in line
    assert watched.value("request_outcomes_total", outcome="error") == 0
    assert not watched.spans.get_finished_spans()
