"""A receipt binds a request to the bits of its answer, so that anyone can compute it again and compare.

It is a JSON document; `canonical.canonical_json` gives its one form (RFC 8785), and its SHA-256 names it. `docs/receipts.md`
explains every field; the schema is docs/receipt.schema.json.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from queueproof.contract import codec
from queueproof.contract.canonical import canonical_json, parse_json
from queueproof.contract.classes import DeterminismClass, arithmetic_class
from queueproof.contract.errors import ContractError, UnsupportedArithmetic

RECEIPT_SCHEMA = "queueproof/receipt/1"
FINISH_REASONS = ("stop", "length")
"""Of answers that have receipts: those that came to their end."""
MAX_SEED = (1 << 64) - 1
_MAX_U32 = (1 << 32) - 1
_SHA256 = re.compile("[0-9a-f]{64}")
_BITS = re.compile("[0-9a-f]{8}")
_SEED = re.compile("0|[1-9][0-9]{0,19}")
_ID = re.compile("rcpt-[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class ReceiptModel:
    """Which weights and tokenizer answered.

    sha256: of the weight files (`LoadedModel.digest`); tokenizer_sha256: of the vocabulary and its rules. dtype: the 16-bit
    type.
    """

    name: str
    sha256: str
    tokenizer_sha256: str
    dtype: str


@dataclass(frozen=True, slots=True)
class Bias:
    """What is added to the logit of a token."""

    token: int
    value: float


@dataclass(frozen=True, slots=True)
class ReceiptSampling:
    """What chose the tokens, with every default filled in. Names and meanings are those of SamplingParams.

    seed: the one that was used, of this very answer; a decimal string, since a JSON number does not hold 64 bits.
    max_tokens: the one in use. stop_token_ids and logit_bias: in ascending order of the ids.
    guide: the JSON schema that the answer had to follow, or "json"; guide_library: what enforced it, and its version.
    """

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    seed: str
    max_tokens: int
    min_tokens: int
    ignore_eos: bool
    include_stop_str_in_output: bool
    skip_special_tokens: bool
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    logit_bias: tuple[Bias, ...] = ()
    guide: str | None = None
    guide_library: str | None = None

    def options(self) -> dict[str, Any]:
        """Keywords of SamplingParams that draw the same tokens again."""
        names = [
            f.name for f in dataclasses.fields(self) if f.name not in ("seed", "logit_bias", "guide", "guide_library")
        ]
        options = {name: getattr(self, name) for name in names}
        options["seed"] = int(self.seed)
        if self.logit_bias:
            options["logit_bias"] = {bias.token: bias.value for bias in self.logit_bias}
        if self.guide is not None:
            options["guide"] = self.guide
        return options


@dataclass(frozen=True, slots=True)
class ReceiptAnswer:
    """The bits of the answer, or their digest alone.

    sha256: `answer_digest`. token_ids and the bits are absent where a receipt holds digests only.

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
    """One answer: which request it belongs to, how it was computed, and its bits.

    id: `receipt_id`. response_id, index: the answer it was made for. created: seconds since 1970.

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

    @property
    def handle(self) -> str:
        """The beginning of the id, which may be shown to anybody: it names the receipt and does not open it."""
        return handle_of(self.id)

    def to_json(self) -> str:
        """The canonical form."""
        return canonical_json(codec.to_plain(self)).decode()


@dataclass(frozen=True, slots=True)
class Signature:
    """Ed25519 over the canonical form of the receipt, its id included.

    value: 64 bytes in base64. key_id: the first 16 hexadecimal digits of the SHA-256 of the public key's 32 bytes.
    """

    key_id: str
    value: str


@dataclass(frozen=True, slots=True)
class ReceiptDocument:
    """A receipt as it is kept and handed out, with its signature beside it where there is one."""

    receipt: Receipt
    signature: Signature | None = None

    def to_json(self) -> str:
        """The canonical form."""
        return canonical_json(codec.to_plain(self)).decode()


def prompt_digest(token_ids: Sequence[int]) -> str:
    """SHA-256, hex, of the ids as little-endian u32."""
    return hashlib.sha256(_words(token_ids)).hexdigest()


def answer_digest(token_ids: Sequence[int], logprob_bits: Sequence[int], lse_bits: Sequence[int]) -> str:
    """SHA-256, hex, of three runs of little-endian u32 of one length: all ids, all logprob bits, all lse bits."""
    return hashlib.sha256(_words(token_ids) + _words(logprob_bits) + _words(lse_bits)).hexdigest()


def receipt_id(receipt: Receipt) -> str:
    """ "rcpt-" and the first 32 hexadecimal digits of the SHA-256 of the canonical form without the key `id`."""
    plain = codec.to_plain(receipt)
    del plain["id"]
    return f"rcpt-{hashlib.sha256(canonical_json(plain)).hexdigest()[:32]}"


def with_id(receipt: Receipt) -> Receipt:
    """The receipt with the id of its content."""
    return dataclasses.replace(receipt, id=receipt_id(receipt))


def is_receipt_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


def handle_of(receipt_id: str) -> str:
    return receipt_id.removeprefix("rcpt-")[:8]


def bits_to_hex(values: Iterable[int]) -> tuple[str, ...]:
    """Each u32 as eight hexadecimal digits."""
    return tuple(f"{value:08x}" for value in values)


def hex_to_bits(digits: Iterable[str]) -> tuple[int, ...]:
    return tuple(int(text, 16) for text in digits)


def read_document(source: str | bytes | object) -> ReceiptDocument:
    """A receipt, or {"receipt": ..., "signature": ...}, from JSON text or from what was parsed; checked (`check`).

    Raises ContractError: not JSON, another schema, unknown or missing keys, wrong types, or parts that do not agree.
    The signature is not looked at.
    """
    plain = parse_json(source) if isinstance(source, str | bytes) else source
    if not isinstance(plain, dict):
        raise ContractError(f"a receipt is an object, not {plain!r:.60}")
    if "receipt" not in plain:
        plain = {"receipt": plain}
    inner = plain["receipt"]
    if isinstance(inner, dict) and inner.get("schema") != RECEIPT_SCHEMA:
        # First of all checks: another version may well have other keys.
        raise ContractError(f"receipt of schema {inner.get('schema')!r}; this reader knows {RECEIPT_SCHEMA!r}")
    document = codec.from_plain(ReceiptDocument, plain)
    check(document.receipt)
    return document


def check(receipt: Receipt) -> None:
    """Raises ContractError, naming all of it, if a field is malformed or if parts of the receipt do not agree."""
    wrong = list(_malformed(receipt))
    if not wrong:  # digests of what is malformed mean nothing
        wrong = list(_disagreeing(receipt))
    if wrong:
        raise ContractError(f"the receipt does not hold together: {'; '.join(wrong)}")


def _malformed(receipt: Receipt) -> Iterator[str]:
    answer, sampling = receipt.answer, receipt.sampling
    digests = {
        "model.sha256": receipt.model.sha256,
        "model.tokenizer_sha256": receipt.model.tokenizer_sha256,
        "prompt_sha256": receipt.prompt_sha256,
        "answer.sha256": answer.sha256,
    }
    yield from (f"{name} is no SHA-256" for name, text in digests.items() if not _SHA256.fullmatch(text))
    if not is_receipt_id(receipt.id):
        yield f"{receipt.id!r:.60} is no id of a receipt"
    if not _SEED.fullmatch(sampling.seed) or int(sampling.seed) > MAX_SEED:
        yield "sampling.seed is no decimal number from 0 to 2^64 - 1"
    if answer.finish_reason not in FINISH_REASONS:
        yield f"answer.finish_reason is {answer.finish_reason!r:.40}, not {' or '.join(FINISH_REASONS)}"
    if answer.tokens < 1 or receipt.prompt_tokens < 1:
        yield "a prompt and an answer have at least one token"
    if min(receipt.index, receipt.created, sampling.max_tokens, sampling.min_tokens) < 0:
        yield "index, created, max_tokens and min_tokens are not negative"
    parts = (answer.token_ids, answer.logprob_bits, answer.lse_bits)
    if len({part is None for part in parts}) > 1:
        yield "token_ids, logprob_bits and lse_bits of an answer are there together or not at all"
    ids = {"prompt_token_ids": receipt.prompt_token_ids, "answer.token_ids": answer.token_ids}
    for name, values in ids.items():
        yield from _each(name, values, lambda token: 0 <= token <= _MAX_U32, "a token id")
    bits = {"answer.logprob_bits": answer.logprob_bits, "answer.lse_bits": answer.lse_bits}
    for name, digits in bits.items():
        yield from _each(name, digits, lambda text: _BITS.fullmatch(text) is not None, "eight hexadecimal digits")


def _each(name: str, values: Sequence[Any] | None, good: Callable[[Any], bool], what: str) -> Iterator[str]:
    bad = next((i for i, value in enumerate(values or ()) if not good(value)), None)
    if bad is not None:
        yield f"{name}[{bad}] is not {what}"


def _disagreeing(receipt: Receipt) -> Iterator[str]:
    answer, prompt = receipt.answer, receipt.prompt_token_ids
    if receipt_id(receipt) != receipt.id:
        yield "the id is not that of the content"
    if prompt is not None:
        if len(prompt) != receipt.prompt_tokens:
            yield f"prompt_tokens is {receipt.prompt_tokens}, and there are {len(prompt)} ids"
        if prompt_digest(prompt) != receipt.prompt_sha256:
            yield "prompt_sha256 is not that of prompt_token_ids"
    if answer.token_ids is not None and answer.logprob_bits is not None and answer.lse_bits is not None:
        counts = {answer.tokens, len(answer.token_ids), len(answer.logprob_bits), len(answer.lse_bits)}
        if len(counts) > 1:
            yield f"answer.tokens and the lists of the answer have different lengths: {sorted(counts)}"
        bits = hex_to_bits(answer.logprob_bits), hex_to_bits(answer.lse_bits)
        if answer_digest(answer.token_ids, *bits) != answer.sha256:
            yield "answer.sha256 is not that of the token ids, logprob bits and lse bits"
    if answer.tokens > receipt.sampling.max_tokens:
        yield f"the answer has {answer.tokens} tokens, and max_tokens is {receipt.sampling.max_tokens}"
    try:
        best = arithmetic_class(receipt.arithmetic)
    except UnsupportedArithmetic:
        return  # of a later version: what it promises is not known here
    if not best.satisfies(receipt.class_):
        yield f"{receipt.arithmetic} cannot promise the class {receipt.class_.value}"


def _words(values: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


def receipt_schema() -> dict[str, Any]:
    """The JSON schema (2020-12) of a receipt."""
    return codec.document_schema(Receipt, "Queueproof receipt", RECEIPT_SCHEMA)


def receipt_schema_text() -> str:
    """`receipt_schema()` as docs/receipt.schema.json holds it."""
    return codec.schema_text(receipt_schema())
