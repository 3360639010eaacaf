"""A small line chart as inline SVG: values by number of users, with intervals, and hollow points where nothing is sure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

_WIDTH, _HEIGHT = 340, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 14, 14, 40
_TICKS = 5  # about


class Point(NamedTuple):
    """At the x-th label. low, high: of its interval. hollow: shown as unsure. title: what a pointer over it shows."""

    x: int
    value: float
    title: str
    low: float | None = None
    high: float | None = None
    hollow: bool = False


class Line(NamedTuple):
    """kind: its class in the style sheet, which gives its color."""

    name: str
    kind: str
    points: tuple[Point, ...]


def chart(title: str, unit: str, labels: Sequence[str], lines: Sequence[Line], rule: float | None = None) -> str:
    """A figure. labels: of the x axis. rule: a value at which a line goes across."""
    values = [v for line in lines for p in line.points for v in (p.value, p.low, p.high) if v is not None]
    if not values:
        return ""
    ticks = _ticks(min([*values, *([] if rule is None else [rule])]), max([*values, *([] if rule is None else [rule])]))
    bottom, top = ticks[0], ticks[-1]

    def y(value: float) -> float:
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (top - value) / (top - bottom)

    def x(index: int) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (index + 0.5) / len(labels)

    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">']
    for tick in ticks:
        parts.append(f'<path class="grid" d="M{_LEFT} {y(tick):.1f}H{_WIDTH - _RIGHT}"/>')
        parts.append(f'<text class="y" x="{_LEFT - 6}" y="{y(tick) + 4:.1f}">{tick:g}</text>')
    if rule is not None:
        parts.append(f'<path class="rule" d="M{_LEFT} {y(rule):.1f}H{_WIDTH - _RIGHT}"/>')
    for i, label in enumerate(labels):
        parts.append(f'<text class="x" x="{x(i):.1f}" y="{_HEIGHT - _BOTTOM + 16}">{escape(label)}</text>')
    parts.append(f'<text class="x" x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{_HEIGHT - 6}">users</text>')
    for line in lines:
        path = "L".join(f"{x(p.x):.1f} {y(p.value):.1f}" for p in line.points)
        parts.append(f'<g class="{line.kind}"><path class="line" d="M{path}"/>')
        for p in line.points:
            if p.low is not None and p.high is not None:
                parts.append(f'<path class="bar" d="M{x(p.x):.1f} {y(p.low):.1f}V{y(p.high):.1f}"/>')
            hollow = ' class="hollow"' if p.hollow else ""
            parts.append(
                f'<circle{hollow} cx="{x(p.x):.1f}" cy="{y(p.value):.1f}" r="4"><title>{escape(p.title)}</title></circle>'
            )
        parts.append("</g>")
    parts.append("</svg>")
    return f"<figure><figcaption>{escape(title)} <small>{escape(unit)}</small></figcaption>{''.join(parts)}</figure>"


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers around low to high, evenly spaced."""
    rough = max(high - low, abs(high) * 0.02, 1e-9) / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [round(i * step, 12) for i in range(first, max(last, first + 1) + 1)]
