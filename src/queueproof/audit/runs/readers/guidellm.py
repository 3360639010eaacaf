"""What guidellm saves as JSON: benchmarks, each with its requests, in the order in which they ended.

Requests have random ids; what was asked is in `request_args`, of those that were sampled.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from queueproof.audit.runs.model import About, Sample
from queueproof.audit.runs.readers import values
from queueproof.audit.runs.readers.files import Record
from queueproof.contract.errors import ContractError


def recognises(value: dict[str, Any]) -> bool:
    benchmarks = value.get("benchmarks")
    return isinstance(benchmarks, list) and all(isinstance(b, dict) and "requests" in b for b in benchmarks)


def read(records: Iterator[Record], about: About, task: str) -> Iterator[Sample]:
    """Raises ContractError."""
    for record in records:
        if not isinstance(record.value, dict) or not recognises(record.value):
            raise values.bad(record.where, record.value, "a report of guidellm has benchmarks, each with requests")
        benchmarks = record.value["benchmarks"]
        for i, benchmark in enumerate(benchmarks, 1):
            # One benchmark each is compared whatever its load was; of several, the same loads.
            name = _load(benchmark) if len(benchmarks) > 1 else task
            for status, requests in benchmark["requests"].items():
                for j, request in enumerate(requests or (), 1):
                    where = f"{record.where}, benchmark {i}, {status} request {j}"
                    try:
                        yield _sample(request, where, name, status, about)
                    except (TypeError, ValueError, KeyError, AttributeError) as error:
                        if isinstance(error, ContractError):
                            raise
                        raise values.bad(where, request, f"not a request as guidellm writes it ({error!r})") from None


def _sample(request: dict[str, Any], where: str, task: str, status: str, about: About) -> Sample:
    asked = request.get("request_args")
    asked = json.loads(asked) if isinstance(asked, str) else asked or {}
    body = asked.get("body") or {}
    about.model(body.get("model"))
    prompt = values.prompt(body.get("messages") or body.get("prompt"))
    message = {"content": request.get("output"), "reasoning": request.get("reasoning_output")}
    text = values.spoken(message | {"tool_calls": request.get("tool_calls")})
    return Sample(
        where=where,
        task=task,
        # A random id meets no other; but without it such a request would be joined by its place, which means nothing here.
        id=None if prompt else str(request.get("request_id")),
        prompt=prompt,
        prompt_digest=values.digest(prompt),
        answers=() if status != "successful" else (values.answer(text),),
        failed=None if status == "successful" else f"{status} request",
    )


def _load(benchmark: dict[str, Any]) -> str:
    strategy = (benchmark.get("config") or {}).get("strategy") or {}
    numbers = [
        f"{key} {strategy[key]}" for key in ("streams", "rate", "max_concurrency") if strategy.get(key) is not None
    ]
    return " ".join([str(strategy.get("type_") or "benchmark"), *numbers[:1]])
