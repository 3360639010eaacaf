"""Which plots a record has, and what is in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup

from queueproof.audit import names
from queueproof.audit.price.records import Metric, PriceResult
from queueproof.audit.records import AuditRecord, Group, ProbeResult, Unit, Verdict
from queueproof.audit.report import rows
from queueproof.audit.report.svg import Bar, Line, Point, Strip, bars, lines, strips
from queueproof.audit.report.words import number, percent, seconds
from queueproof.audit.statistics import clopper_pearson

MARKS = 400  # values of a strip that are drawn; of more, evenly spaced ones of them in order


class Figure(NamedTuple):
    """title: what is seen. note: how to read it. keys: (colour's class, name) of its lines."""

    title: str
    note: str
    svg: Markup
    keys: tuple[tuple[str, str], ...] = ()


def figures(record: AuditRecord) -> list[Figure]:
    """The plots that this record has numbers for."""
    made = (_shares(record), _by_users(record), _positions(record), _drifts(record), _first_tokens(record))
    return [figure for figure in made if figure is not None]


def _shares(record: AuditRecord) -> Figure | None:
    found = []
    for result in record.probes:
        if result.compared and result.interval is not None:
            title = f"{result.name}: {rows.changed(result)} changed, {rows.share(result)}"
            low, high = result.interval.low, result.interval.high
            hollow = result.verdict is Verdict.INCONCLUSIVE
            found.append(Bar(result.name, result.changed / result.compared, low, high, title, _colour(result), hollow))
    if not found:
        return None
    title = "Share of answers that changed, by probe"
    drawn = bars(title, "; ".join(bar.title for bar in found), found, "share of compared answers", percent)
    note = f"Each line is the exact {percent(record.run.confidence)} interval. Hollow: nothing shows that the thing varied."
    return Figure(title, note, drawn)


def _by_users(record: AuditRecord) -> Figure | None:
    drawn: list[Line] = []
    scale = sorted({g.x for r in _crowds(record) for g in r.groups if g.x is not None})
    for result in _crowds(record):
        kind = _colour(result)
        if any(line.kind == kind for line in drawn):  # two of one colour could not be told apart
            kind = next(other for other in "cab" if other != kind)
        points = tuple(
            _share_point(result.name, group, scale, record.run.confidence)
            for group in sorted(result.groups, key=lambda g: (g.x or 0.0, g.name.endswith(names.AGAIN)))
            if group.x is not None and group.compared
        )
        drawn.append(Line(result.name, kind, points))
    if len(scale) < 2:
        return None
    title = "Share of answers that changed, by users at once"
    said = "; ".join(point.title for line in drawn for point in line.points)
    svg = lines(title, said, [f"{x:g}" for x in scale], drawn, "users at once", percent)
    note = f"With {percent(record.run.confidence)} intervals. Hollow: a second round of the same crowd."
    return Figure(title, note, svg, tuple((line.kind, line.name) for line in drawn))


def _colour(result: ProbeResult) -> str:
    return {Verdict.CHANGES: "b", Verdict.HOLDS: "a"}.get(result.verdict, "c")


def _crowds(record: AuditRecord) -> list[ProbeResult]:
    """Those whose groups' x are users."""
    wanted = (names.NEIGHBOURS, names.LOAD)
    return [r for r in record.probes if r.name in wanted and any(g.x is not None and g.compared for g in r.groups)]


def _share_point(probe: str, group: Group, scale: Sequence[float], confidence: float) -> Point:
    found = clopper_pearson(group.changed, group.compared, confidence)
    said = f"{probe}, {group.name}: {number(group.changed)} of {number(group.compared)} changed"
    at = scale.index(group.x if group.x is not None else scale[0])
    return Point(at, group.changed / group.compared, said, found.low, found.high, group.name.endswith(names.AGAIN))


def _positions(record: AuditRecord) -> Figure | None:
    found = []
    for result in record.probes:
        at = [d.position + 1 for d in result.differences if d.position is not None and d.unit is not Unit.TEXT]
        if at:
            found.append(Strip(result.name, _thinned(at), "b"))
    if not found:
        return None
    title = "Where answers part"
    svg = strips(title, _said(found, "token {:.0f}"), found, "token of the first difference", lambda v: f"{v:g}")
    return Figure(title, "A mark is an answer that changed; the long one is the median of its row.", svg)


def _drifts(record: AuditRecord) -> Figure | None:
    found = []
    for result in record.probes:
        moved = [d.max_logprob_difference for d in result.differences if d.max_logprob_difference > 0]
        if moved:
            found.append(Strip(result.name, _thinned(moved), "b"))
    if not found:
        return None
    title = "How far log-probabilities move while tokens agree"
    svg = strips(title, _said(found, "{:.2g} nats"), found, "largest difference, nats", lambda v: f"{v:g}", log=True)
    return Figure(title, "A mark is a changed answer; the scale goes by powers of ten.", svg)


def _first_tokens(record: AuditRecord) -> Figure | None:
    found = []
    for result in record.probes:
        for series in result.series:
            if series.name.startswith("TTFT") and series.values:
                kind = "a" if "warm" in series.name else "c"
                found.append(Strip(series.name.removeprefix("TTFT "), _thinned(series.values), kind))
    if not found:
        return None
    title = "Time to the first token, cold and warm cache"
    svg = strips(title, _said(found, "{:.4g} s"), found, "TTFT", seconds)
    return Figure(
        title,
        "A mark is an answer; the long one is the median. Where both are much the same, prompts are short or nothing was hit.",
        svg,
    )


def _said(found: Sequence[Strip], words: str) -> str:
    """What the strips show, for those who do not see them."""
    parts = []
    for strip in found:
        ordered = sorted(strip.values)
        median, last = words.format(ordered[len(ordered) // 2]), words.format(ordered[-1])
        parts.append(f"{strip.label}: {len(ordered)} values, median {median}, largest {last}")
    return "; ".join(parts)


def _thinned(values: Sequence[float]) -> tuple[float, ...]:
    ordered = sorted(values)
    if len(ordered) <= MARKS:
        return tuple(ordered)
    return tuple(ordered[i * (len(ordered) - 1) // (MARKS - 1)] for i in range(MARKS))


def rates(price: PriceResult) -> list[Figure]:
    """Tokens/s of both sides, by users."""
    found = [c for c in price.comparisons if c.metric is Metric.TOKENS_PER_S]
    if not found:
        return []
    sides = (("c", "baseline", [c.baseline for c in found]), ("a", "candidate", [c.candidate for c in found]))
    drawn = [
        Line(
            name,
            kind,
            tuple(
                Point(price.plan.users.index(c.users), value, f"{name}, {c.users} users: {value:.4g} tokens/s")
                for c, value in zip(found, values, strict=True)
            ),
        )
        for kind, name, values in sides
    ]
    title = "Tokens/s of all users together"
    said = "; ".join(point.title for line in drawn for point in line.points)
    labels = [str(users) for users in price.plan.users]
    svg = lines(title, said, labels, drawn, "users at once", lambda v: f"{v:g}")
    return [
        Figure(
            title,
            "Output tokens, from the first request to the last token.",
            svg,
            (("c", "baseline"), ("a", "candidate")),
        )
    ]


_METRICS = {
    Metric.TOKENS_PER_S: ("tokens/s", "below 1 is slower"),
    Metric.TTFT: ("time to the first token", "above 1 is slower"),
    Metric.TPOT: ("time for each token after it", "above 1 is slower"),
}


def prices(price: PriceResult) -> list[Figure]:
    """A curve for each metric: candidate / baseline by users."""
    made = []
    labels = [str(users) for users in price.plan.users]
    for metric, (name, slower) in _METRICS.items():
        points = tuple(
            Point(
                price.plan.users.index(c.users),
                c.seen,
                f"{c.users} users: {c.seen:.3f}" + (f" ({c.low:.3f} to {c.high:.3f})" if _both(c.low, c.high) else ""),
                c.low,
                c.high,
                c.price is None,
            )
            for c in price.comparisons
            if c.metric is metric
        )
        if points:
            title = f"Price in {name}: candidate / baseline"
            said = "; ".join(point.title for point in points)
            svg = lines(
                title, said, labels, [Line(name, "a", points)], "users at once", lambda v: f"{v:g}", 1.0, zero=False
            )
            made.append(Figure(title, f"{slower.capitalize()}. Hollow: not to be told from the noise.", svg))
    return made


def _both(low: float | None, high: float | None) -> bool:
    return low is not None and high is not None
