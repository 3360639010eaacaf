"""Output of OpenAI's batch API, and of `vllm run-batch`: a line has custom_id and response.body, or an error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from queueproof.audit.runs.model import About, Sample
from queueproof.audit.runs.readers import values
from queueproof.audit.runs.readers.files import Record


def recognises(value: dict[str, Any]) -> bool:
    return "custom_id" in value and ("response" in value or "error" in value or "body" in value)


def read(records: Iterator[Record], about: About, task: str) -> Iterator[Sample]:
    """Raises ContractError."""
    for record in records:
        where, line = record
        if isinstance(line, dict) and "custom_id" in line and "body" in line and "response" not in line:
            raise values.bad(where, line, "this is the input of a batch; its output has response instead of body")
        if not isinstance(line, dict) or not recognises(line):
            raise values.bad(where, line, "a line of a batch's output has custom_id and response")
        response = line.get("response") or {}
        if not isinstance(response, dict):
            raise values.bad(where, line, "response is an object with status_code and body")
        body, failed = response.get("body"), None
        if line.get("error") or not response:
            failed = f"error: {_message(line.get('error'))}"
        elif response.get("status_code", 200) != 200:
            failed = f"HTTP {response['status_code']}: {_message(body)}"
        if failed is None and isinstance(body, dict):
            about.model(body.get("model"))
        yield Sample(
            where=where,
            task=task,
            id=str(line["custom_id"]),
            answers=() if failed else values.choices(body, where),
            failed=failed,
        )


def _message(error: Any) -> str:
    match error:
        case {"message": str(message)} | {"error": {"message": str(message)}} | str(message):
            return message
    return f"{error!r:.200}"
