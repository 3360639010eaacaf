"""A receipt binds a request to the bits of its answer, so that anyone can compute it again and compare.

It is a JSON document; `canonical.canonical_json` gives its one form (RFC 8785), and its SHA-256 names it. `docs/receipts.md`
explains every field.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from queueproof.contract.classes import DeterminismClass

RECEIPT_SCHEMA = "queueproof/receipt/1"


@dataclass(frozen=True, slots=True)
class ReceiptModel:
    """Which weights and tokenizer answered. sha256: of the weight files (`LoadedModel.digest`); tokenizer_sha256: of the
    vocabulary and its rules. dtype: the 16-bit type."""

    name: str
    sha256: str
    tokenizer_sha256: str
    dtype: str


@dataclass(frozen=True, slots=True)
class Bias:
    token: int
    value: float


@dataclass(frozen=True, slots=True)
class ReceiptSampling:
    """What chose the tokens, with every default filled in. seed: the one that was used, of this very answer.

    guide: the JSON schema that the answer had to follow. Names and meanings are those of SamplingParams.
    """

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    seed: int
    max_tokens: int
    min_tokens: int
    ignore_eos: bool
    include_stop_str_in_output: bool
    skip_special_tokens: bool
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    logit_bias: tuple[Bias, ...] = ()
    guide: str | None = None


@dataclass(frozen=True, slots=True)
class ReceiptAnswer:
    """sha256: `answer_digest`. The rest is absent where a receipt holds digests only.

    logprob_bits, lse_bits: eight hexadecimal digits for each token: the f32 log-probability of the chosen token, and the
    log-sum-exp of the logits.
    """

    finish_reason: str
    tokens: int
    sha256: str
    token_ids: tuple[int, ...] | None = None
    logprob_bits: tuple[str, ...] | None = None
    lse_bits: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Receipt:
    """id: of the receipt. response_id, index: the answer it was made for. created: seconds since 1970.

    prompt_sha256: `prompt_digest`; prompt_token_ids: None where prompts are not kept. family: the kind of matrix unit that
    the bits belong to, "any" where they belong to none. build: version of the software.
    """

    id: str
    response_id: str
    index: int
    created: int
    build: str
    model: ReceiptModel
    arithmetic: str
    family: str
    class_: DeterminismClass
    prompt_sha256: str
    prompt_tokens: int
    sampling: ReceiptSampling
    answer: ReceiptAnswer
    prompt_token_ids: tuple[int, ...] | None = None
    schema: str = RECEIPT_SCHEMA


def prompt_digest(token_ids: tuple[int, ...] | list[int]) -> str:
    """SHA-256, hex, of the ids as little-endian u32."""
    return hashlib.sha256(b"".join(token.to_bytes(4, "little") for token in token_ids)).hexdigest()
