"""A server's own numbers: which lines of its metrics page are wanted, and how they are read.

Only these lines are looked for: the page is read many times a second, and parsing all of it costs the client more than the
server takes to write it. A name may come several times, for engines or ranks; they are added.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping

from queueproof.audit.endpoint import Counters

# Under the name of each field of Counters: the names that servers have for it. One server has one of them, and where
# versions differ the newer is first.
NAMES: Mapping[str, tuple[str, ...]] = {
    "running": (
        "vllm:num_requests_running",
        "queueproof_num_requests_running",
        "sglang:num_running_reqs",
        "llamacpp:requests_processing",
        "tgi_batch_current_size",
    ),
    "waiting": (
        "vllm:num_requests_waiting",
        "queueproof_num_requests_waiting",
        "sglang:num_queue_reqs",
        "llamacpp:requests_deferred",
        "tgi_queue_size",
    ),
    "cache_hit_tokens": (
        "vllm:prefix_cache_hits_total",
        "vllm:gpu_prefix_cache_hits_total",
        "queueproof_prefix_cache_hits_total",
        "sglang:cached_tokens_total",
        "llamacpp:prompt_tokens_cached_total",
    ),
    "cache_query_tokens": (
        "vllm:prefix_cache_queries_total",
        "vllm:gpu_prefix_cache_queries_total",
        "queueproof_prefix_cache_queries_total",
        "sglang:prompt_tokens_total",
    ),
    "preemptions": (
        "vllm:num_preemptions_total",
        "queueproof_num_preemptions_total",
        "sglang:num_retracted_requests_total",
        "sglang:num_retracted_reqs_total",
    ),
    "prompt_tokens": (
        "vllm:prompt_tokens_total",
        "queueproof_prompt_tokens_total",
        "sglang:prompt_tokens_total",
        "llamacpp:prompt_tokens_total",
        "tgi_request_input_length_sum",
    ),
}
_WANTED = sorted({name for names in NAMES.values() for name in names})
_LARGEST_BLOCK = 1 << 20  # tokens
_LINE = re.compile(
    b"^(" + b"|".join(re.escape(name.encode()) for name in _WANTED) + rb")(?:\{[^\n]*\})?[ \t]+([^ \t\n]+)",
    re.MULTILINE,
)
_BLOCK = re.compile(rb'^vllm:cache_config_info\{[^\n]*\bblock_size="(\d{1,9})"', re.MULTILINE)


def from_metrics(page: bytes) -> Counters | None:
    """The numbers of a page in Prometheus' text form. None where it has none of them."""
    sums: dict[str, float] = {}
    for found in _LINE.finditer(page):
        try:
            value = float(found[2])
        except ValueError:
            continue
        if not math.isfinite(value):  # of a gauge that has no number yet
            continue
        name = found[1].decode()
        sums[name] = sums.get(name, 0.0) + value
    if not sums:
        return None
    values = {key: next((sums[n] for n in names if n in sums), None) for key, names in NAMES.items()}
    if values["cache_query_tokens"] is None and "llamacpp:prompt_tokens_cached_total" in sums:
        # Its prompt_tokens_total are those that were computed.
        values["cache_query_tokens"] = sums["llamacpp:prompt_tokens_cached_total"] + (values["prompt_tokens"] or 0.0)
    return Counters(**values)


def from_slots(page: bytes) -> Counters | None:
    """The numbers of llama.cpp's /slots: how many of them work."""
    try:
        slots = json.loads(page)
        return Counters(running=float(sum(bool(slot["is_processing"]) for slot in slots)))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def block_size(page: bytes) -> int | None:
    """Tokens of a KV block, of vLLM's metrics page."""
    found = _BLOCK.search(page)
    return a_block(int(found[1])) if found else None


def a_block(size: object) -> int | None:
    """What a server says of its block size, if it is one."""
    return size if type(size) is int and 1 <= size <= _LARGEST_BLOCK else None
