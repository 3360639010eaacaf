"""Names, units, labels and values of the metrics."""

from __future__ import annotations

import re

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from queueproof.contract.classes import DeterminismClass
from queueproof.server.app import make_app
from queueproof.server.config import ServerConfig
from queueproof.server.metrics import PREFIX, MetricsExtension
from tests.support.fake_engine import FakeEngine, contract_of
from tests.support.records import exchange, record, tell

LABELS = {"model_name": "m", "arithmetic": "ieee/1", "class": "portable"}


def made() -> tuple[MetricsExtension, list[FakeEngine]]:
    engines = [FakeEngine(), FakeEngine("vendor")]
    return MetricsExtension(engines, contract_of(*engines), "m", "1.2.3"), engines


def value(metrics: MetricsExtension, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(PREFIX + name, labels)


# What a dashboard for vLLM asks for, with the prefix replaced.
VLLM = {
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "num_preemptions_total",
    "prompt_tokens_total",
    "generation_tokens_total",
    "request_success_total",
    "request_prompt_tokens_bucket",
    "request_generation_tokens_bucket",
    "time_to_first_token_seconds_bucket",
    "inter_token_latency_seconds_bucket",
    "request_time_per_output_token_seconds_bucket",
    "e2e_request_latency_seconds_bucket",
    "request_queue_time_seconds_bucket",
    "request_inference_time_seconds_bucket",
    "request_prefill_time_seconds_bucket",
    "request_decode_time_seconds_bucket",
    "request_params_n_bucket",
    "request_params_max_tokens_bucket",
}
OURS = {"engine_steps_total", "engine_up", "build_info", "receipts_written_total", "receipt_replays_total"}


def test_every_series_is_there_before_the_first_request() -> None:
    metrics, _ = made()
    names = {sample.name for family in metrics.registry.collect() for sample in family.samples}
    assert {PREFIX + name for name in VLLM | OURS} <= names
    for class_ in ("best-effort", "batch", "request", "portable"):
        arithmetic = "vendor" if class_ == "best-effort" else "ieee/1"
        labels = {"model_name": "m", "arithmetic": arithmetic, "class": class_}
        assert value(metrics, "receipts_written_total", **labels) == 0
        assert value(metrics, "request_success_total", **labels, finished_reason="stop") == 0


def test_names_follow_the_conventions() -> None:
    metrics, _ = made()
    for family in metrics.registry.collect():
        assert re.fullmatch(r"(queueproof|process|http)_[a-z0-9_]+", family.name), family.name
        assert family.documentation.endswith((".", ")")) or family.name.startswith("process")
        assert ":" not in family.name and not family.name.endswith(("_ms", "_millis", "_total"))
        if family.type == "histogram" and "tokens" not in family.name and "params" not in family.name:
            assert family.name.endswith("_seconds")


def test_the_life_of_a_request() -> None:
    metrics, _ = made()
    tell(metrics, record())
    assert value(metrics, "time_to_first_token_seconds_count", **LABELS) == 1
    assert value(metrics, "time_to_first_token_seconds_sum", **LABELS) == pytest.approx(0.2)
    # Two tokens that came together count as two, half of the gap each.
    assert value(metrics, "inter_token_latency_seconds_count", **LABELS) == 4
    assert value(metrics, "inter_token_latency_seconds_sum", **LABELS) == pytest.approx(0.8)
    assert value(metrics, "inter_token_latency_seconds_bucket", **LABELS, le="0.3") == 4
    assert value(metrics, "request_queue_time_seconds_sum", **LABELS) == pytest.approx(0.05)
    assert value(metrics, "request_prefill_time_seconds_sum", **LABELS) == pytest.approx(0.15)
    assert value(metrics, "request_decode_time_seconds_sum", **LABELS) == pytest.approx(0.8)
    assert value(metrics, "request_inference_time_seconds_sum", **LABELS) == pytest.approx(0.95)
    assert value(metrics, "e2e_request_latency_seconds_sum", **LABELS) == pytest.approx(1.0)
    assert value(metrics, "request_time_per_output_token_seconds_sum", **LABELS) == pytest.approx(0.2)
    assert value(metrics, "request_prompt_tokens_sum", **LABELS) == 12
    assert value(metrics, "request_generation_tokens_sum", **LABELS) == 5
    assert value(metrics, "request_params_max_tokens_sum", **LABELS) == 64
    assert value(metrics, "request_success_total", **LABELS, finished_reason="stop") == 1
    assert value(metrics, "request_outcomes_total", **LABELS, outcome="ok") == 1
    assert value(metrics, "receipts_written_total", **LABELS) == 1


def test_answers_side_by_side_wait_for_the_whole_step() -> None:
    metrics, _ = made()
    told = record(n=4, engine_ids=("a", "b"))
    metrics.tokens(told, 4, 100.0, 100.5)
    assert value(metrics, "inter_token_latency_seconds_count", **LABELS) == 4
    assert value(metrics, "inter_token_latency_seconds_sum", **LABELS) == pytest.approx(2.0)


def test_a_request_that_was_left_has_no_latency() -> None:
    metrics, _ = made()
    metrics.finished(record(outcome="disconnect", finish_reasons=["abort"], receipts=[]))
    assert value(metrics, "request_outcomes_total", **LABELS, outcome="disconnect") == 1
    assert value(metrics, "request_success_total", **LABELS, finished_reason="abort") == 1
    assert value(metrics, "e2e_request_latency_seconds_count", **LABELS) == 0
    assert value(metrics, "request_queue_time_seconds_count", **LABELS) == 1


def test_classes_and_arithmetics_are_counted_apart() -> None:
    metrics, _ = made()
    tell(metrics, record(class_=DeterminismClass.BEST_EFFORT, arithmetic="vendor"))
    assert value(metrics, "time_to_first_token_seconds_count", **LABELS) == 0
    vendor = {"model_name": "m", "arithmetic": "vendor", "class": "best-effort"}
    assert value(metrics, "time_to_first_token_seconds_count", **vendor) == 1


def test_replays() -> None:
    metrics, _ = made()
    for verdict in ("same", "same", "different", "unknown", "something new"):
        metrics.replayed(verdict, DeterminismClass.PORTABLE, own=True)
    metrics.replayed("different", DeterminismClass.PORTABLE, own=False)
    metrics.replayed("different", DeterminismClass.BEST_EFFORT, own=True)

    def found(result: str, class_: str = "portable", source: str = "own") -> float | None:
        labels = {"model_name": "m", "class": class_, "source": source, "result": result}
        return value(metrics, "receipt_replays_total", **labels)

    assert [found(result) for result in ("same", "different", "unknown")] == [2, 1, 2]
    assert found("different", source="given") == found("different", "best-effort") == 1
    assert found("same", "batch") == 0


def test_a_request_cannot_invent_a_label() -> None:
    metrics, _ = made()
    for i in range(200):
        metrics.exchange(exchange(method=f"METHOD{i}", route="", status=404))
        metrics.exchange(exchange(request_id=f"r{i}", client=f"10.0.0.{i}"))
        tell(metrics, record(request_id=f"r{i}", response_id=f"x{i}", owner=f"o{i}", finish_reasons=[f"why{i}"]))
    samples = [s for f in metrics.registry.collect() for s in f.samples if s.name.startswith(("http_requests", PREFIX))]
    assert len([s for s in samples if s.name == "http_requests_total"]) == 2
    assert not any(re.search(r"\d{3,}", v) for s in samples for k, v in s.labels.items() if k not in ("le", "status"))
    assert value(metrics, "request_success_total", **LABELS, finished_reason="error") == 200
    assert metrics.registry.get_sample_value(
        "http_requests_total", {"handler": "none", "method": "other", "status": "404"}
    ) == 200  # fmt: skip


def test_the_route() -> None:
    metrics, engines = made()
    app = make_app(ServerConfig(model_names=("m",), build="1.2.3"), engines, contract_of(*engines), None, [metrics])
    with TestClient(app) as client:
        client.get("/health")
        client.get("/nothing-here")
        engines[1].running = False
        answer = client.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=")
        families = {f.name: f for f in text_string_to_metric_families(answer.text)}
        up = {s.labels["arithmetic"]: s.value for s in families[PREFIX + "engine_up"].samples}
        assert up == {"ieee/1": 1, "vendor": 0}
        info = families[PREFIX + "build_info"].samples[0].labels
        assert info["version"] == "1.2.3" and info["class"] == "portable" and info["arithmetic"] == "ieee/1"
        assert info["model_sha256"] == "ab" * 32 and info["device"] == "fake"
        handlers = {(s.labels["handler"], s.labels["status"]) for s in families["http_requests"].samples}
        assert {("/health", "200"), ("none", "404")} <= handlers
        opened = client.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
        assert opened.headers["content-type"].startswith("application/openmetrics-text")
        assert opened.text.rstrip().endswith("# EOF")
