"""Does it matter whether log-probabilities are asked for?"""

from __future__ import annotations

from dataclasses import replace

from queueproof.audit import names
from queueproof.audit.book import Book
from queueproof.audit.lab import Lab
from queueproof.audit.probes.shaping import settled, some
from queueproof.contract.axes import Axis


class LogprobsProbe:
    """The same request with and without log-probabilities, both alone. Only the tokens are compared, else the text."""

    name = names.LOGPROBS
    question = "Is the answer the same when its log-probabilities are not asked for?"
    axis: Axis | None = None
    needs_witness = True
    alone = 0.5
    together = 0.0

    async def run(self, lab: Lab, book: Book) -> None:
        pairs = without = unasked = 0
        try:
            for prompt in some(lab.prompts, 0.5):
                ask = lab.greedy(prompt)
                asked = await settled(lab, ask, book)
                if asked is None:
                    continue
                if asked.logprobs is None:
                    unasked += 1
                    continue
                plain = await lab.alone(replace(ask, logprobs=False), "no logprobs", book)
                if plain is None:
                    continue
                pairs += 1
                without += plain.logprobs is None
                a, b = replace(asked, logprobs=None), replace(plain, logprobs=None)
                book.compare(a, b, "asked against not asked", "with log-probabilities", "without")
        finally:
            if pairs:
                claim = f"{without} of {pairs} answers came without the log-probabilities that the others of their pair have"
                book.witness(claim, "logprobs of the answers", without, pairs)
        if unasked and not pairs:
            book.impossible(
                "the endpoint gives no log-probabilities, asked or not (`logprobs` and `top_logprobs` of the OpenAI API)"
            )
