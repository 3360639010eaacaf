"""Does an answer depend on its place among those that are computed with it, or on the order in which they came?"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from queueproof.audit import names
from queueproof.audit.book import Book
from queueproof.audit.lab import Crowd, Lab
from queueproof.audit.probes.crowds import SHARE, Known, baselines, company, crowds_of, latency
from queueproof.contract.axes import Axis

TURNED = "turned round"
_SMALL = 4  # members of a crowd whose first and last are compared with their answers alone
_WITHIN = 0.6  # of an answer's time, within which a whole crowd is sent
_TURNED = 0.25  # of the pairs must begin the other way round; those that began in one step of the server cannot


class OrderProbe:
    """The same crowd twice, sent one after another in two opposite orders.

    Small crowds: the first in line and the last, each against its answer alone. Both have the same company, so that what
    changes only the last is the place. Large crowds: each answer of one order against that of the other.
    """

    name = names.ORDER
    question = "Does the place in the batch, or the order of arrival, change an answer?"
    axis: Axis | None = Axis.ORDER
    needs_witness = True
    alone = 0.0
    together = 4.0

    async def run(self, lab: Lab, book: Book) -> None:
        known = await baselines(lab, lab.prompts, book)
        if not known:
            return
        small = min(_SMALL, lab.settings.users)
        for members in crowds_of(known, small, lab.rng):
            await self._both(lab, book, members, ends=True)
        if lab.settings.users > small:
            for members in crowds_of(known, lab.settings.users, lab.rng):
                await self._both(lab, book, members, ends=False)

    async def _both(self, lab: Lab, book: Book, members: list[Known], ends: bool) -> None:
        one = await self._sent(lab, book, members)
        other = await self._sent(lab, book, members[::-1])
        other = other._replace(answers=other.answers[::-1])
        if ends:
            for crowd, first, last in ((one, 0, -1), (other, -1, 0)):
                for place, group in ((first, names.FIRST_IN_LINE), (last, names.LAST_IN_LINE)):
                    book.compare(members[place].alone, crowd.answers[place], group, "alone", group)
        else:
            for a, b in zip(one.answers, other.answers, strict=True):
                book.compare(a, b, TURNED, "in one order", "in the other")
        self._say(book, one, other)

    async def _sent(self, lab: Lab, book: Book, members: Sequence[Known]) -> Crowd:
        stagger = _WITHIN * latency(members) / len(members)
        delays = [i * stagger for i in range(len(members))]
        return await lab.crowd([k.ask for k in members], "in order", book, delays)

    def _say(self, book: Book, one: Crowd, other: Crowd) -> None:
        for crowd in (one, other):
            seen = company(crowd)
            if seen.of:
                book.counted(
                    "{count} of {of} answers were written beside others", seen.source, seen.had, seen.of, SHARE
                )
        turned, pairs = _turned(one, other)
        if pairs:
            claim = (
                "of {of} pairs sent half a crowd apart, {count} began in the opposite order when they were sent in it"
            )
            book.counted(claim, "order of the first pieces", turned, pairs, _TURNED)


def _turned(one: Crowd, other: Crowd) -> tuple[int, int]:
    """Pairs whose first pieces came in opposite orders, and all: of answers that came, at least half a crowd apart."""
    begun = [
        None if a is None or b is None else (a.arrivals[:1], b.arrivals[:1])
        for a, b in zip(one.answers, other.answers, strict=True)
    ]
    turned = pairs = 0
    for (i, x), (j, y) in combinations(enumerate(begun), 2):
        if x is None or y is None or j - i < len(begun) / 2:
            continue
        pairs += 1
        turned += x[0] < y[0] and y[1] < x[1] and all((*x, *y))
    return turned, pairs
