"""Alone, again and again: what changes when nothing does."""

from __future__ import annotations

from queueproof.audit import names
from queueproof.audit.ask import Answer, Ask
from queueproof.audit.book import Book
from queueproof.audit.compare import compare
from queueproof.audit.lab import Lab
from queueproof.contract.axes import Axis

_THIRD = 8  # prompts that are asked a third time, besides those that changed


class AloneProbe:
    """Each prompt alone twice, and some a third time: those that were asked first, and those that changed.

    The first answers are the run's references, its very first requests. The second ones are asked in another order, so that
    replicas that take turns do not fall into step with it. The ones that changed are asked a third time since that tells
    a start that was special (it holds from then on) from answers that come and go; it makes the floor no lower.
    """

    name = names.ALONE
    question = "Is the same request, asked alone, answered alike?"
    axis: Axis | None = None
    needs_witness = False
    alone = 2.5
    together = 0.0

    async def run(self, lab: Lab, book: Book) -> None:
        asks = [lab.greedy(prompt) for prompt in lab.prompts]
        firsts = [await lab.reference(ask, book) for ask in asks]
        seconds: dict[int, Answer] = {}
        third = set(range(min(_THIRD, len(asks))))
        for i in lab.rng.sample(range(len(asks)), len(asks)):
            second = await lab.alone(asks[i], "alone again", book)
            if second is None:
                continue
            seconds[i] = second
            found = book.compare(firsts[i], second, names.SECOND, "first", "second")
            if found is not None and found.changed:
                third.add(i)
        await self._third(lab, book, asks, firsts, {i: seconds[i] for i in sorted(third & seconds.keys())})

    async def _third(
        self, lab: Lab, book: Book, asks: list[Ask], firsts: list[Answer | None], seconds: dict[int, Answer]
    ) -> None:
        changed = back = stayed = 0
        for i in lab.rng.sample(sorted(seconds), len(seconds)):
            third = await lab.alone(asks[i], "alone a third time", book)
            first = firsts[i]
            book.compare(seconds[i], third, names.THIRD, "second", "third")
            if first is None or third is None or not compare(first, seconds[i]).changed:
                continue
            changed += 1
            back += not compare(first, third).changed
            stayed += not compare(seconds[i], third).changed
        if changed:
            book.note(
                f"of {changed} prompts whose second answer differed, the third ask gave the second answer again for "
                f"{stayed}, the first for {back}, and another for {changed - stayed - back}"
            )
