"""Pages of numbers, as servers write them."""

from queueproof.audit.client.counters import block_size, from_metrics, from_slots
from queueproof.audit.endpoint import Counters

VLLM = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 9.0
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 1.5e+03
vllm:prefix_cache_queries_created{engine="0",model_name="m"} 1.7e+09
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 512.0
vllm:num_preemptions_total{engine="0",model_name="m"} 0.0
vllm:prompt_tokens_total{engine="0",model_name="m"} 99.0
vllm:cache_config_info{block_size="128",cache_dtype="auto",engine="0"} 1.0
"""


def test_vllm() -> None:
    assert from_metrics(VLLM) == Counters(5.0, 1.0, 512.0, 1500.0, 0.0, 99.0)
    assert block_size(VLLM) == 128


def test_queueproof() -> None:
    page = VLLM.replace(b"vllm:", b"queueproof_")
    assert from_metrics(page) == Counters(5.0, 1.0, 512.0, 1500.0, 0.0, 99.0)


def test_sglang_adds_where_tokens_were_cached() -> None:
    page = b"""sglang:num_running_reqs{model_name="m"} 4.0
sglang:num_queue_reqs{model_name="m"} 0.0
sglang:cached_tokens_total{model_name="m",cache_source="device"} 30.0
sglang:cached_tokens_total{model_name="m",cache_source="host"} 12.0
sglang:prompt_tokens_total{model_name="m"} 100.0
sglang:num_retracted_requests_total{model_name="m"} 1.0
"""
    assert from_metrics(page) == Counters(4.0, 0.0, 42.0, 100.0, 1.0, 100.0)


def test_llama_cpp_counts_what_it_computed() -> None:
    page = b"""llamacpp:prompt_tokens_total 44
llamacpp:prompt_tokens_cached_total 24
llamacpp:requests_processing 2
llamacpp:requests_deferred 7
"""
    assert from_metrics(page) == Counters(2.0, 7.0, 24.0, 68.0, None, 44.0)


def test_tgi() -> None:
    page = b"tgi_batch_current_size 4\ntgi_queue_size 7\ntgi_request_input_length_sum 8123\n"
    assert from_metrics(page) == Counters(4.0, 7.0, None, None, None, 8123.0)


def test_pages_of_others() -> None:
    assert from_metrics(b"python_gc_objects_collected_total 4\n") is None
    assert from_metrics(b"<html>not found</html>") is None
    assert from_metrics(b"tgi_queue_size many\n") is None
    for size in ("None", "0", "9" * 30):
        assert block_size(b'vllm:cache_config_info{block_size="%s"} 1.0\n' % size.encode()) is None


def test_what_is_no_number_is_not_counted() -> None:
    page = b"vllm:num_requests_running NaN\nvllm:num_requests_waiting +Inf\nvllm:num_preemptions_total 2\n"
    assert from_metrics(page) == Counters(preemptions=2.0)
    assert from_slots(b"[" * 100_000) is None


def test_slots() -> None:
    assert from_slots(b'[{"id": 0, "is_processing": true}, {"id": 1, "is_processing": false}]') == Counters(running=1.0)
    assert from_slots(b'{"error": {}}') is None
    assert from_slots(b"nothing") is None
