"""Results of probes as a gate reads them, made up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from queueproof.audit import names
from queueproof.audit.gate.contract_file import SCHEMA_VERSION, AuditContract, parse_contract
from queueproof.audit.records import (
    AuditRecord,
    Difference,
    EndpointIdentity,
    Group,
    ProbeResult,
    Run,
    Unit,
    Verdict,
    Witness,
)
from queueproof.contract.axes import Axis

AXES = {
    names.NEIGHBOURS: Axis.NEIGHBOURS,
    names.ORDER: Axis.ORDER,
    names.LOAD: Axis.SCHEDULE,
    names.LENGTHS: Axis.SCHEDULE,
    names.CACHE: Axis.CACHE,
    names.PHASE: Axis.PHASE,
}
ENDPOINT = EndpointIdentity("http://server:8000", "some/model", "vllm", "0.1", abilities=("chat", "logprobs"))
RUN = Run("queueproof 0", "2026-01-02T03:04:05+00:00", 12.5, 0, 8, "ab" * 32, 16, 8, 0.95, "300 s", "a machine", False)


def contract(text: str) -> AuditContract:
    return parse_contract(f"schema: {SCHEMA_VERSION}\nendpoint: http://server:8000\n{text}")


def probe(
    name: str,
    compared: int = 100,
    changed: int = 0,
    tokens: int | None = None,
    groups: tuple[Group, ...] | None = None,
    **other: Any,
) -> ProbeResult:
    """tokens: of those that changed, the ones that changed in tokens; None is all of them."""
    tokens = changed if tokens is None else tokens
    if groups is None:
        groups = (Group("all", compared, changed, tokens, 0.0),) if compared else ()
    compared, changed, tokens = (
        sum(getattr(g, field) for g in groups) for field in ("compared", "changed", "tokens_changed")
    )
    verdict = Verdict.CHANGES if changed else Verdict.HOLDS
    return replace(
        ProbeResult(
            name=name,
            question=f"Does {name} matter?",
            verdict=verdict,
            reason=f"{changed} of {compared} answers changed",
            compared=compared,
            changed=changed,
            tokens_changed=tokens,
            max_logprob_difference=0.0,
            seconds=2.0,
            requests=compared,
            tokens=0,
            partial=False,
            axis=AXES.get(name),
            unit=Unit.IDS,
            groups=groups,
            witnesses=(Witness("8 ran at once", "/metrics", True, 8, 4),),
        ),
        **other,
    )


def record(*probes: ProbeResult, **other: Any) -> AuditRecord:
    return replace(AuditRecord(RUN, ENDPOINT, probes, ()), **other)


def difference(a: str = "The sky is blue.", b: str = "The sky is grey.", **other: Any) -> Difference:
    split = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    found = Difference("sky", "8 users", Unit.IDS, "alone", "8 users", a, b, split, 0.0, 3, margin=0.01, near_tie=True)
    return replace(found, **other)
