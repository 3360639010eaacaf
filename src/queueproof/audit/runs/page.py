"""A page of two runs: one file of HTML that asks for nothing else, readable wide and narrow, light and dark."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from markupsafe import Markup

from queueproof.audit.report.frame import frame
from queueproof.audit.runs import words
from queueproof.audit.runs.record import Change, Difference, DiffRecord, Unit


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
        f'<p class="quiet">{_shown(record.tool)}, {_shown(record.schema)}</p>',
    ]
    return frame(f"Two runs: {record.outcome.value}", Markup("".join(parts)))


_LEGEND = (
    '<p class="quiet">n: samples scored in both runs. moved: scores that changed. 95% interval: of B - A. by answers: the part of B - A that '
    "samples add whose answer changed. p: McNemar's exact test where scores are 0 or 1, else the paired t-test.</p>"
)


def _table(head: Iterable[str], rows: Iterable[tuple[str, ...]], left: int) -> str:
    def cells(tag: str, row: Iterable[str]) -> str:
        return "".join(
            f"<{tag}{'' if i < left else ' class=n'}>{_shown(cell)}</{tag}>" for i, cell in enumerate(row)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{cells("th", head)}</tr></thead><tbody>{body}</tbody></table></div>'


def _article(found: Difference) -> str:
    prompt = f'<p class="quiet">{_shown(found.prompt)}</p>' if found.prompt else ""
    sides = "".join(
        f'<div class="{name}"><span class="quiet">{name.upper()}, {_shown(where)}</span><pre>{_marked(text, found)}</pre></div>'
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
