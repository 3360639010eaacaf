"""What `vllm bench serve --save-result --save-detailed` saves: texts in the order of the prompts, without the prompts.

With --append-result a file has one result after another: these are its epochs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from queueproof.audit.runs.model import About, Sample
from queueproof.audit.runs.readers import values
from queueproof.audit.runs.readers.files import Record

_SIGNS = ("request_throughput", "total_token_throughput")


def recognises(value: dict[str, Any]) -> bool:
    return "generated_texts" in value or all(sign in value for sign in _SIGNS)


def read(records: Iterator[Record], about: About, task: str) -> Iterator[Sample]:
    """Raises ContractError."""
    for epoch, record in enumerate(records, 1):
        where, result = record
        texts = result.get("generated_texts") if isinstance(result, dict) else None
        if not isinstance(texts, list):
            raise values.bad(where, result, "no generated_texts: save it with --save-result --save-detailed")
        about.model(result.get("model_id"))
        errors, lengths = result.get("errors") or [], result.get("input_lens") or []
        for i, text in enumerate(texts):
            failed = errors[i] if i < len(errors) and errors[i] else None
            if failed is None and not isinstance(text, str):
                raise values.bad(f"{where}, text {i + 1}", text, "a generated text is a string")
            yield Sample(
                where=f"{where}, text {i + 1}",
                task=task,
                id=None,
                epoch=epoch,
                # The length is all that tells one prompt from another here.
                answers=()
                if failed
                else (values.answer(text, prompt_tokens=lengths[i] if i < len(lengths) else None),),
                failed=str(failed).strip().splitlines()[-1] if failed else None,
            )
