"""An audit's record as one HTML file, in the order in which an engineer asks: what changes, where, why, what to do."""

from __future__ import annotations

from typing import NamedTuple

from queueproof.audit.price import words as price_words
from queueproof.audit.price.records import PriceResult
from queueproof.audit.records import AuditRecord, Certainty, ProbeResult, Verdict
from queueproof.audit.report import plots, rows, texts
from queueproof.audit.report.frame import frame, render
from queueproof.audit.report.words import number, percent
from queueproof.audit.statistics import clopper_pearson

_MARKS = {
    Verdict.HOLDS: ("holds", "✓"),
    Verdict.CHANGES: ("changes", "≠"),
    Verdict.INCONCLUSIVE: ("open", "?"),
    Verdict.NOT_RUN: ("idle", "–"),
    Verdict.FAILED: ("failed", "!"),
}


class Part(NamedTuple):
    """A probe with everything below its row. groups: cells of a table; kept: (shown, recorded, counted) differences."""

    row: rows.Row
    groups: tuple[tuple[str, str, str, str], ...]
    witnesses: tuple[str, ...]
    series: tuple[str, ...]
    notes: tuple[str, ...]
    problems: tuple[str, ...]
    pairs: tuple[texts.Pair, ...]
    kept: tuple[int, int, int]
    cost: str


def page(record: AuditRecord, price: PriceResult | None = None) -> str:
    """The whole file. price: of the contract, where it was measured."""
    near, real, unknown = texts.judgements(record.probes)
    confidence = percent(record.run.confidence)
    body = render(
        "page.html.jinja",
        record=record,
        findings=rows.findings(record),
        promises=rows.promises(record.clauses),
        warnings=rows.warnings(record),
        wide=("offers", "left out", "prompts’ SHA-256"),
        counts=[(m, sum(r.verdict is v for r in record.probes), str(v)) for v, m in _MARKS.items()],
        marks=_MARKS,
        clauses=[(clause, rows.word(clause)) for clause in record.clauses],
        identities=_identities(record),
        parts=[_part(result, record.run.confidence) for result in record.probes],
        certainties={Certainty.SHOWN: "shown by a control", Certainty.LIKELY: "likely: others are not excluded"},
        figures=plots.figures(record),
        price=price,
        price_summary=price_words.summary(price) if price is not None else "",
        price_figures=plots.prices(price) if price is not None else [],
        near=near,
        real=real,
        unknown=unknown,
        noise=max((r.max_logprob_difference for r in record.probes), default=0.0),
        method=rows.method(record),
        confidence=confidence,
        corrected=_corrected(record),
    )
    return frame(f"Audit of {record.endpoint.model} at {record.endpoint.url}", body)


def _identities(record: AuditRecord) -> list[tuple[str, list[tuple[str, str]]]]:
    both = [("The endpoint", rows.identity(record.endpoint))]
    return both if record.against is None else [*both, ("The other endpoint", rows.identity(record.against))]


def _corrected(record: AuditRecord) -> str:
    """The level of the corrected intervals."""
    return next((percent(r.corrected.level) for r in record.probes if r.corrected is not None), "")


def _part(result: ProbeResult, confidence: float) -> Part:
    pairs = tuple(texts.chosen(result))
    groups = []
    for group in result.groups:
        bounds = clopper_pearson(group.changed, group.compared, confidence) if group.compared else None
        moved = f"{group.max_logprob_difference:.2g}" if group.max_logprob_difference else "0"
        of = f"{number(group.changed)} of {number(group.compared)}"
        groups.append((group.name, of, rows.interval(group.changed, bounds), moved))
    return Part(
        row=rows.row(result),
        groups=tuple(groups),
        witnesses=tuple(rows.told(found) for found in result.witnesses),
        series=tuple(
            f"{s.name}: {percent(s.values[0]) if s.unit == 'share' else f'{s.values[0]:.4g} {s.unit}'}"
            for s in result.series
            if len(s.values) == 1 and not s.name.startswith("TTFT")
        ),
        notes=result.notes,
        problems=tuple(f"{p.kind}, {number(p.count)} times, such as: {p.example}" for p in result.problems),
        pairs=pairs,
        kept=(len(pairs), len(result.differences), result.changed),
        cost=f"{number(result.requests)} requests, {number(result.tokens)} tokens, {result.seconds:.1f} s",
    )
