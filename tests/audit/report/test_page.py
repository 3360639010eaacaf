"""The report of an audit: what it says, that nothing in it acts, and how it looks in a browser."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from queueproof.audit.records import AuditRecord
from queueproof.audit.report.html import page
from tests.audit.price.test_records import result as price
from tests.support import audit_records
from tests.support.browser import Tab, chromium, find_chromium

RECORDS = audit_records.everything()
VOID = {"meta", "br", "col"}
INLINE = {"b", "bdi", "span", "mark", "i"}


class Outline(HTMLParser):
    """Tags, attributes, and the text that is read, of a file whose tags must all close in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []
        self.text = " ".join(self.text.split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self.text += "" if tag in INLINE else " "
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] != "style":
            self.text += data


@pytest.mark.parametrize("name", RECORDS)
def test_nothing_in_it_acts_or_asks(name: str) -> None:
    text = page(RECORDS[name])
    text.encode("utf-8")
    outline = Outline(text)
    assert not {*outline.tags} & {"script", "link", "img", "iframe", "object", "form", "image", "use", "base"}
    assert not any(key.startswith("on") or key in ("src", "srcset", "action") for key, _ in outline.attributes)
    assert all((value or "").startswith("#") for key, value in outline.attributes if key.endswith("href"))
    style = text[text.index("<style>") : text.index("</style>")]
    assert not re.search(r"url\(|@import|https?:", style)
    assert not re.search("[\x00-\x08\x0b-\x1f\u061c\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]", text)
    ids = [value for key, value in outline.attributes if key == "id"]
    assert len(ids) == len({*ids})
    assert {value for key, value in outline.attributes if key == "href"} <= {f"#{value}" for value in ids}
    assert len(text) < 80_000, "small enough for a mail"


@pytest.mark.parametrize("name", RECORDS)
def test_plots_are_sound_and_say_what_they_show(name: str) -> None:
    for drawn in re.findall(r"<svg.*?</svg>", page(RECORDS[name]), re.DOTALL):
        svg = ET.fromstring(drawn)
        said = svg.find("title"), svg.find("desc")
        assert all(element is not None and element.text for element in said)
        assert svg.attrib["role"] == "img" and svg.attrib["aria-label"]
        assert "nan" not in drawn and "inf" not in drawn


def test_what_is_broken_stands_at_the_top() -> None:
    text = Outline(page(audit_records.broken())).text
    order = (
        "Answers change with neighbours in the batch.",
        "They hold against asking again and the prefix cache.",
        "The contract is broken: 1 of 2 promises.",
        "Who answers",
        "vllm 0.32.0",
        "vllm-0.32.0-37805895",
        "Contract",
        "≠ broken",
        "What was tried",
        "0 of 96 at most 3.1%",
        "29 of 240",
        "12.1% (8.2% to 16.9%)",
        "24 requests ran at once (/metrics)",
        "Why, and what to do",
        "batch composition shown by a control",
        "VLLM_BATCH_INVARIANT",
        "sampler likely",
        "In pictures",
        "Probe by probe",
        "13 changed at a near tie, 4 in a real disagreement",
        "real disagreement first difference at token 4",
        "in which requests arrive, and each",
        "4 of 29 are shown; audit.json has 18 of them whole",
        "Trouble with the endpoint",
        "rate limited (retried) 12",
        "How it was measured",
        "48 prompts",
        "How to read it",
    )
    at = 0
    for words in order:
        assert words in text[at:], words
        at = text.index(words, at)


def test_the_first_difference_is_marked_in_both() -> None:
    text = page(audit_records.broken())
    assert '<span class="same">The queue is served in the order in which requests </span><mark>arrive,</mark>' in text
    assert "<mark>came</mark>" in text


def test_a_run_that_is_not_whole_says_so() -> None:
    text = Outline(page(audit_records.interrupted())).text
    assert "The run was interrupted: what is here was measured until then." in text
    assert "Ended early, so their counts are smaller than planned: neighbours." in text
    assert "Not reached: cache." in text and "2 prompts, too long for the budget: long-1, long-2" in text
    assert "interrupted" not in Outline(page(audit_records.clean())).text


def test_no_change_without_a_witness_is_not_called_held() -> None:
    text = Outline(page(audit_records.inconclusive())).text
    assert "No answer changed, but it is not shown to hold for asking again and neighbours in the batch." in text
    assert "not shown: requests ran at once: no counters" in text and "whole text" in text
    assert "version not told" in text and "the endpoint gives no log-probabilities of prompts" in text


def test_an_endpoint_that_failed() -> None:
    assert "The endpoint failed at asking again." in Outline(page(audit_records.failed())).text
    assert "Nothing was compared." in Outline(page(RECORDS["empty"])).text


def test_texts_are_shown_as_they_are_and_cannot_deceive() -> None:
    text = page(audit_records.adversarial())
    read = Outline(text).text
    assert "<script>alert(1)</script>" in read, "as text"
    assert "{{ 7*7 }}{% raw %}" in read and "[U+202E]gnp.exe[U+202C]" in read
    for code in ("U+202E", "U+0000", "U+001B", "U+200B", "U+200C", "U+FEFF", "U+D800", "U+000D"):
        assert f'<b class="code">{code}</b>' in text
    assert "… 99,840 characters before …" in read and "… 49,680 characters more …" in read
    assert "ends here" in read and "1,000,000,000" in read
    assert "<mark>te\u0301" not in text and "<mark>e\u0301te\u0301</mark>" in text, "not cut within a character"


def test_two_endpoints_and_a_price() -> None:
    record = audit_records.clean()
    other = replace(record.endpoint, url="http://other:1")
    text = Outline(page(replace(record, against=other), price(100.0, 50.0, 101.0))).text
    assert "The other endpoint" in text and "http://other:1" in text
    assert "What it costs" in text and "Price in tokens/s: candidate / baseline" in text and "0.498 at" in text


@pytest.fixture
def tab(tmp_path: Path) -> Iterator[Tab]:
    if find_chromium() is None:
        pytest.skip("there is no Chromium")
    with chromium(tmp_path / "profile") as opened:
        yield opened


def _kept(record: AuditRecord, folder: Path) -> Path:
    file = folder / "report.html"
    file.write_text(page(record, price(100.0, 50.0, 101.0)), encoding="utf-8")
    return file


@pytest.mark.browser
@pytest.mark.parametrize("name", ["broken", "adversarial"])
def test_in_a_browser(tab: Tab, tmp_path: Path, name: str) -> None:
    file = _kept(RECORDS[name], tmp_path)
    papers = set()
    for width, scheme in ((1280, "light"), (1280, "dark"), (360, "light"), (360, "dark")):
        tab.size(width, 900, phone=width < 500)
        tab.media(prefers_color_scheme=scheme)
        tab.open(file.as_uri())
        tab.run("document.querySelectorAll('details').forEach(d => d.open = true)")
        assert tab.run("document.documentElement.scrollWidth") <= width, "nothing is wider than the window"
        wide = "[...document.querySelectorAll('td, tbody th, dd, pre, li, h1')].filter(e => e.scrollWidth > e.clientWidth + 1)"
        assert tab.run(f"{wide}.map(e => e.outerHTML.slice(0, 200))") == []
        outside = (
            "[...document.querySelectorAll('svg')].flatMap(s => [...s.querySelectorAll('text, circle')].filter(e =>"
            "{const a = e.getBoundingClientRect(), b = s.getBoundingClientRect();"
            "return a.left < b.left - 1 || a.right > b.right + 1 || a.top < b.top - 1 || a.bottom > b.bottom + 1}))"
        )
        assert tab.run(f"{outside}.map(e => e.textContent)") == [], "plots hold what they draw"
        papers.add(tab.run("getComputedStyle(document.body).backgroundColor"))
        tab.screenshot(tmp_path / f"{name}-{width}-{scheme}.png", whole=True)
        assert (tmp_path / f"{name}-{width}-{scheme}.png").stat().st_size > 20_000
    assert len(papers) == 2, "light and dark"
    assert tab.errors == [] and {*tab.requests} == {file.as_uri()}


@pytest.mark.browser
def test_on_paper_all_of_it_is_there(tab: Tab, tmp_path: Path) -> None:
    tab.send("Emulation.setEmulatedMedia", media="print")
    tab.open(_kept(RECORDS["broken"], tmp_path).as_uri())
    shut = "[...document.querySelectorAll('details:not([open]) .question')]"
    assert tab.run(f"{shut}.length") > 0 and tab.run(f"{shut}.every(e => e.getBoundingClientRect().height > 0)")
