"""A page of two runs: one file of HTML that asks for nothing else, readable wide and narrow, light and dark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from queueproof.audit.report.frame import Cell, clean, frame, sides, table
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
        f'<p class="dim">{_shown(record.tool)}, {_shown(record.schema)}</p>',
    ]
    return frame(f"Two runs: {record.outcome.value}", "".join(parts))


_LEGEND = (
    '<p class="dim">n: samples scored in both runs. moved: scores that changed. 95% interval: of B - A. by answers: the part of B - A that '
    "samples add whose answer changed. p: McNemar's exact test where scores are 0 or 1, else the paired t-test.</p>"
)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], left: int) -> str:
    return table(heads, [[Cell(text, "" if i < left else "n") for i, text in enumerate(row)] for row in rows], fold=False)


def _article(found: Difference) -> str:
    prompt = f'<p class="dim">{clean(found.prompt)}</p>' if found.prompt else ""
    marked = found.unit is not Unit.OPTIONS and found.change is Change.ANSWER
    both = sides(f"A, {found.where_a}", found.a, f"B, {found.where_b}", found.b, found.split if marked else None)
    return f'<div class="card"><h3>{clean(words.title(found))}</h3>{prompt}{both}</div>'
