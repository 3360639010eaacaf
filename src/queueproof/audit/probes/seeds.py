"""Does a seed give the same answer again, alone and in a crowd?"""

from __future__ import annotations

from dataclasses import replace

from queueproof.audit import names
from queueproof.audit.ask import Answer, Ask
from queueproof.audit.book import Book
from queueproof.audit.lab import Crowd, Lab
from queueproof.audit.probes.shaping import if_taken, some
from queueproof.contract.axes import Axis

TEMPERATURE = 1.0


class SeedsProbe:
    """Each prompt sampled with a seed of its own: twice alone, and once in a crowd, of which the rest has other seeds."""

    name = names.SEEDS
    question = "Does a seed give the same sampled answer again, alone and in a crowd?"
    axis: Axis | None = None
    needs_witness = True
    alone = 1.0
    together = 1.0

    async def run(self, lab: Lab, book: Book) -> None:
        asks = [self._ask(lab, prompt_ask) for prompt_ask in map(lab.greedy, some(lab.prompts, 0.5))]
        firsts: list[Answer | None] = []
        others: list[tuple[Answer, Answer]] = []
        crowd: Crowd | None = None
        try:
            for ask in asks:
                first = await if_taken(lab, ask, "seeded", book)
                if isinstance(first, str):
                    book.impossible(
                        f"the endpoint rejects a request with temperature {TEMPERATURE:g} and a seed ({first})"
                    )
                    return
                firsts.append(first)
                if first is None:
                    continue
                again = await lab.alone(ask, "seeded again", book)
                book.compare(first, again, names.SAME_SEED, "first", "again")
            rest = [self._ask(lab, asks[i % len(asks)]) for i in range(max(lab.settings.users, 2) - len(asks))]
            crowd = await lab.crowd([*asks, *rest], "seeded crowd", book)
            for i, answer in enumerate(crowd.answers):
                first = firsts[i % len(asks)]
                if i < len(asks):
                    book.compare(first, answer, names.SAME_SEED_CROWD, "alone", "in a crowd")
                elif first is not None and answer is not None:
                    others.append((first, answer))
            if not others:
                await self._others(lab, book, asks, firsts, others)
        finally:
            if book.compared:
                _say(book, others, crowd)

    def _ask(self, lab: Lab, ask: Ask) -> Ask:
        return replace(ask, temperature=TEMPERATURE, seed=lab.rng.randrange(1, 2**31))

    async def _others(
        self,
        lab: Lab,
        book: Book,
        asks: list[Ask],
        firsts: list[Answer | None],
        others: list[tuple[Answer, Answer]],
    ) -> None:
        """A few more with other seeds, where the crowd had no room for them."""
        for ask, first in list(zip(asks, firsts, strict=True))[:4]:
            answer = await lab.alone(self._ask(lab, ask), "other seed", book)
            if first is not None and answer is not None:
                others.append((first, answer))


def _say(book: Book, others: list[tuple[Answer, Answer]], crowd: Crowd | None) -> None:
    claim = f"other seeds give other answers at temperature {TEMPERATURE:g}"
    if others:
        differ = sum(a.text != b.text for a, b in others)
        book.witness(f"{claim}: {differ} of {len(others)} did", "other seeds", differ, max(1, len(others) // 4))
    else:
        book.no_witness(claim, "none came with another seed")
    if crowd is None:
        book.no_witness("seeded requests ran side by side", "the probe ended before the crowd")
        return
    together = max(crowd.running or 0.0, float(crowd.shared))
    source = "/metrics" if crowd.running is not None and crowd.running >= crowd.shared else "interleaved streams"
    book.witness(f"{together:.0f} seeded requests ran side by side", source, together, 2)
