"""Traces through OpenTelemetry's SDK, where it is installed and an endpoint is named.

One span for each request for an answer, with the attributes of the GenAI semantic conventions; a W3C traceparent header of
the request is continued. No prompt and no answer is in a span.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any

from queueproof.contract.errors import UsageError
from queueproof.server.extension import Extension, GenerationRecord

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

    from queueproof.server.state import AppState

OPERATIONS = {"chat": "chat", "completion": "text_completion"}
PROVIDER = "queueproof"
INSTALL = "pip install 'queueproof[otel]'"


def open_tracing(endpoint: str, model_name: str, build: str) -> TracingExtension:
    """Sends spans in batches to `endpoint`, the full URL of an OTLP receiver over HTTP (".../v1/traces").

    Sampling, headers and batch sizes are the SDK's own OTEL_* settings. Raises UsageError where the SDK is not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise UsageError(f"traces need OpenTelemetry's SDK, which is not installed ({error}): {INSTALL}") from None
    resource = Resource.create({"service.name": PROVIDER, "service.version": build})
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    return TracingExtension(provider, model_name, build)


class TracingExtension(Extension):
    """Makes the span of a request when it has ended, with the times at which things happened.

    It owns the provider: what is not sent yet is sent when the server stops.
    """

    def __init__(self, provider: TracerProvider, model_name: str, build: str) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider, self._model = provider, model_name
        self._tracer = provider.get_tracer("queueproof.server", build)
        self._propagator = TraceContextTextMapPropagator()

    def running(self, state: AppState) -> AbstractAsyncContextManager[None]:
        return self._until_stop()

    @asynccontextmanager
    async def _until_stop(self) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await asyncio.to_thread(self._provider.shutdown)  # it may wait for the network

    def finished(self, record: GenerationRecord) -> None:
        from opentelemetry.trace import SpanKind, Status, StatusCode

        now = time.monotonic()
        epoch = time.time_ns() - int(now * 1e9)  # of the monotonic clock

        def at(moment: float) -> int:
            return epoch + int(moment * 1e9)

        span = self._tracer.start_span(
            f"{OPERATIONS[record.kind]} {self._model}",
            context=self._propagator.extract(record.headers),
            kind=SpanKind.SERVER,
            attributes=self._attributes(record),
            start_time=at(record.arrival),
        )
        if record.scheduled is not None:
            span.add_event("scheduled", timestamp=at(record.scheduled))
        if record.first_token is not None:
            span.add_event("first_token", timestamp=at(record.first_token))
        if record.outcome not in ("ok", "disconnect"):  # a client that leaves is no error of the server
            span.set_status(Status(StatusCode.ERROR))
        span.end(at(now if record.finished is None else record.finished))

    def _attributes(self, record: GenerationRecord) -> dict[str, Any]:
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": OPERATIONS[record.kind],
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.request.model": self._model,
            "gen_ai.request.max_tokens": record.max_tokens,
            "gen_ai.request.stream": record.stream,
            "gen_ai.response.id": record.response_id,
            "gen_ai.response.model": self._model,
            "gen_ai.response.finish_reasons": tuple(record.finish_reasons),
            "gen_ai.usage.input_tokens": record.prompt_tokens,
            "gen_ai.usage.cache_read.input_tokens": record.cached_tokens,
            "gen_ai.usage.output_tokens": record.generated_tokens,
            "queueproof.class": record.class_.value,
            "queueproof.arithmetic": record.arithmetic,
            "queueproof.request_id": record.request_id,
            "queueproof.outcome": record.outcome,
        }
        if record.n != 1:
            attributes["gen_ai.request.choice.count"] = record.n
        if record.first_token is not None:
            attributes["gen_ai.response.time_to_first_chunk"] = record.first_token - record.arrival
        if record.outcome != "ok":
            attributes["error.type"] = record.error or record.outcome
        return attributes
