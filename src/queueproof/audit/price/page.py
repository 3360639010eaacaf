"""A price as one HTML file that asks nothing of any other: curves by users, and the table."""

from __future__ import annotations

from html import escape

from queueproof.audit.price import words
from queueproof.audit.price.chart import Line, Point, chart
from queueproof.audit.price.records import Comparison, Metric, PriceResult

_STYLE = """
:root{color-scheme:light dark;--ink:#1d2530;--dim:#5c6875;--paper:#fff;--line:#dde2e8;--a:#5f6b7a;--b:#0b6bcb}
@media(prefers-color-scheme:dark){:root{--ink:#e6ebf1;--dim:#9aa6b4;--paper:#12161c;--line:#2b333d;--a:#9aa6b4;--b:#5aa9ff}}
body{margin:0 auto;max-width:70rem;padding:1.5rem;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,sans-serif}
h1{font-size:1.5rem;margin:0 0 .5rem}.lead{font-size:1.1rem}.dim,small,figcaption small{color:var(--dim)}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(24rem,100%),1fr));gap:1rem;margin:1.5rem 0}
figure{margin:0;border:1px solid var(--line);border-radius:.5rem;padding:.75rem}figcaption{font-weight:600}small{font-weight:400}
svg{width:100%;height:auto;display:block}svg text{fill:var(--dim);font:12px system-ui,sans-serif}
.x{text-anchor:middle}.y{text-anchor:end}.grid{stroke:var(--line)}.rule{stroke:var(--dim);stroke-dasharray:4 3}
.a{--c:var(--a)}.b{--c:var(--b)}.line{fill:none;stroke:var(--c);stroke-width:2}.bar{stroke:var(--c);stroke-width:2}
circle{fill:var(--c);stroke:var(--c);stroke-width:2}.hollow{fill:var(--paper)}
.key::before{content:"";display:inline-block;width:.8em;height:.8em;border-radius:50%;background:var(--c);margin-right:.4em}
.table{overflow-x:auto}table{border-collapse:collapse;width:100%}th,td{padding:.35rem .6rem;text-align:left;
border-bottom:1px solid var(--line)}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}tr.refused{color:var(--dim)}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.2rem 1rem}dd{margin:0;overflow-wrap:anywhere}
@media(max-width:30rem){dl{grid-template-columns:1fr}dd{margin-bottom:.5rem}}
"""
_SLOWER = {Metric.TOKENS_PER_S: "below", Metric.TTFT: "above", Metric.TPOT: "above"}
_NUMBERS = (0, 2, 3, 5)  # columns


def page(result: PriceResult) -> str:
    """The whole file."""
    labels = [str(users) for users in result.plan.users]
    charts = [chart("Tokens/s", "of all users together", labels, _both(result))]
    charts += [
        chart(
            f"{words.TITLES[m]}, candidate / baseline", f"{_SLOWER[m]} 1 is slower", labels, [_ratios(result, m)], 1.0
        )
        for m in Metric
    ]
    sides = "".join(
        f'<dt><span class="key {kind}">{name}</span></dt><dd>{escape(words.who(side))}</dd>'
        for name, kind, side in (("baseline", "a", result.baseline), ("candidate", "b", result.candidate))
    )
    notes = [*result.notes, *(f"trouble: {p.kind}, {p.count} times: {p.example}" for p in result.problems)]
    listed = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>Price of a mode</title><style>{_STYLE}</style></head><body>"
        f'<h1>What the mode costs</h1><p class="lead">{escape(words.summary(result))}</p><dl>{sides}</dl>'
        f'<div class="charts">{"".join(charts)}</div>{_table(result)}'
        f'<p class="dim">A hollow point has no price. Bars are intervals. '
        f"{escape(words.method(result))}; {escape(result.started)}; {escape(result.tool)}</p>"
        f"<ul>{listed}</ul></body></html>\n"
    )


def _both(result: PriceResult) -> list[Line]:
    found = [c for c in result.comparisons if c.metric is Metric.TOKENS_PER_S]

    def line(name: str, kind: str) -> Line:
        return Line(name, kind, tuple(_absolute(result, c, name) for c in found))

    return [line("baseline", "a"), line("candidate", "b")] if found else []


def _absolute(result: PriceResult, c: Comparison, name: str) -> Point:
    value = c.baseline if name == "baseline" else c.candidate
    title = f"{name}, {c.users} users: {words.number(c.metric, value)} tokens/s"
    return Point(result.plan.users.index(c.users), value, title)


def _ratios(result: PriceResult, metric: Metric) -> Line:
    points = []
    for c in result.comparisons:
        if c.metric is metric:
            title = f"{c.users} users: {words.ratio(c)}"
            at = result.plan.users.index(c.users)
            points.append(Point(at, c.seen, title, c.low, c.high, hollow=c.price is None))
    return Line(words.TITLES[metric], "b", tuple(points))


def _table(result: PriceResult) -> str:
    def cell(tag: str, i: int, text: str) -> str:
        return f'<{tag} class="n">{escape(text)}</{tag}>' if i in _NUMBERS else f"<{tag}>{escape(text)}</{tag}>"

    head = "".join(cell("th", i, heading) for i, heading in enumerate(words.HEADINGS))
    body = ""
    for row in words.rows(result):
        cells = "".join(cell("td", i, text) for i, text in enumerate(row[:-1]))
        body += f'<tr class="refused">{cells}</tr>' if row.refused else f"<tr>{cells}</tr>"
    return f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
