"""Which determinism class a request gets, and the engine that keeps it. Never a weaker one than it asked for."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from queueproof.contract import codec
from queueproof.contract.classes import DeterminismClass, parse_class
from queueproof.contract.document import ContractDocument, Offer
from queueproof.contract.errors import ContractError, UnsupportedClass
from queueproof.server.errors import bad_request, class_not_on_offer
from queueproof.server.protocol import ServedEngine
from queueproof.server.tokens import Tokens

HEADER = "queueproof-determinism"


@dataclass(frozen=True, slots=True)
class Grant:
    """The class of an answer and the engine that computes it. plain: `determinism` in the answer, without the receipt.

    fingerprint: `system_fingerprint`: of the build, the model and the arithmetic.
    """

    class_: DeterminismClass
    arithmetic: str
    engine: ServedEngine
    tokens: Tokens
    fingerprint: str
    plain: dict[str, Any]

    def declared(self, receipt: str | None) -> dict[str, Any]:
        """`determinism` of a finished answer."""
        return self.plain | {"receipt": receipt}


class ClassDesk:
    """Raises ContractError if the contract offers what no engine computes."""

    def __init__(
        self,
        contract: ContractDocument,
        engines: Sequence[ServedEngine],
        build: str,
        default: DeterminismClass | None = None,
    ) -> None:
        self.contract, self._build = contract, build
        self.offers: list[dict[str, Any]] = [codec.to_plain(offer) for offer in contract.offers]
        self._engines = {engine.arithmetic: engine for engine in engines}
        self._tokens = {engine.arithmetic: Tokens(engine) for engine in engines}
        if len(self._engines) != len(engines):
            raise ContractError(f"two engines of one arithmetic: {', '.join(e.arithmetic for e in engines)}")
        self._grants = {offer: self._make(offer) for offer in contract.offers}
        if default is None:
            if not contract.offers:
                raise ContractError("the contract offers no class, so there is nothing to serve")
            self.default = max(contract.offers, key=lambda offer: len(offer.class_.axes)).class_
        else:
            self.default = contract.grant(default).class_

    def grant(self, in_body: object, in_header: str | None) -> Grant:
        """in_body: the field `determinism`, a name or {"class": name}; in_header: that of HEADER.

        Raises ApiError: 422 with what is on offer, 400 if they disagree or are malformed.
        """
        if isinstance(in_body, dict) and set(in_body) == {"class"}:
            in_body = in_body["class"]
        if in_body is not None and not isinstance(in_body, str):
            raise bad_request('determinism must be the name of a class, or {"class": name}', "determinism")
        if in_body is not None and in_header is not None and in_body != in_header:
            raise bad_request(
                f"determinism={in_body!r} in the body, {in_header!r} in the header {HEADER}; give one of them",
                "determinism",
            )
        name = in_body if in_body is not None else in_header
        try:
            asked = self.default if name is None else parse_class(name)
            return self._grants[self.contract.grant(asked)]
        except UnsupportedClass as error:
            raise class_not_on_offer(error, self.offers) from None

    def engine_of(self, arithmetic: str) -> ServedEngine | None:
        """For replays: the engine that computes this arithmetic, if there is one."""
        return self._engines.get(arithmetic)

    def tokens_of(self, engine: ServedEngine) -> Tokens:
        """The texts of its tokens."""
        return self._tokens[engine.arithmetic]

    def _make(self, offer: Offer) -> Grant:
        engine = self._engines.get(offer.arithmetic)
        if engine is None:
            raise ContractError(
                f"{offer.class_.value!r} is offered with {offer.arithmetic}; engines compute {', '.join(self._engines)}"
            )
        if not DeterminismClass(engine.determinism_class).satisfies(offer.class_):
            raise ContractError(
                f"{offer.class_.value!r} is offered; the engine keeps {engine.determinism_class!r} only"
            )
        plain = {"class": offer.class_.value, "axes": [a.value for a in offer.axes], "arithmetic": offer.arithmetic}
        tokens = self._tokens[offer.arithmetic]
        return Grant(offer.class_, offer.arithmetic, engine, tokens, fingerprint(self._build, engine), plain)


def fingerprint(build: str, engine: ServedEngine) -> str:
    """Names what could change an answer to the same request: the software, the weights and tokenizer, the arithmetic."""
    named = "\n".join([build, engine.model.sha256, engine.model.tokenizer_sha256, engine.arithmetic])
    return "qp-" + hashlib.sha256(named.encode()).hexdigest()[:12]
