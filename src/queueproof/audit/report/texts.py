"""Two answers side by side, cut around their first difference, as markup that cannot act as any."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from markupsafe import Markup, escape

from queueproof.audit.records import Difference, ProbeResult, Unit
from queueproof.audit.report.words import combining, number, pieces

BEFORE, AFTER = 160, 320  # characters that are shown before and from the first difference on
SHOWN = 4  # differences of a probe
_MARKED = re.compile(r"\s*\S{1,24}|\s{1,24}")  # what is marked: the first word of what differs


class Side(NamedTuple):
    """name: which answer. text: markup."""

    name: str
    text: Markup


class Pair(NamedTuple):
    """A difference to show. judgement: `near tie`, `real disagreement`, or empty where it cannot be told. sides: none where
    the texts are equal."""

    prompt: str
    group: str
    facts: tuple[str, ...]
    judgement: str
    sides: tuple[Side, ...]


def chosen(result: ProbeResult) -> list[Pair]:
    """The differences that say most, each prompt once where there are enough: real disagreements, then other tokens."""
    ranked = sorted(result.differences, key=lambda d: (d.near_tie is not False, d.position is None))
    first: dict[str, Difference] = {}
    for difference in ranked:
        first.setdefault(difference.prompt, difference)
    others = [d for d in ranked if first[d.prompt] is not d]
    return [_pair(difference) for difference in [*first.values(), *others][:SHOWN]]


def judgements(results: Iterable[ProbeResult]) -> tuple[int, int, int]:
    """Of the differences kept whose tokens changed: near ties, real disagreements, and those that cannot be told."""
    found = [d.near_tie for result in results for d in result.differences if d.position is not None]
    return found.count(True), found.count(False), found.count(None)


def _pair(d: Difference) -> Pair:
    judged = {True: "near tie", False: "real disagreement", None: ""}[d.near_tie]
    sides = (Side(d.a_name, _excerpt(d.a, d.split)), Side(d.b_name, _excerpt(d.b, d.split))) if d.a != d.b else ()
    return Pair(d.prompt, d.group, tuple(_facts(d)), judged, sides)


def _facts(d: Difference) -> Sequence[str]:
    unit = "character" if d.unit is Unit.TEXT else "token"
    found = [f"first difference at {unit} {number(d.position + 1)}"] if d.position is not None else ["the same text"]
    if d.logprob_position is not None:
        found.append(f"log-probabilities differ from token {number(d.logprob_position + 1)}")
    if d.max_logprob_difference:
        found.append(f"by up to {d.max_logprob_difference:.2g} nats while the tokens agree")
    if d.margin is not None:
        found.append(f"the best token led the second by {d.margin:.2g} nats")
    return found


def _excerpt(text: str, split: int) -> Markup:
    """What surrounds character `split`, the first word from there on marked, and how much is left out."""
    split = min(split, len(text))
    while 0 < split < len(text) and combining(text[split]):
        split -= 1
    start, end = max(0, split - BEFORE), min(len(text), split + AFTER)
    found = _MARKED.match(text, split, end)
    marked = found.end() if found else split
    while marked < end and combining(text[marked]):
        marked += 1
    first = shown(text[split:marked]) if marked > split else Markup('<i class="none">ends here</i>')
    return Markup('{}<span class="same">{}</span><mark>{}</mark><span class="other">{}</span>{}').format(
        _left_out(start, "before"),
        shown(text[start:split]),
        first,
        shown(text[marked:end]),
        _left_out(len(text) - end, "more"),
    )


def _left_out(count: int, where: str) -> Markup:
    if not count:
        return Markup("")
    return Markup('<i class="none">… {} characters {} …</i>').format(number(count), where)


def shown(text: str) -> Markup:
    """Escaped, and characters that move or hide others as their codes."""
    parts = (Markup('<b class="code">{}</b>').format(part) if coded else escape(part) for part, coded in pieces(text))
    return Markup("").join(parts)
