"""What probes of crowds need: answers to compare with, groups of prompts, and who was written beside whom."""

from __future__ import annotations

import random
import statistics
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple, TypeVar

from queueproof.audit.ask import Answer, Ask, Cache, Prompt
from queueproof.audit.book import Book
from queueproof.audit.lab import Crowd, Lab, warm

T = TypeVar("T")
SHARE = 0.5  # of the answers must have had company


async def baseline(lab: Lab, ask: Ask, book: Book) -> Answer | None:
    """The answer to compare those of a crowd with: alone, and on a cache that knows as much as it will then.

    Where the endpoint can forget, that is the reference. Else the prompt was asked before, and is asked alone once more:
    a difference between cold and warm shall not be taken for one between alone and not alone.
    """
    known = await lab.reference(ask, book)
    return known if known is None or lab.cold is Cache.COLD else await lab.reference(warm(ask, "asked before"), book)


class Known(NamedTuple):
    """A request and its answer alone."""

    ask: Ask
    alone: Answer


async def baselines(lab: Lab, prompts: Sequence[Prompt], book: Book) -> list[Known]:
    """Of those prompts that were answered."""
    found = []
    for prompt in prompts:
        ask = lab.greedy(prompt)
        answer = await baseline(lab, ask, book)
        if answer is not None:
            found.append(Known(ask, answer))
    return found


def crowds_of(known: Sequence[T], size: int, rng: random.Random) -> Iterator[list[T]]:
    """All of them in a new order, in crowds of just that size. The last is filled up with others, again if need be."""
    order = rng.sample(known, len(known))
    for start in range(0, len(order), size):
        crowd = order[start : start + size]
        while len(crowd) < size:
            crowd += order[: size - len(crowd)]
        yield crowd


def latency(known: Sequence[Known]) -> float:
    """Seconds that an answer alone takes: the median."""
    return statistics.median(k.alone.latency for k in known)


class Company(NamedTuple):
    """Of so many answers, `had` were written beside at least one other. most: at once, as far as is known."""

    had: int
    of: int
    source: str
    most: float


def company(crowd: Crowd, whose: Collection[int] | None = None) -> Company:
    """Of the answers at these places, or of all. By the server's numbers where the streams show less.

    A server that says it runs two requests at once does not say which: all are then counted as having had company.
    """
    answers = crowd.answers
    mine = [i for i in (range(len(answers)) if whose is None else whose) if answers[i] is not None]
    spans = {i: span for i, answer in enumerate(answers) if (span := written(answer)) is not None}
    count = sum(1 for i in mine if i in spans and _has_company(i, spans))
    running = crowd.running or 0.0
    most = max(float(crowd.shared), running)
    if running >= 2 and count < SHARE * len(mine):
        return Company(len(mine), len(mine), "/metrics", most)
    return Company(count, len(mine), "interleaved streams", most)


def written(answer: Answer | None) -> tuple[float, float] | None:
    """From the first piece to the last. None where there were not two at different times."""
    if answer is None or not answer.arrivals or answer.arrivals[0] == answer.arrivals[-1]:
        return None
    return answer.arrivals[0], answer.arrivals[-1]


def _has_company(i: int, spans: dict[int, tuple[float, float]]) -> bool:
    start, end = spans[i]
    return any(j != i and first < end and start < last for j, (first, last) in spans.items())
