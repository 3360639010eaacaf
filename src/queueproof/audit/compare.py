"""Two answers to one request, token by token. Nothing is rounded: a log-probability is the double that the JSON said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from queueproof.audit.ask import Answer
from queueproof.audit.records import Unit


@dataclass(frozen=True, slots=True)
class Comparison:
    """Where two answers part. Positions count tokens (of Unit.TEXT: characters) from 0; None: no difference.

    logprobs: whether both had log-probabilities to compare. max_logprob_difference: while the tokens agree.
    margin: of the first answer at `position`. split: the first character at which the texts differ, or their length.
    """

    unit: Unit
    position: int | None
    logprob_position: int | None
    max_logprob_difference: float
    margin: float | None
    split: int
    logprobs: bool

    @property
    def tokens_changed(self) -> bool:
        return self.position is not None

    @property
    def changed(self) -> bool:
        return self.position is not None or self.logprob_position is not None


def compare(a: Answer, b: Answer) -> Comparison:
    """Compares by ids, else by tokens, else by text; and the log-probabilities while the tokens agree.

    A token that ended both, and that only one of them lists, is no difference: llama.cpp lists it where it does not stream.
    """
    split = _first_difference(a.text, b.text)
    unit, position = Unit.TEXT, split
    if a.ids is not None and b.ids is not None:
        unit, position = Unit.IDS, _first_difference(a.ids, b.ids)
    elif a.tokens is not None and b.tokens is not None:
        unit, position = Unit.TOKENS, _first_difference(a.tokens, b.tokens)
    if position is not None and _end_told_once(a, b, unit):
        position = None
    if position is None and split is not None:  # equal tokens that were written as other text
        unit, position = Unit.TEXT, split
    if position is None and a.finish_reason != b.finish_reason:  # one of them did not go on where it could
        position = len(a.text) if unit is Unit.TEXT else len((a.ids if unit is Unit.IDS else a.tokens) or ())
    by_token = unit is not Unit.TEXT
    logprob_position, largest, both = None, 0.0, a.logprobs is not None and b.logprobs is not None
    if a.logprobs is not None and b.logprobs is not None:
        agreed = min(len(a.logprobs), len(b.logprobs))
        if position is not None and by_token:
            agreed = min(agreed, position)
        elif position is not None:
            agreed = 0  # where the texts part, in tokens, is not known
        for i in range(agreed):
            p, q = a.logprobs[i], b.logprobs[i]
            if p != q:
                logprob_position = i if logprob_position is None else logprob_position
                if p is not None and q is not None:
                    largest = max(largest, abs(p - q))
    margin = None
    if position is not None and by_token and a.margins is not None and position < len(a.margins):
        margin = a.margins[position]
    end = min(len(a.text), len(b.text)) if split is None else split
    return Comparison(unit, position, logprob_position, largest, margin, end, both)


def _end_told_once(a: Answer, b: Answer, unit: Unit) -> bool:
    """Whether both are one answer, and only one of them lists the token that ended it: the counts of tokens tell."""
    x, y = (a.ids, b.ids) if unit is Unit.IDS else (a.tokens, b.tokens)
    if unit is Unit.TEXT or x is None or y is None or a.completion_tokens is None:
        return False
    short, long = sorted((x, y), key=len)
    same = (a.text, a.finish_reason, a.completion_tokens) == (b.text, "stop", b.completion_tokens)
    return same and len(long) == len(short) + 1 == a.completion_tokens and long[:-1] == short


def _first_difference(a: Sequence[object], b: Sequence[object]) -> int | None:
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return None if len(a) == len(b) else min(len(a), len(b))
