"""Does it matter whether an answer is streamed?"""

from __future__ import annotations

from dataclasses import replace

from queueproof.audit import names
from queueproof.audit.book import Book
from queueproof.audit.lab import Lab
from queueproof.audit.probes.shaping import settled, some
from queueproof.contract.axes import Axis


class StreamProbe:
    """The same request streamed and in one piece, both alone."""

    name = names.STREAM
    question = "Is a streamed answer the same as one that comes in one piece?"
    axis: Axis | None = None
    needs_witness = True
    alone = 0.5
    together = 0.0

    async def run(self, lab: Lab, book: Book) -> None:
        streamed = pieces = 0
        try:
            for prompt in some(lab.prompts, 0.5):
                ask = lab.greedy(prompt)
                parts = await settled(lab, ask, book)
                if parts is None:
                    continue
                whole = await lab.alone(replace(ask, stream=False), "not streamed", book)
                found = book.compare(parts, whole, "streamed against whole", "streamed", "in one piece")
                streamed += found is not None
                pieces += found is not None and len(parts.arrivals) > 1
                if found is not None and whole is not None and (parts.ids is None) != (whole.ids is None):
                    which = "whole" if parts.ids is None else "streamed"
                    book.note(f"only {which} answers tell their token ids here, so the ids were not compared")
                if found is not None and whole is not None and (parts.logprobs is None) != (whole.logprobs is None):
                    which = "whole" if parts.logprobs is None else "streamed"
                    book.note(f"only {which} answers have log-probabilities here, so these were not compared")
                if found is not None and whole is not None and not found.changed:
                    told = len(parts.ids or parts.tokens or ()), len(whole.ids or whole.tokens or ())
                    if 0 < min(told) < max(told):
                        which = "whole" if told[0] < told[1] else "streamed"
                        book.note(f"only {which} answers list the token that ended them, which is no difference")
        finally:
            if streamed:
                claim = (
                    f"{pieces} of {streamed} streamed answers came in several pieces, the others of their pair in one"
                )
                book.witness(claim, "pieces of the stream", pieces, 1)
