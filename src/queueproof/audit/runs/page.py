"""A page of two runs: one file of HTML that asks for nothing else, readable wide and narrow, light and dark."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from queueproof.audit.runs import words
from queueproof.audit.runs.record import Change, Difference, DiffRecord, Unit

_STYLE = """
:root { color-scheme: light dark; --line: #d0d7de; --soft: #59636e; --a: #cf222e22; --b: #1a7f3722; --card: #f6f8fa; }
@media (prefers-color-scheme: dark) {
  :root { --line: #3d444d; --soft: #9198a1; --a: #f8514933; --b: #2ea04333; --card: #151b23; }
}
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.4rem; overflow-wrap: anywhere; } h2 { font-size: 1.1rem; margin-top: 2.5rem; }
p, li { overflow-wrap: anywhere; } .soft { color: var(--soft); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .8rem .3rem 0; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th { font-weight: 600; } .left { text-align: left; }
article { border: 1px solid var(--line); border-radius: 6px; margin: 1rem 0; padding: .8rem 1rem; }
article h3 { font-size: 1rem; margin: 0 0 .4rem; overflow-wrap: anywhere; }
.sides { display: grid; grid-template-columns: 1fr 1fr; gap: 1rem; }
@media (max-width: 44rem) { .sides { grid-template-columns: 1fr; } }
pre { background: var(--card); border-radius: 6px; padding: .6rem .8rem; margin: .3rem 0 0; font-size: .85rem;
  white-space: pre-wrap; overflow-wrap: anywhere; max-height: 24rem; overflow-y: auto; }
mark { color: inherit; padding: .1em 0; border-left: 3px solid; } .a mark { background: var(--a); } .b mark { background: var(--b); }
.same { color: var(--soft); }
"""


def page(record: DiffRecord) -> str:
    """The whole file."""
    tasks = _table(words.TASKS, words.task_rows(record.tasks), 1) if record.tasks else ""
    metrics = _table(words.METRICS, words.metric_rows(record.metrics), 2) if record.metrics else ""
    parts = [
        f"<h1>{_shown(words.headline(record))}</h1>",
        "<ul>" + "".join(f"<li>{_shown(line)}</li>" for line in words.paragraphs(record)) + "</ul>",
        f"<h2>Answers</h2>{tasks}" if tasks else "",
        f"<h2>Scores</h2>{metrics}" + _LEGEND if metrics else "",
        f"<h2>The first differences</h2>{''.join(map(_article, record.differences))}" if record.differences else "",
        f'<p class="soft">{_shown(record.tool)}, {_shown(record.schema)}</p>',
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>Two runs: {_shown(record.outcome.value)}</title><style>{_STYLE}</style></head>\n"
        f"<body>{''.join(parts)}</body></html>\n"
    )


_LEGEND = (
    '<p class="soft">n: samples scored in both runs. moved: scores that changed. 95% interval: of B - A. by answers: the part of B - A that '
    "samples add whose answer changed. p: McNemar's exact test where scores are 0 or 1, else the paired t-test.</p>"
)


def _table(head: Iterable[str], rows: Iterable[tuple[str, ...]], left: int) -> str:
    def cells(tag: str, row: Iterable[str]) -> str:
        return "".join(
            f"<{tag}{' class=left' if i < left else ''}>{_shown(cell)}</{tag}>" for i, cell in enumerate(row)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{cells("th", head)}</tr></thead><tbody>{body}</tbody></table></div>'


def _article(found: Difference) -> str:
    prompt = f'<p class="soft">{_shown(found.prompt)}</p>' if found.prompt else ""
    sides = "".join(
        f'<div class="{name}"><span class="soft">{name.upper()}, {_shown(where)}</span><pre>{_marked(text, found)}</pre></div>'
        for name, text, where in (("a", found.a, found.where_a), ("b", found.b, found.where_b))
    )
    return f'<article><h3>{_shown(words.title(found))}</h3>{prompt}<div class="sides">{sides}</div></article>'


def _marked(text: str, found: Difference) -> str:
    if found.unit is Unit.OPTIONS or found.change is not Change.ANSWER:
        return _shown(text)
    head, tail = text[: found.split], text[found.split :]
    return f'<span class="same">{_shown(head)}</span><mark>{_shown(tail) or "&#8203;"}</mark>'


def _shown(text: str) -> str:
    return escape(words.visible(text))
