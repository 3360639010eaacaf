"""Three small plots as inline SVG: points with intervals along rows, lines over a scale, and strips of single values.

Colours come from the page: a class `a`, `b` or `c` sets --c, text and rules use the page's. Every plot has a title and a
description for those who do not see it, and each mark says its numbers when it is pointed at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from markupsafe import Markup, escape

from queueproof.audit.report.words import visible

WIDTH = 360
_RIGHT, _TOP, _FOOT = 24, 8, 34  # _FOOT: the scale's numbers and its name
_ROW = 26  # of a plot by rows
_GLYPH = 7.2  # pixels of a character of a label, about
_LONGEST = 22  # characters of a label

Words = Callable[[float], str]


class Bar(NamedTuple):
    """A point with its interval. kind: a colour's class. hollow: of less weight. title: what pointing at it shows."""

    label: str
    value: float
    low: float
    high: float
    title: str
    kind: str = "a"
    hollow: bool = False


class Point(NamedTuple):
    """Of a line, at the x-th label."""

    x: int
    value: float
    title: str
    low: float | None = None
    high: float | None = None
    hollow: bool = False


class Line(NamedTuple):
    name: str
    kind: str
    points: tuple[Point, ...]


class Strip(NamedTuple):
    """A row of single values."""

    label: str
    values: tuple[float, ...]
    kind: str = "a"


def bars(title: str, description: str, rows: Sequence[Bar], scale: str, words: Words) -> Markup:
    """Points with intervals, a row each, on a scale that begins at 0. scale: its name. words: of a value."""
    left = _left([row.label for row in rows])
    ticks = _ticks(0.0, max((row.high for row in rows), default=1.0), 4)
    height = _TOP + _ROW * len(rows) + _FOOT
    x = _across(left, ticks[0], ticks[-1])
    parts = _scale([(x(t), words(t)) for t in ticks], scale, left, height)
    for i, row in enumerate(rows):
        y = _TOP + _ROW * (i + 0.5)
        parts.append(_label(row.label, left, y))
        hollow = " hollow" if row.hollow else ""
        parts.append(
            Markup('<g class="{}"><title>{}</title><path class="bar" d="M{:.1f} {:.1f}H{:.1f}"/>').format(
                row.kind, visible(row.title), x(row.low), y, x(row.high)
            )
        )
        parts.append(
            Markup('<circle class="dot{}" cx="{:.1f}" cy="{:.1f}" r="4.5"/></g>').format(hollow, x(row.value), y)
        )
    return _svg(title, description, height, parts)


def strips(title: str, description: str, rows: Sequence[Strip], scale: str, words: Words, log: bool = False) -> Markup:
    """Each value as a small mark in its row, the row's median as a line. log: a scale of powers of ten; values above 0."""
    values = [value for row in rows for value in row.values]
    left = _left([row.label for row in rows])
    shown = [math.log10(value) for value in values] if log else values
    ticks = _powers(min(shown), max(shown)) if log else _ticks(min([0.0, *shown]), max(shown), 4)
    height = _TOP + _ROW * len(rows) + _FOOT
    x = _across(left, ticks[0], ticks[-1])
    parts = _scale([(x(t), words(10.0**t if log else t)) for t in ticks], scale, left, height)
    for i, row in enumerate(rows):
        y = _TOP + _ROW * (i + 0.5)
        parts.append(_label(row.label, left, y))
        ordered = sorted(math.log10(value) if log else value for value in row.values)
        marks = "".join(f"M{x(value):.1f} {y - 6:.1f}v12" for value in ordered)
        middle = x(ordered[len(ordered) // 2])
        parts.append(
            Markup('<g class="{}"><path class="marks" d="{}"/><path class="median" d="M{:.1f} {:.1f}v20"/></g>').format(
                row.kind, marks, middle, y - 10
            )
        )
    return _svg(title, description, height, parts)


def lines(
    title: str,
    description: str,
    labels: Sequence[str],
    drawn: Sequence[Line],
    scale: str,
    words: Words,
    rule: float | None = None,
    zero: bool = True,
) -> Markup:
    """Values over labels at even distances. rule: a value at which a line goes across. zero: the scale begins at 0."""
    height, left = 210, 52
    values = [v for line in drawn for p in line.points for v in (p.value, p.low, p.high) if v is not None]
    ends = [*values, *([0.0] if zero else []), *([rule] if rule is not None else [])]
    ticks = _ticks(min(ends), max(ends), 4)
    bottom, top = ticks[0], ticks[-1]

    def y(value: float) -> float:
        return _TOP + (height - _TOP - _FOOT) * (top - value) / (top - bottom)

    def x(index: int) -> float:
        return left + (WIDTH - _RIGHT - left) * (index + 0.5) / len(labels)

    parts = []
    for t in ticks:
        parts.append(Markup('<path class="grid" d="M{} {:.1f}H{}"/>').format(left, y(t), WIDTH - _RIGHT))
        parts.append(Markup('<text class="end" x="{}" y="{:.1f}">{}</text>').format(left - 6, y(t) + 4, words(t)))
    if rule is not None:
        parts.append(Markup('<path class="rule" d="M{} {:.1f}H{}"/>').format(left, y(rule), WIDTH - _RIGHT))
    for i, label in enumerate(labels):
        at = Markup('<text class="mid" x="{:.1f}" y="{}">{}</text>')
        parts.append(at.format(x(i), height - _FOOT + 17, visible(label)))
    parts.append(
        Markup('<text class="mid" x="{}" y="{}">{}</text>').format((left + WIDTH - _RIGHT) / 2, height - 4, scale)
    )
    for n, line in enumerate(drawn):
        aside = 5.0 * (n - (len(drawn) - 1) / 2)  # lines side by side, so that intervals do not hide one another
        path = "L".join(f"{x(p.x) + aside:.1f} {y(p.value):.1f}" for p in line.points if not p.hollow)
        parts.append(Markup('<g class="{}">').format(line.kind))
        if path:
            parts.append(Markup('<path class="line" d="M{}"/>').format(path))
        for p in line.points:
            at_x = x(p.x) + aside + (4.0 if p.hollow else 0.0)
            parts.append(Markup("<g><title>{}</title>").format(visible(p.title)))
            if p.low is not None and p.high is not None:
                parts.append(Markup('<path class="bar" d="M{:.1f} {:.1f}V{:.1f}"/>').format(at_x, y(p.low), y(p.high)))
            hollow = " hollow" if p.hollow else ""
            parts.append(
                Markup('<circle class="dot{}" cx="{:.1f}" cy="{:.1f}" r="4.5"/></g>').format(hollow, at_x, y(p.value))
            )
        parts.append(Markup("</g>"))
    return _svg(title, description, height, parts)


def _svg(title: str, description: str, height: float, parts: Sequence[Markup]) -> Markup:
    head = Markup('<svg viewBox="0 0 {} {:g}" role="img" aria-label="{}"><title>{}</title><desc>{}</desc>')
    name = visible(title)
    return head.format(WIDTH, height, name, name, visible(description)) + Markup("").join(parts) + Markup("</svg>")


def _scale(ticks: Sequence[tuple[float, str]], name: str, left: float, height: float) -> list[Markup]:
    """Rules from the top down, as many of their numbers as have room, and the scale's name."""
    parts = []
    longest = _GLYPH * max(len(text) for _, text in ticks)
    every = math.ceil((longest + _GLYPH) / (ticks[1][0] - ticks[0][0]))
    for i, (x, text) in enumerate(ticks):
        parts.append(Markup('<path class="grid" d="M{:.1f} {}V{}"/>').format(x, _TOP, height - _FOOT))
        if i % every == 0:
            at = min(x, WIDTH - _GLYPH * len(text) / 2)
            parts.append(Markup('<text class="mid" x="{:.1f}" y="{}">{}</text>').format(at, height - _FOOT + 15, text))
    middle = (left + WIDTH - _RIGHT) / 2
    return [*parts, Markup('<text class="mid" x="{:.1f}" y="{}">{}</text>').format(middle, height - 4, name)]


def _label(text: str, left: float, y: float) -> Markup:
    return Markup('<text class="end strong" x="{:.1f}" y="{:.1f}">{}</text>').format(left - 10, y + 4, _short(text))


def _short(text: str) -> Markup:
    text = visible(text)
    return escape(text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…")


def _left(labels: Sequence[str]) -> float:
    return 18 + _GLYPH * min(_LONGEST, max(map(len, labels), default=0))


def _across(left: float, low: float, high: float) -> Callable[[float], float]:
    """The place of a value on a scale from left to right."""
    return lambda value: left + (WIDTH - _RIGHT - left) * (value - low) / (high - low)


def _powers(low: float, high: float, most: int = 6) -> list[float]:
    """Whole exponents around low to high, evenly spaced."""
    first, last = math.floor(low), max(math.ceil(high), math.floor(low) + 1)
    step = math.ceil((last - first) / (most - 1))
    return [float(first + i * step) for i in range(math.ceil((last - first) / step) + 1)]


def _ticks(low: float, high: float, about: int) -> list[float]:
    """Round numbers around low to high, evenly spaced."""
    rough = max(high - low, abs(high) * 0.02, 1e-9) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * (1 - 1e-12))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 12) for i in range(first, max(last, first + 1) + 1)]
