"""Lines over a scale."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from queueproof.audit.report.svg import Line, Point, lines


def drawn(labels: list[str], points: tuple[Point, ...], rule: float | None = None) -> ET.Element:
    text = lines("t", "d", labels, [Line("x", "a", points)], "users", lambda v: f"{v:.12g}", rule, zero=False)
    return ET.fromstring(str(text))


def ticks(svg: ET.Element) -> list[float]:
    return [float(t.text or "") for t in svg.findall("text[@class='end']")]


def test_a_chart_shows_values_where_they_are() -> None:
    points = (Point(0, 1.0, "one", 0.9, 1.1), Point(2, 3.0, "three", hollow=True))
    svg = drawn(["1", "8", "32"], points, rule=1.0)
    one, three = svg.findall(".//circle")
    assert float(one.attrib["cy"]) > float(three.attrib["cy"]) and float(one.attrib["cx"]) < float(three.attrib["cx"])
    assert three.attrib["class"] == "dot hollow"
    assert [t.text for t in svg.findall("g/g/title")] == ["one", "three"]
    assert len(svg.findall(".//path[@class='bar']")) == 1 and len(svg.findall(".//path[@class='rule']")) == 1
    assert ticks(svg)[0] <= 0.9 and ticks(svg)[-1] >= 3.0 and len(ticks(svg)) <= 8


@pytest.mark.parametrize("value", [0.0, 1e-4, 1.0, 51.93, 12939.0])
def test_one_value_has_a_scale(value: float) -> None:
    found = ticks(drawn(["1"], (Point(0, value, ""),)))
    assert found[0] <= value <= found[-1] and len(set(found)) == len(found) > 1
