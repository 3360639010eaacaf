"""The frame that reports share: one HTML file with its style inside, which asks for nothing and runs no script.

Whatever a template prints is escaped, and characters that would deceive a reader are written as their codes: texts here
come from models and servers.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from queueproof.audit.report.words import number, visible

LONGEST = 400  # characters of one value in a template


def frame(title: str, body: Markup) -> str:
    """The whole file. body: markup that is safe already."""
    style = Markup(files("queueproof.audit.report").joinpath("style.css").read_text(encoding="utf-8"))
    return str(render("frame.html.jinja", title=title, body=body, style=style)) + "\n"


def render(template: str, **values: Any) -> Markup:
    """A template of this package, filled."""
    return Markup(_templates().get_template(template).render(**values))


@cache
def _templates() -> Environment:
    made = Environment(
        loader=PackageLoader("queueproof.audit.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
    )
    made.filters["number"] = number
    return made


def _finalize(value: object) -> object:
    """What a template prints, if it is not markup: visible, and of bearable length (the record has it whole)."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    more = len(value) - LONGEST
    return visible(value) if more <= 0 else f"{visible(value[:LONGEST])}… ({number(more)} more characters)"
