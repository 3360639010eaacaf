"""What a probe is."""

from __future__ import annotations

from typing import Protocol

from queueproof.audit.book import Book
from queueproof.audit.lab import Lab
from queueproof.contract.axes import Axis


class Probe(Protocol):
    """Varies one thing. It writes what it finds into the book as it goes: it may be ended at any `await`.

    name: for `--probes` and reports. question: one sentence that ends in a question mark. axis: of the contract.
    alone, together: what it costs, as answers for each prompt of the run, asked alone and in a crowd.
    """

    name: str
    question: str
    axis: Axis | None
    needs_witness: bool
    alone: float
    together: float

    async def run(self, lab: Lab, book: Book) -> None: ...
