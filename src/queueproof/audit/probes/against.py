"""Do two endpoints give the same answers: another data type, another number of devices, version or replica?"""

from __future__ import annotations

from queueproof.audit import names
from queueproof.audit.ask import Ask
from queueproof.audit.book import Book
from queueproof.audit.endpoint import Endpoint
from queueproof.audit.lab import Lab
from queueproof.audit.probes.shaping import some
from queueproof.audit.records import EndpointIdentity
from queueproof.contract.axes import Axis

_FIELDS = ("url", "model", "vendor", "version", "fingerprints")


class AgainstProbe:
    """other: is asked alone, as the first was; a few prompts twice, which is its own floor."""

    name = names.AGAINST
    question = "Do the two endpoints give the same answers?"
    axis: Axis | None = None
    needs_witness = True
    alone = 1.2
    together = 0.0

    def __init__(self, other: Endpoint, mine: EndpointIdentity, theirs: EndpointIdentity) -> None:
        self._other, self._mine, self._theirs = other, mine, theirs

    async def run(self, lab: Lab, book: Book) -> None:
        differ = [name for name in _FIELDS if getattr(self._mine, name) != getattr(self._theirs, name)]
        self._describe(book, differ)
        there = lab.beside(self._other)
        controls = {prompt.key for prompt in some(lab.prompts, 0.2, 4)}
        both = 0
        try:
            for prompt in lab.prompts:
                here = await lab.reference(lab.greedy(prompt), book)
                if here is None:
                    continue
                ask = Ask(prompt, lab.settings.max_tokens, cache=there.cold)
                answer = await there.alone(ask, "against", book)
                both += answer is not None
                book.compare(here, answer, names.THE_TWO, self._mine.url, self._theirs.url)
                if prompt.key in controls and answer is not None:
                    again = await there.alone(ask, "against again", book)
                    book.compare(answer, again, names.THE_OTHER_TWICE, self._theirs.url, f"{self._theirs.url} again")
        finally:
            lab.requests += there.requests
            lab.tokens += there.tokens
            if both:
                said = (
                    f"both answered {both} prompts, and they are two" if differ else "both answered, but they are one"
                )
                book.witness(f"{said}: {', '.join(differ) or 'nothing'} differs", "identities", len(differ), 1)

    def _describe(self, book: Book, differ: list[str]) -> None:
        for name in differ:
            if name != "url":
                was, there = getattr(self._mine, name), getattr(self._theirs, name)
                book.note(f"{name}: {_plain(was)} here, {_plain(there)} there")
        if self._mine.model != self._theirs.model:
            book.note("the models have different names: ids are of one vocabulary only if the models share it")


def _plain(value: object) -> str:
    return ", ".join(map(str, value)) or "none" if isinstance(value, tuple) else str(value or "unknown")
