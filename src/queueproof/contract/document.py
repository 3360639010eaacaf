"""The contract document: what an engine or a server promises about its answers, and what it does not.

It is JSON; its schema is `json_schema()`, published as docs/contract.schema.json. A reader refuses a document
of another schema version, so a promise is never half understood.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from queueproof.contract import codec
from queueproof.contract.axes import Axis
from queueproof.contract.classes import DeterminismClass
from queueproof.contract.errors import ContractError, UnsupportedClass

SCHEMA_VERSION = "queueproof/contract/1"


@dataclass(frozen=True, slots=True)
class Model:
    """Which weights answer: a name, the SHA-256 of the weight files where known, and the 16-bit type they run in."""

    name: str
    dtype: str
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class Price:
    """What a class costs: its tokens/s divided by those of best-effort (1.0 is free), and where that was measured.

    tokens_per_s: of all users together. tpot_ms: from one token of a user to the next, the median.
    """

    throughput_ratio: float
    measured_on: str
    tokens_per_s: float | None = None
    tpot_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Offer:
    """One class on offer: the arithmetic that gives it and the axes that cannot change an answer."""

    class_: DeterminismClass
    arithmetic: str
    axes: tuple[Axis, ...]
    price: Price | None = None

    @classmethod
    def of(cls, class_: DeterminismClass, arithmetic: str, price: Price | None = None) -> Offer:
        """An offer with the axes of its class, in their declared order."""
        return cls(class_, arithmetic, tuple(axis for axis in Axis if axis in class_.axes), price)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A class that is not on offer here, and the reason in one sentence."""

    class_: DeterminismClass
    reason: str


@dataclass(frozen=True, slots=True)
class ContractDocument:
    """What a server or engine promises: model, device, the classes on offer and those refused."""

    model: Model
    device: str
    offers: tuple[Offer, ...]
    refused: tuple[Refusal, ...] = ()
    schema: str = SCHEMA_VERSION

    def __post_init__(self) -> None:
        if self.schema != SCHEMA_VERSION:
            raise ContractError(f"contract document of schema {self.schema!r}; this reader knows {SCHEMA_VERSION!r}")
        for offer in self.offers:
            if frozenset(offer.axes) != offer.class_.axes or len(set(offer.axes)) != len(offer.axes):
                raise ContractError(
                    f"class {offer.class_.value!r} is the axes [{', '.join(a for a in Axis if a in offer.class_.axes)}], "
                    f"the document says [{', '.join(offer.axes)}]"
                )
            for name in ("throughput_ratio", "tokens_per_s", "tpot_ms"):
                value = None if offer.price is None else getattr(offer.price, name)
                if value is not None and value <= 0:
                    raise ContractError(f"price of {offer.class_.value!r}: {name} must be above 0")
        both = {o.class_ for o in self.offers} & {r.class_ for r in self.refused}
        if both:
            raise ContractError(f"classes both offered and refused: {', '.join(sorted(both))}")

    def grant(self, asked: DeterminismClass) -> Offer:
        """The weakest offer that satisfies `asked`: that class or a stronger one, never a weaker.

        Raises UnsupportedClass, which names what is on offer and why the class asked for is not.
        """
        enough = [offer for offer in self.offers if offer.class_.satisfies(asked)]
        if enough:
            return min(enough, key=lambda offer: len(offer.class_.axes))
        reasons = [r.reason for r in self.refused if r.class_ is asked]
        have = ", ".join(f"{offer.class_.value} ({offer.arithmetic})" for offer in self.offers) or "nothing"
        because = f" because {reasons[0].rstrip('.')}" if reasons else ""
        raise UnsupportedClass(f"class {asked.value!r} is not on offer{because}; on offer: {have}")

    def to_json(self) -> str:
        """Pretty JSON in field order, with a final newline."""
        return codec.to_text(self)

    @classmethod
    def from_json(cls, text: str) -> ContractDocument:
        """Reads a document. Raises ContractError: not JSON, another schema, unknown or missing keys, wrong types."""
        return codec.from_text(cls, text, "contract document", SCHEMA_VERSION)


def json_schema() -> dict[str, Any]:
    """The JSON schema (2020-12) of a contract document."""
    return codec.document_schema(ContractDocument, "Queueproof contract document", SCHEMA_VERSION)


def schema_text() -> str:
    """`json_schema()` as docs/contract.schema.json holds it."""
    return codec.schema_text(json_schema())
