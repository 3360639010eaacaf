"""What an audit finds, as data: the JSON of a run is these classes, written and read by `contract.codec`.

A reader refuses a record of another schema version. Seconds are floats from the start of the run unless said otherwise;
log-probabilities are natural logarithms as the endpoint wrote them, read as doubles.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from queueproof.contract import codec
from queueproof.contract.axes import Axis

SCHEMA_VERSION = "queueproof/audit/1"


class Verdict(StrEnum):
    """Of one probe. HOLDS needs a witness that its thing varied, and enough answers that did not change.

    CHANGES: at least one answer changed. INCONCLUSIVE: nothing changed, but nothing proves that the thing varied, or too
    little was compared. NOT_RUN: left out, not possible at this endpoint, or the budget was spent before. FAILED: the
    endpoint's trouble left nothing to compare.
    """

    HOLDS = "holds"
    CHANGES = "changes"
    INCONCLUSIVE = "inconclusive"
    NOT_RUN = "not run"
    FAILED = "failed"


class Unit(StrEnum):
    """By what two answers were compared, the best that both offer: token ids, the tokens' text, or the whole text."""

    IDS = "ids"
    TOKENS = "tokens"
    TEXT = "text"


class Certainty(StrEnum):
    """SHOWN: a control separates this cause from the others. LIKELY: it fits best, and others are not excluded."""

    SHOWN = "shown"
    LIKELY = "likely"


@dataclass(frozen=True, slots=True)
class Interval:
    """An exact (Clopper-Pearson) confidence interval of a share, 0 to 1. level: such as 0.95."""

    low: float
    high: float
    level: float


@dataclass(frozen=True, slots=True)
class Witness:
    """What proves that a probe's thing varied. claim: a sentence. source: where the number is from (`cached_tokens`,
    `/metrics`, `interleaved streams`, `TTFT`...). moved: value reached what was needed."""

    claim: str
    source: str
    moved: bool
    value: float
    needed: float


@dataclass(frozen=True, slots=True)
class Difference:
    """Two answers to one request that are not the same.

    position: the first token (of text: the first character) that differs; None where only log-probabilities do.
    logprob_position: the first token whose log-probability differs. margin: at `position`, the log-probability of the
    best token minus that of the second, in the answer under `a`. max_logprob_difference: while the tokens agree.
    near_tie: the margin is within what the log-probabilities move here anyway; None where it cannot be told.
    a, b: the texts; both part at character `split`.
    """

    prompt: str
    group: str
    unit: Unit
    a_name: str
    b_name: str
    a: str
    b: str
    split: int
    max_logprob_difference: float
    position: int | None = None
    logprob_position: int | None = None
    margin: float | None = None
    near_tie: bool | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """Comparisons of one kind within a probe, such as those at 8 users, or one token before a block boundary.

    changed: any field; tokens_changed: of these, the tokens or the text, not only log-probabilities.
    x: where the group stands on the probe's scale (users, offset from a boundary), for plots.
    """

    name: str
    compared: int
    changed: int
    tokens_changed: int
    max_logprob_difference: float
    x: float | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """Numbers for a plot. name: such as `TTFT cold`; unit: of the values, such as `s`."""

    name: str
    unit: str
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """Trouble with the endpoint, counted apart: never a difference. kind: see client.trouble."""

    kind: str
    count: int
    example: str


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What one probe found. Counts are of compared answers. axis: of the contract, where the probe stands for one.

    differences: the first of them, at most `book.KEPT`; changed counts them all. partial: it was ended early.
    requests, tokens: what it cost. seconds: how long it took.
    """

    name: str
    question: str
    verdict: Verdict
    reason: str
    compared: int
    changed: int
    tokens_changed: int
    max_logprob_difference: float
    seconds: float
    requests: int
    tokens: int
    partial: bool
    axis: Axis | None = None
    unit: Unit | None = None
    interval: Interval | None = None
    corrected: Interval | None = None
    groups: tuple[Group, ...] = ()
    witnesses: tuple[Witness, ...] = ()
    differences: tuple[Difference, ...] = ()
    series: tuple[Series, ...] = ()
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Cause:
    """Why answers change here. name: see attribution. evidence: sentences with the numbers; next_steps: for this server."""

    name: str
    certainty: Certainty
    sentence: str
    evidence: tuple[str, ...]
    next_steps: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EndpointIdentity:
    """Who answers. vendor: `vllm`, `sglang`, `llama.cpp`, `tgi`, `transformers`, `queueproof`, or `unknown`.

    fingerprints: every `system_fingerprint` seen, in order of appearance. abilities: names of what it offers.
    cold_by: how a cold cache is had (see ask.Cold). block_size: tokens of a KV block, where known.
    """

    url: str
    model: str
    vendor: str
    version: str | None = None
    fingerprints: tuple[str, ...] = ()
    abilities: tuple[str, ...] = ()
    cold_by: str | None = None
    block_size: int | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """How it was measured. started: ISO 8601, UTC. prompts_digest: SHA-256, hex, of all prompts that were offered, of
    which the first `prompts` were asked but those of `left_out`, which are too long for the budget. budget: in words. confidence: of the intervals. machine: of the client, in words.
    """

    tool: str
    started: str
    seconds: float
    seed: int
    prompts: int
    prompts_digest: str
    max_tokens: int
    users: int
    confidence: float
    budget: str
    machine: str
    interrupted: bool
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Clause:
    """One promise of a contract and what became of it. verdict: HOLDS, CHANGES (broken), INCONCLUSIVE or FAILED."""

    name: str
    promise: str
    verdict: Verdict
    reason: str


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """A whole run: audit.json."""

    run: Run
    endpoint: EndpointIdentity
    probes: tuple[ProbeResult, ...]
    causes: tuple[Cause, ...]
    against: EndpointIdentity | None = None
    clauses: tuple[Clause, ...] = ()
    problems: tuple[Problem, ...] = ()
    schema: str = SCHEMA_VERSION

    def to_json(self) -> str:
        """Pretty JSON in field order, with a final newline."""
        return codec.to_text(self)

    @classmethod
    def from_json(cls, text: str) -> AuditRecord:
        """Reads a record. Raises ContractError: not JSON, another schema, unknown or missing keys, wrong types."""
        return codec.from_text(cls, text, "audit record", SCHEMA_VERSION)


def json_schema() -> dict[str, Any]:
    """The JSON schema (2020-12) of an audit record."""
    return codec.document_schema(AuditRecord, "Queueproof audit record", SCHEMA_VERSION)


def schema_text() -> str:
    """`json_schema()` as docs/audit.schema.json holds it."""
    return codec.schema_text(json_schema())
