"""What a replay says about a receipt: the answer is the same, it differs, or this replay cannot tell, and why."""

from __future__ import annotations

import dataclasses
import math
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import index
from typing import Any, Protocol, SupportsIndex

from queueproof.contract import codec
from queueproof.contract.axes import Axis
from queueproof.contract.classes import DeterminismClass
from queueproof.contract.errors import CannotTell, ContractError
from queueproof.contract.receipt import Receipt, ReceiptModel, answer_digest, hex_to_bits, prompt_digest


class Outcome(StrEnum):
    SAME = "same"
    DIFFERENT = "different"
    UNKNOWN = "unknown"


class What(StrEnum):
    """What differs first. At one step the token is looked at before its log-probability, and that before the lse.

    LENGTH: one answer goes on where the other has ended. DIGEST: all that a receipt without the answer can say.
    """

    TOKEN = "token"
    LOGPROB = "logprob"
    LSE = "lse"
    LENGTH = "length"
    FINISH_REASON = "finish_reason"
    DIGEST = "digest"


class Computed(Protocol):
    """A finished answer of an engine."""

    @property
    def token_ids(self) -> Sequence[int]: ...
    @property
    def logprob_bits(self) -> Iterable[SupportsIndex]: ...
    @property
    def lse_bits(self) -> Iterable[SupportsIndex]: ...
    @property
    def finish_reason(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer that was computed again. Bits are those of f32 as u32, one for each token.

    finish_reason: those of receipts, and "error" where the model gave no numbers.
    """

    token_ids: tuple[int, ...]
    logprob_bits: tuple[int, ...]
    lse_bits: tuple[int, ...]
    finish_reason: str

    @classmethod
    def of(cls, computed: Computed) -> Answer:
        """Pre: it is finished."""
        assert computed.finish_reason is not None
        logprobs, lses = (tuple(map(index, bits)) for bits in (computed.logprob_bits, computed.lse_bits))
        return cls(tuple(computed.token_ids), logprobs, lses, computed.finish_reason)


@dataclass(frozen=True, slots=True)
class Side:
    """One of two answers, at the step where they part.

    tokens, finish_reason: of the whole answer. The rest is absent where the answer has no such step or is not known.
    token: the text of token_id. logprob, lse: the values of the bits, absent if they are no finite numbers.
    """

    tokens: int
    finish_reason: str
    token_id: int | None = None
    token: str | None = None
    logprob: float | None = None
    logprob_bits: str | None = None
    lse: float | None = None
    lse_bits: str | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """step: counts tokens of the answer from 0; None where only digests could be compared."""

    what: What
    receipt: Side
    replay: Side
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """reason: why the replay cannot tell. difference: may be there also then, where a difference proves nothing."""

    outcome: Outcome
    reason: str | None = None
    difference: Difference | None = None

    @classmethod
    def unknown(cls, reason: str) -> Verdict:
        return cls(Outcome.UNKNOWN, reason)

    def to_plain(self) -> dict[str, Any]:
        """As JSON has it: {"verdict": "same" | "different" | "unknown", "reason": ..., "difference": ...}."""
        plain: dict[str, Any] = codec.to_plain(self)
        return {"verdict": plain.pop("outcome")} | plain

    @classmethod
    def from_plain(cls, plain: object) -> Verdict:
        """Raises ContractError."""
        if not isinstance(plain, dict) or "verdict" not in plain:
            raise ContractError(f"a verdict is an object with the key verdict, not {plain!r:.60}")
        return codec.from_plain(cls, {"outcome" if key == "verdict" else key: v for key, v in plain.items()}, "verdict")

    def with_text(self, decode: Callable[[list[int]], str]) -> Verdict:
        """With the text of the tokens that differ. decode: token ids to text."""
        if self.difference is None:
            return self
        sides = (self.difference.receipt, self.difference.replay)
        receipt, replay = (
            side if side.token_id is None else dataclasses.replace(side, token=decode([side.token_id]))
            for side in sides
        )
        return dataclasses.replace(
            self, difference=dataclasses.replace(self.difference, receipt=receipt, replay=replay)
        )


@dataclass(frozen=True, slots=True)
class Replayer:
    """What computes an answer again. family: of matrix units, "any" where bits do not depend on them.

    guide_library: name and version of what enforces JSON schemas, None where it is not installed.
    """

    model: ReceiptModel
    arithmetic: str
    family: str
    guide_library: str | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What to compute. options: keywords of SamplingParams."""

    prompt_token_ids: tuple[int, ...]
    options: dict[str, Any]


def plan(receipt: Receipt, replayer: Replayer, prompt_token_ids: Sequence[int] | None = None) -> Plan:
    """How to compute the answer of a receipt again.

    prompt_token_ids: for receipts that do not hold the prompt; checked against the digest where given.
    Raises CannotTell where the answer of this replayer would say nothing about the receipt, or there is no prompt.
    """
    _require_comparable(receipt, replayer)
    prompt = _prompt(receipt, prompt_token_ids)
    return Plan(prompt, receipt.sampling.options() | {"max_tokens": enough_tokens(receipt)})


def enough_tokens(receipt: Receipt) -> int:
    """max_tokens of a replay. Where the receipt's answer ended earlier than it had to, one token more is a difference
    already, whatever follows."""
    sampling = receipt.sampling
    return min(sampling.max_tokens, max(receipt.answer.tokens + 1, sampling.min_tokens))


def judge(receipt: Receipt, answer: Answer, replayer: Replayer) -> Verdict:
    """Whether an answer, computed as planned, is the receipt's. A difference counts where the class promised that there
    is none."""
    found = compare(receipt, answer)
    if found is None:
        return Verdict(Outcome.SAME)
    if not receipt.class_.satisfies(DeterminismClass.REQUEST):
        promised = ", ".join(axis.value for axis in Axis if axis in receipt.class_.axes) or "nothing"
        reason = (
            f"the answers differ, and that proves nothing: the class {receipt.class_.value} promises {promised}, "
            "and a replay changes more"
        )
        return Verdict(Outcome.UNKNOWN, reason, found)
    if receipt.sampling.guide is not None and receipt.sampling.guide_library != replayer.guide_library:
        reason = (
            f"the answers differ, and the JSON schema was enforced by {receipt.sampling.guide_library}, here it is "
            f"{replayer.guide_library}: they may allow other tokens"
        )
        return Verdict(Outcome.UNKNOWN, reason, found)
    return Verdict(Outcome.DIFFERENT, None, found)


def compare(receipt: Receipt, answer: Answer) -> Difference | None:
    """The first difference in bits, or None. Nothing else about the receipt is looked at."""
    old = receipt.answer
    if old.token_ids is None or old.logprob_bits is None or old.lse_bits is None:
        return _compare_digests(receipt, answer)
    recorded = Answer(old.token_ids, hex_to_bits(old.logprob_bits), hex_to_bits(old.lse_bits), old.finish_reason)
    columns = (
        (What.TOKEN, recorded.token_ids, answer.token_ids),
        (What.LOGPROB, recorded.logprob_bits, answer.logprob_bits),
        (What.LSE, recorded.lse_bits, answer.lse_bits),
    )
    shared = min(len(recorded.token_ids), len(answer.token_ids))
    for step in range(shared):
        for what, theirs, ours in columns:
            if theirs[step] != ours[step]:
                return _difference(what, recorded, answer, step)
    if len(recorded.token_ids) != len(answer.token_ids):
        return _difference(What.LENGTH, recorded, answer, shared)
    if recorded.finish_reason != answer.finish_reason:
        return _difference(What.FINISH_REASON, recorded, answer, shared)
    return None


def _compare_digests(receipt: Receipt, answer: Answer) -> Difference | None:
    old = receipt.answer
    what = None
    if old.tokens != len(answer.token_ids):
        what = What.LENGTH
    elif old.sha256 != answer_digest(answer.token_ids, answer.logprob_bits, answer.lse_bits):
        what = What.DIGEST
    elif old.finish_reason != answer.finish_reason:
        what = What.FINISH_REASON
    if what is None:
        return None
    return Difference(what, Side(old.tokens, old.finish_reason), Side(len(answer.token_ids), answer.finish_reason))


def _difference(what: What, recorded: Answer, answer: Answer, step: int) -> Difference:
    return Difference(what, _side(recorded, step), _side(answer, step), step)


def _side(answer: Answer, step: int) -> Side:
    tokens = len(answer.token_ids)
    if step >= tokens:
        return Side(tokens, answer.finish_reason)
    logprob, lse = answer.logprob_bits[step], answer.lse_bits[step]
    return Side(
        tokens,
        answer.finish_reason,
        token_id=answer.token_ids[step],
        logprob=_value(logprob),
        logprob_bits=f"{logprob:08x}",
        lse=_value(lse),
        lse_bits=f"{lse:08x}",
    )


def _value(bits: int) -> float | None:
    (value,) = struct.unpack("<f", struct.pack("<I", bits))
    return value if math.isfinite(value) else None


def _require_comparable(receipt: Receipt, replayer: Replayer) -> None:
    theirs, ours = receipt.model, replayer.model
    if receipt.arithmetic != replayer.arithmetic:
        raise CannotTell(
            f"the receipt is of the arithmetic {receipt.arithmetic}, this is {replayer.arithmetic}; their bits differ by "
            "definition"
        )
    if Axis.DEVICE not in receipt.class_.axes and receipt.family != replayer.family:
        raise CannotTell(
            f"the receipt's bits belong to matrix units of the family {receipt.family}, here they are {replayer.family}; "
            f"the class {receipt.class_.value} does not promise that other devices give the same"
        )
    if theirs.dtype != ours.dtype:
        raise CannotTell(f"the receipt's model ran in {theirs.dtype}, this one runs in {ours.dtype}")
    if theirs.sha256 != ours.sha256:
        raise CannotTell(
            f"another model: the receipt is of {theirs.name} with the digest {theirs.sha256[:12]}…, this is {ours.name} "
            f"with {ours.sha256[:12]}…"
        )
    if theirs.tokenizer_sha256 != ours.tokenizer_sha256:
        raise CannotTell(
            f"another tokenizer: the receipt's has the digest {theirs.tokenizer_sha256[:12]}…, this one "
            f"{ours.tokenizer_sha256[:12]}…"
        )
    if receipt.sampling.guide is not None and replayer.guide_library is None:
        raise CannotTell(
            f"the answer follows a JSON schema, enforced by {receipt.sampling.guide_library}, which is not installed here: "
            'pip install "queueproof[guided]"'
        )


def _prompt(receipt: Receipt, given: Sequence[int] | None) -> tuple[int, ...]:
    if given is None:
        if receipt.prompt_token_ids is None:
            raise CannotTell("the receipt does not hold the prompt; give its token ids")
        return receipt.prompt_token_ids
    right = len(given) == receipt.prompt_tokens and all(0 <= token < 1 << 32 for token in given)
    if not right or prompt_digest(given) != receipt.prompt_sha256:
        raise CannotTell(
            f"the prompt given is not the receipt's: that has {receipt.prompt_tokens} tokens and another digest or length"
        )
    return tuple(given)
