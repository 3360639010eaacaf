"""A price as one HTML file that asks nothing of any other: curves by users, and the table."""

from __future__ import annotations

from queueproof.audit.price import words
from queueproof.audit.price.records import PriceResult
from queueproof.audit.report import plots
from queueproof.audit.report.frame import frame, render

_NUMBERS = (0, 2, 3, 5)  # columns


def page(result: PriceResult) -> str:
    """The whole file."""
    body = render(
        "price.html.jinja",
        summary=words.summary(result),
        sides=[("c", "baseline", words.who(result.baseline)), ("a", "candidate", words.who(result.candidate))],
        figures=[*plots.rates(result), *plots.prices(result)],
        headings=words.HEADINGS,
        numbers=_NUMBERS,
        rows=words.rows(result),
        notes=[*result.notes, *words.troubles(result)],
        method=words.method(result),
        started=result.started,
        tool=result.tool,
    )
    return frame("Price of a mode", body)
