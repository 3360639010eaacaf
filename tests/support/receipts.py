"""A made-up receipt, and ways to tamper with its JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from queueproof.contract.classes import DeterminismClass
from queueproof.contract.receipt import (
    Receipt,
    ReceiptAnswer,
    ReceiptModel,
    ReceiptSampling,
    answer_digest,
    bits_to_hex,
    prompt_digest,
    with_id,
)
from queueproof.contract.verdict import Answer, Replayer

PROMPT = (5, 1, 4_000_000_000)
ANSWER = Answer((7, 8, 9), (0xBF000000, 0xBE800000, 0x80000000), (0x41200000, 0x41100001, 0x40FFFFFF), "length")
SAMPLING = ReceiptSampling(
    temperature=0.7,
    top_k=40,
    top_p=0.95,
    min_p=0.0,
    repetition_penalty=1.1,
    presence_penalty=0.5,
    frequency_penalty=-0.25,
    seed="18446744073709551615",
    max_tokens=3,
    min_tokens=1,
    ignore_eos=False,
    include_stop_str_in_output=False,
    skip_special_tokens=True,
)
MODEL = ReceiptModel("tiny", "ab" * 32, "cd" * 32, "bfloat16")
HERE = Replayer(MODEL, "ieee/1", "any")


def a_receipt(answer: Answer = ANSWER, digests_only: bool = False, sampling: Any = None, **changes: Any) -> Receipt:
    """A sound receipt with its id. sampling: fields of ReceiptSampling that change; changes: those of Receipt."""
    bits = (answer.token_ids, answer.logprob_bits, answer.lse_bits)
    digest, tokens = answer_digest(*bits), len(answer.token_ids)
    kept = ReceiptAnswer(
        answer.finish_reason, tokens, digest, answer.token_ids, *(bits_to_hex(values) for values in bits[1:])
    )
    receipt = Receipt(
        id="",
        response_id="chatcmpl-0123456789abcdef",
        index=0,
        created=1_700_000_000,
        build="0.1.0",
        model=MODEL,
        arithmetic="ieee/1",
        family="any",
        class_=DeterminismClass.PORTABLE,
        prompt_sha256=prompt_digest(PROMPT),
        prompt_tokens=len(PROMPT),
        sampling=dataclasses.replace(SAMPLING, **(sampling or {})),
        answer=ReceiptAnswer(answer.finish_reason, tokens, digest) if digests_only else kept,
        prompt_token_ids=None if digests_only else PROMPT,
    )
    return with_id(dataclasses.replace(receipt, **changes))


def leaves(plain: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of all scalars in a JSON value."""
    if isinstance(plain, dict | list):
        for key, value in plain.items() if isinstance(plain, dict) else enumerate(plain):
            yield from leaves(value, (*path, key))
    else:
        yield path


def at(plain: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        plain = plain[key]
    return plain


def put(plain: Any, path: tuple[Any, ...], value: Any) -> None:
    at(plain, path[:-1])[path[-1]] = value
