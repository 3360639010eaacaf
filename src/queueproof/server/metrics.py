"""Metrics in Prometheus form, at /metrics.

Names, units and labels are vLLM's with `queueproof_` in front (Prometheus keeps colons for recording rules), so that a
dashboard made for vLLM needs one replacement. Every label has few values: a request cannot invent one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from queueproof.contract.classes import DeterminismClass
from queueproof.contract.document import ContractDocument
from queueproof.server.extension import Exchange, Extension, GenerationRecord
from queueproof.server.protocol import Load, ServedEngine

PREFIX = "queueproof_"
REQUEST_LABELS = ("model_name", "arithmetic", "class")
FINISH_REASONS = ("stop", "length", "abort", "error")
OUTCOMES = ("ok", "error", "disconnect", "deadline", "shutdown")
VERDICTS = ("same", "different", "unknown")
_SOURCES = ("given", "own")
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

# Fine where an answer starts at once, and as far as one that waited in a long queue.
FIRST_TOKEN_BUCKETS = (
    0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640
)  # fmt: skip
TOKEN_BUCKETS = (
    0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1,
    2.5, 5, 10,
)  # fmt: skip
REQUEST_BUCKETS = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960,
)  # fmt: skip
COUNT_BUCKETS = tuple(m * 10**e for e in range(6) for m in (1, 2, 5))


def kv_usage(load: Load) -> float:
    """Blocks in use as a share of all, 0 to 1."""
    return load.kv_blocks_used / load.kv_blocks if load.kv_blocks else 0.0


_Table = tuple[tuple[str, str, Callable[[Load], float]], ...]
_GAUGES: _Table = (
    ("num_requests_running", "Sequences in the running batch.", lambda load: load.running),
    ("num_requests_waiting", "Sequences that wait to join the batch.", lambda load: load.waiting),
    ("kv_cache_usage_perc", "KV cache in use. 1 means 100 percent.", kv_usage),
)
_COUNTERS: _Table = (
    ("prompt_tokens", "Prompt tokens of admitted requests.", lambda load: load.prompt_tokens),
    ("generation_tokens", "Tokens generated.", lambda load: load.generated_tokens),
    (
        "prefix_cache_queries",
        "Prompt tokens looked up in the prefix cache.",
        lambda load: load.prefix_cache_query_tokens,
    ),
    ("prefix_cache_hits", "Prompt tokens found in the prefix cache.", lambda load: load.prefix_cache_hit_tokens),
    (
        "num_preemptions",
        "Sequences that gave up their blocks and were computed again.",
        lambda load: load.preemptions,
    ),
    ("engine_steps", "Steps of the engine.", lambda load: load.steps),
)


class _EngineCollector(Collector):
    """Reads the engines when a scraper asks: what they count themselves is counted nowhere else."""

    def __init__(self, engines: Sequence[ServedEngine], model_name: str) -> None:
        self._engines, self._model = engines, model_name

    def describe(self) -> Iterable[Metric]:
        return []  # an engine need not be asked for the names

    def collect(self) -> Iterable[Metric]:
        loads = [(engine, engine.load()) for engine in self._engines]
        for name, text, read in _GAUGES:
            gauge = GaugeMetricFamily(PREFIX + name, text, labels=("model_name", "arithmetic"))
            for engine, load in loads:
                gauge.add_metric((self._model, engine.arithmetic), read(load))
            yield gauge
        for name, text, read in _COUNTERS:
            counter = CounterMetricFamily(PREFIX + name, text, labels=("model_name", "arithmetic"))
            for engine, load in loads:
                counter.add_metric((self._model, engine.arithmetic), read(load))
            yield counter
        up = GaugeMetricFamily(PREFIX + "engine_up", "1 while the step loop runs.", labels=("model_name", "arithmetic"))
        for engine in self._engines:
            up.add_metric((self._model, engine.arithmetic), float(engine.running))
        yield up


@dataclass(frozen=True, slots=True)
class _Series:
    """The series of one class under one arithmetic, looked up once."""

    first_token: Histogram
    inter_token: Histogram
    per_output_token: Histogram
    end_to_end: Histogram
    queue: Histogram
    prefill: Histogram
    decode: Histogram
    inference: Histogram
    prompt_tokens: Histogram
    generation_tokens: Histogram
    max_tokens: Histogram
    choices: Histogram
    receipts: Counter


class MetricsExtension(Extension):
    """Counts in a registry of its own, so that two servers in one process stay apart."""

    def __init__(
        self, engines: Sequence[ServedEngine], contract: ContractDocument, model_name: str, build: str
    ) -> None:
        self.registry = CollectorRegistry()
        self._model = model_name
        self.registry.register(_EngineCollector(engines, model_name))
        ProcessCollector(registry=self.registry)
        self._define()
        info = Gauge(
            PREFIX + "build_info",
            "Always 1; the labels say what answers.",
            ("version", "model_name", "model_sha256", "dtype", "arithmetic", "class", "device"),
            registry=self.registry,
        )
        for engine in engines:
            model = engine.model
            info.labels(
                build, model_name, model.sha256, model.dtype, engine.arithmetic, engine.determinism_class, engine.device
            ).set(1)
        self._series: dict[tuple[str, str], _Series] = {}
        for offer in contract.offers:
            self._of(offer.arithmetic, offer.class_.value)
        for class_, source, verdict in product(DeterminismClass, _SOURCES, VERDICTS):
            self._replays.labels(model_name, class_.value, source, verdict)

    def _define(self) -> None:
        def histogram(name: str, text: str, buckets: Sequence[float]) -> Histogram:
            return Histogram(PREFIX + name, text, REQUEST_LABELS, registry=self.registry, buckets=buckets)

        def counter(name: str, text: str, labels: Sequence[str]) -> Counter:
            return Counter(name, text, labels, registry=self.registry)

        self._first_token = histogram(
            "time_to_first_token_seconds", "From arrival to the first token.", FIRST_TOKEN_BUCKETS
        )
        self._inter_token = histogram("inter_token_latency_seconds", "From one token to the next.", TOKEN_BUCKETS)
        self._per_output_token = histogram(
            "request_time_per_output_token_seconds", "Mean of a request after its first token.", TOKEN_BUCKETS
        )
        self._end_to_end = histogram("e2e_request_latency_seconds", "From arrival to the last token.", REQUEST_BUCKETS)
        self._queue = histogram("request_queue_time_seconds", "From arrival to joining a batch.", REQUEST_BUCKETS)
        self._prefill = histogram(
            "request_prefill_time_seconds", "From joining a batch to the first token.", REQUEST_BUCKETS
        )
        self._decode = histogram("request_decode_time_seconds", "From the first token to the last.", REQUEST_BUCKETS)
        self._inference = histogram(
            "request_inference_time_seconds", "From joining a batch to the last token.", REQUEST_BUCKETS
        )
        self._prompt_tokens = histogram("request_prompt_tokens", "Prompt tokens of a request.", COUNT_BUCKETS)
        self._generation_tokens = histogram("request_generation_tokens", "Tokens of an answer.", COUNT_BUCKETS)
        self._max_tokens = histogram("request_params_max_tokens", "Tokens an answer may have.", COUNT_BUCKETS)
        self._choices = histogram("request_params_n", "Answers asked for to each prompt.", (1, 2, 5, 10, 20))
        self._success = counter(
            PREFIX + "request_success", "Answers, by what ended them.", (*REQUEST_LABELS, "finished_reason")
        )
        self._outcomes = counter(
            PREFIX + "request_outcomes", "Requests for answers, by how they ended.", (*REQUEST_LABELS, "outcome")
        )
        self._receipts = counter(PREFIX + "receipts_written", "Receipts made and stored.", REQUEST_LABELS)
        self._replays = counter(
            PREFIX + "receipt_replays",
            "Receipts computed again, by verdict. own: made by this server; given: whatever a client sent.",
            ("model_name", "class", "source", "result"),
        )
        # Without a prefix, as vLLM's: these are the same for every HTTP server.
        self._http = counter("http_requests", "HTTP exchanges.", ("handler", "method", "status"))
        self._http_seconds = Histogram(
            "http_request_duration_seconds",
            "From the request's head to the last byte of the response.",
            ("handler", "method"),
            registry=self.registry,
            buckets=REQUEST_BUCKETS,
        )

    def _of(self, arithmetic: str, class_: str) -> _Series:
        series = self._series.get((arithmetic, class_))
        if series is None:
            labels = (self._model, arithmetic, class_)
            for reason in FINISH_REASONS:
                self._success.labels(*labels, reason)
            for outcome in OUTCOMES:
                self._outcomes.labels(*labels, outcome)
            series = self._series[arithmetic, class_] = _Series(
                first_token=self._first_token.labels(*labels),
                inter_token=self._inter_token.labels(*labels),
                per_output_token=self._per_output_token.labels(*labels),
                end_to_end=self._end_to_end.labels(*labels),
                queue=self._queue.labels(*labels),
                prefill=self._prefill.labels(*labels),
                decode=self._decode.labels(*labels),
                inference=self._inference.labels(*labels),
                prompt_tokens=self._prompt_tokens.labels(*labels),
                generation_tokens=self._generation_tokens.labels(*labels),
                max_tokens=self._max_tokens.labels(*labels),
                choices=self._choices.labels(*labels),
                receipts=self._receipts.labels(*labels),
            )
        return series

    def routes(self) -> Sequence[BaseRoute]:
        return (Route("/metrics", self._scrape, methods=["GET"]),)

    async def _scrape(self, request: Request) -> Response:
        """On the event loop, where the engines may be asked."""
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(self.registry), headers={"content-type": content_type, "cache-control": "no-store"})

    def tokens(self, record: GenerationRecord, count: int, before: float | None, now: float) -> None:
        series = self._of(record.arithmetic, record.class_.value)
        if before is None:
            series.first_token.observe(now - record.arrival)
            return
        each = time_per_token(record, count, now - before)
        for _ in range(count):
            series.inter_token.observe(each)

    def finished(self, record: GenerationRecord) -> None:
        series = self._of(record.arithmetic, record.class_.value)
        labels = (self._model, record.arithmetic, record.class_.value)
        for reason in record.finish_reasons:
            self._success.labels(*labels, reason if reason in FINISH_REASONS else "error").inc()
        self._outcomes.labels(*labels, record.outcome).inc()
        series.receipts.inc(len(record.receipts))
        series.prompt_tokens.observe(record.prompt_tokens)
        series.generation_tokens.observe(record.generated_tokens)
        series.max_tokens.observe(record.max_tokens)
        series.choices.observe(record.n)
        if record.scheduled is not None:
            series.queue.observe(record.scheduled - record.arrival)
        if record.outcome != "ok" or record.first_token is None or record.last_token is None:
            return  # how long an answer took that did not end by itself says nothing of the server
        series.end_to_end.observe(record.last_token - record.arrival)
        series.decode.observe(record.last_token - record.first_token)
        if record.scheduled is not None:
            series.prefill.observe(record.first_token - record.scheduled)
            series.inference.observe(record.last_token - record.scheduled)
        if record.generated_tokens > answers(record):
            rest = record.generated_tokens / answers(record) - 1
            series.per_output_token.observe((record.last_token - record.first_token) / rest)

    def exchange(self, exchange: Exchange) -> None:
        handler = exchange.route or "none"
        method = exchange.method if exchange.method in METHODS else "other"
        self._http.labels(handler, method, str(exchange.status)).inc()
        self._http_seconds.labels(handler, method).observe(exchange.seconds)

    def replayed(self, verdict: str, class_: DeterminismClass, own: bool) -> None:
        result = verdict if verdict in VERDICTS else "unknown"
        self._replays.labels(self._model, class_.value, _SOURCES[own], result).inc()


def answers(record: GenerationRecord) -> int:
    """How many answers a request asked for, over all its prompts."""
    return record.n * max(1, len(record.engine_ids))


def time_per_token(record: GenerationRecord, count: int, gap: float) -> float:
    """Seconds for each of `count` tokens that came together, `gap` after the ones before.

    The answers to one prompt grow side by side, by a token each in one step; more tokens than answers shared the gap.
    """
    return gap * min(1.0, record.n / count)
