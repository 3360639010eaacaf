"""Does the endpoint still give the answers that it gave when the run began?"""

from __future__ import annotations

from queueproof.audit import names
from queueproof.audit.ask import Answer, Ask
from queueproof.audit.book import Book
from queueproof.audit.compare import compare
from queueproof.audit.lab import Lab
from queueproof.audit.probes.shaping import some
from queueproof.contract.axes import Axis

_STABLE, _UNSTABLE, _OPEN = "unchanged", "unstable", "changed, not asked a third time"


class DriftProbe:
    """References asked again, alone, at the end of a run. One that changed is asked a third time, which tells a new build
    (as the second) from replicas that take turns (as the first) and from an answer that is different each time.
    """

    name = names.DRIFT
    question = "Are the answers at the end of the run those of its beginning?"
    axis: Axis | None = None
    needs_witness = False
    alone = 0.5
    together = 0.0

    async def run(self, lab: Lab, book: Book) -> None:
        for prompt in some(lab.prompts, 0.5):
            ask = lab.greedy(prompt)
            first = await lab.reference(ask, book)
            again = await lab.alone(ask, "drift", book) if first is not None else None
            if first is not None and again is not None:
                _note_names(book, first, again)
                await self._sorted(lab, book, ask, first, again)

    async def _sorted(self, lab: Lab, book: Book, ask: Ask, first: Answer, again: Answer) -> None:
        if not compare(first, again).changed:
            book.compare(first, again, _STABLE, "at first", "at the end")
            return
        group = _OPEN
        try:
            third = await lab.alone(ask, "drift again", book)
            if third is not None and not compare(again, third).changed:
                group = names.FOR_GOOD
            elif third is not None and not compare(first, third).changed:
                group = names.BACK_AND_FORTH
            elif third is not None:
                group = _UNSTABLE
        finally:  # a change that was seen counts, also where the run ends here
            book.compare(first, again, group, "at first", "at the end")


def _note_names(book: Book, first: Answer, again: Answer) -> None:
    for name, was, now in (
        ("fingerprint", first.fingerprint, again.fingerprint),
        ("model", first.model, again.model),
    ):
        if was != now and was is not None and now is not None:
            book.note(f"{name} changed: {was} at first, {now} at the end")
