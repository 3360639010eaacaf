"""What a price measurement finds, as data: price.json is these classes, written and read by `contract.codec`.

A ratio is always candidate / baseline. Of tokens/s below 1 is slower; of TTFT and TPOT above 1 is slower.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from queueproof.audit.records import Problem
from queueproof.contract import codec

SCHEMA_VERSION = "queueproof/price/1"


class Metric(StrEnum):
    """TOKENS_PER_S: output tokens of all users together per second of a run. TTFT: seconds from the request to the first
    piece of its answer. TPOT: seconds from one token of an answer to the next. The last two: medians of a run's requests.
    """

    TOKENS_PER_S = "tokens_per_s"
    TTFT = "ttft"
    TPOT = "tpot"


class Outcome(StrEnum):
    """MEASURED: there is a price. Else none is named. NOISE: baseline and baseline again are further apart than baseline and
    candidate. WIDE: the interval tells neither that there is a price nor that there is hardly one (see ratios.WIDE).
    TOO_FEW: not enough runs ended for an interval."""

    MEASURED = "measured"
    NOISE = "within the noise"
    WIDE = "interval too wide"
    TOO_FEW = "too few runs"


class Role(StrEnum):
    BASELINE = "baseline"
    CANDIDATE = "candidate"


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two that are compared. vendor, version: see audit.records.EndpointIdentity. cold_by: how each run began
    without what the prefix cache knew. body: the fields that every request had besides, as JSON. command, env: how it was
    started, where this measurement did so; env as NAME=value."""

    url: str
    model: str
    vendor: str
    cold_by: str
    version: str | None = None
    body: str | None = None
    command: str | None = None
    env: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """How it was measured: in `rounds` rounds, baseline, candidate, baseline, each turn with `repeats` runs for each seed
    of the prompts and number of users. prompt_words: of each prompt, about a token each. confidence: of the intervals.
    """

    users: tuple[int, ...]
    seeds: tuple[int, ...]
    rounds: int
    repeats: int
    max_tokens: int
    prompt_words: int
    confidence: float


@dataclass(frozen=True, slots=True)
class Run:
    """One run: `users` at once. turn: 0 for the first of the baseline, odd ones are the candidate's. seconds: from the
    first request to the last token. short: answers with fewer tokens than asked for. ttft, tpot: None where it cannot be
    told: the answers came in one piece."""

    role: Role
    turn: int
    users: int
    seed: int
    repeat: int
    seconds: float
    requests: int
    prompt_tokens: int
    tokens: int
    short: int
    tokens_per_s: float
    ttft: float | None = None
    tpot: float | None = None

    def value(self, metric: Metric) -> float | None:
        """By name: a metric's value is its field."""
        found: float | None = getattr(self, metric.value)
        return found


@dataclass(frozen=True, slots=True)
class Comparison:
    """Baseline and candidate in one metric at one number of users.

    baseline, candidate: medians of their runs. seen: candidate / baseline, the geometric mean of `pairs` ratios, each of a
    candidate's run and the baseline's runs before and after it. drift: the baseline's later turns / its earlier ones.
    low, high: the interval of the ratio, drift allowed for; None where it cannot be had. price: `seen`, None where it is
    not to be told from the noise.
    """

    users: int
    metric: Metric
    outcome: Outcome
    baseline: float
    candidate: float
    seen: float
    drift: float
    pairs: int
    low: float | None = None
    high: float | None = None
    price: float | None = None


@dataclass(frozen=True, slots=True)
class PriceResult:
    """A whole measurement: price.json. started: ISO 8601, UTC. notes: what a reader has to know about the numbers."""

    tool: str
    started: str
    seconds: float
    machine: str
    baseline: Side
    candidate: Side
    plan: Plan
    comparisons: tuple[Comparison, ...]
    runs: tuple[Run, ...]
    interrupted: bool
    notes: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()
    schema: str = SCHEMA_VERSION

    def at(self, metric: Metric, users: int) -> Comparison | None:
        """That comparison, None if it was not made."""
        return next((c for c in self.comparisons if c.metric is metric and c.users == users), None)

    @property
    def told(self) -> bool:
        """Every number of users has a price in tokens/s."""
        found = [self.at(Metric.TOKENS_PER_S, users) for users in self.plan.users]
        return all(comparison is not None and comparison.price is not None for comparison in found)

    def to_json(self) -> str:
        """Pretty JSON in field order, with a final newline."""
        return codec.to_text(self)

    @classmethod
    def from_json(cls, text: str) -> PriceResult:
        """Reads a result. Raises ContractError: not JSON, another schema, unknown or missing keys, wrong types."""
        return codec.from_text(cls, text, "price", SCHEMA_VERSION)


def json_schema() -> dict[str, Any]:
    """The JSON schema (2020-12) of a price."""
    return codec.document_schema(PriceResult, "Queueproof price", SCHEMA_VERSION)


def schema_text() -> str:
    """`json_schema()` as docs/price.schema.json holds it."""
    return codec.schema_text(json_schema())
