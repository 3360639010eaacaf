"""Spans: names and attributes of the conventions, times, continued traces, and no text."""

from __future__ import annotations

import asyncio
import builtins
import time
from collections.abc import Mapping
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from queueproof.contract.errors import UsageError
from queueproof.server.tracing import TracingExtension, open_tracing
from tests.support.records import record

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def span_of(**changes: Any) -> ReadableSpan:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    now = time.monotonic()
    times = {"arrival": now - 2, "scheduled": now - 1.9, "first_token": now - 1.5, "last_token": now, "finished": now}
    TracingExtension(provider, "m", "1.2.3").finished(record(**(times | changes)))
    [span] = exporter.get_finished_spans()
    return span


def attributes(span: ReadableSpan) -> Mapping[str, Any]:
    assert span.attributes is not None
    return span.attributes


def test_a_span_says_what_was_asked_and_given() -> None:
    span = span_of()
    assert span.name == "chat m" and span.kind is SpanKind.SERVER
    found = attributes(span)
    assert found["gen_ai.operation.name"] == "chat" and found["gen_ai.provider.name"] == "queueproof"
    assert found["gen_ai.usage.input_tokens"] == 12 and found["gen_ai.usage.output_tokens"] == 5
    assert found["gen_ai.usage.cache_read.input_tokens"] == 8
    assert found["gen_ai.response.finish_reasons"] == ("stop",)
    assert found["gen_ai.response.time_to_first_chunk"] == pytest.approx(0.5)
    assert found["queueproof.class"] == "portable" and found["queueproof.arithmetic"] == "ieee/1"
    assert "error.type" not in found and "gen_ai.request.choice.count" not in found
    assert not any("message" in key or "content" in key for key in found)


def test_times_are_those_of_the_request() -> None:
    span = span_of()
    assert span.start_time is not None and span.end_time is not None
    assert (span.end_time - span.start_time) / 1e9 == pytest.approx(2, abs=1e-3)
    assert abs(span.end_time / 1e9 - time.time()) < 5
    events = {event.name: (event.timestamp - span.start_time) / 1e9 for event in span.events}
    assert events == {"scheduled": pytest.approx(0.1, abs=1e-3), "first_token": pytest.approx(0.5, abs=1e-3)}


def test_a_trace_is_continued() -> None:
    span = span_of(headers={"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "a=b"})
    assert span.context is not None and f"{span.context.trace_id:032x}" == TRACE
    assert span.parent is not None and f"{span.parent.span_id:016x}" == PARENT
    assert span.context.trace_state.get("a") == "b"


@pytest.mark.parametrize("header", ["", "nonsense", f"00-{'0' * 32}-{PARENT}-01"])
def test_a_malformed_parent_is_none(header: str) -> None:
    assert span_of(headers={"traceparent": header} if header else {}).parent is None


def test_errors() -> None:
    failed = span_of(kind="completion", outcome="error", error="numerical", first_token=None, n=3)
    assert failed.name == "text_completion m" and failed.status.status_code is StatusCode.ERROR
    assert attributes(failed)["error.type"] == "numerical" and attributes(failed)["gen_ai.request.choice.count"] == 3
    left = span_of(outcome="disconnect")
    assert left.status.status_code is StatusCode.UNSET and attributes(left)["error.type"] == "disconnect"


def test_what_is_not_sent_yet_is_sent_at_the_end() -> None:
    stopped = []

    class Provider(TracerProvider):
        def shutdown(self) -> None:
            stopped.append(True)

    async def live() -> None:
        async with TracingExtension(Provider(), "m", "1").running(None):  # type: ignore[arg-type]
            assert not stopped

    asyncio.run(live())
    assert stopped == [True]


def test_without_the_sdk_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    found = builtins.__import__

    def missing(name: str, *args: Any, **options: Any) -> Any:
        if name.startswith("opentelemetry"):
            raise ImportError(f"No module named {name!r}")
        return found(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(UsageError, match=r"queueproof\[otel\]"):
        open_tracing("http://127.0.0.1:4318/v1/traces", "m", "1")
