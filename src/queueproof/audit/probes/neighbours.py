"""Does an answer depend on which and how many other requests are computed with it?"""

from __future__ import annotations

from queueproof.audit import names
from queueproof.audit.book import Book
from queueproof.audit.lab import Lab
from queueproof.audit.probes.crowds import SHARE, Known, baselines, company, crowds_of
from queueproof.contract.axes import Axis


class NeighboursProbe:
    """Every prompt in a crowd of each level's size, against its answer alone.

    The highest level comes twice, and the lowest again at the end, so that what happens only to the first crowds of a size
    is told from what happens to all. Answers end at different times, so that a crowd grows thinner: what counts as a
    witness is for how many answers another one was being written at the same time.
    """

    name = names.NEIGHBOURS
    question = "Does the number of other requests, or which they are, change an answer?"
    axis: Axis | None = Axis.NEIGHBOURS
    needs_witness = True
    alone = 0.0
    together = 5.0

    async def run(self, lab: Lab, book: Book) -> None:
        known = await baselines(lab, lab.prompts, book)
        if not known:
            return
        levels = lab.settings.levels
        for users in levels:
            await self._level(lab, book, known, users, "")
        await self._level(lab, book, known, levels[-1], names.AGAIN)
        if len(levels) > 1:
            await self._level(lab, book, known, levels[0], names.AGAIN)

    async def _level(self, lab: Lab, book: Book, known: list[Known], users: int, again: str) -> None:
        group = names.users(users) + again
        count = of = 0
        most, source = 0.0, "interleaved streams"
        try:
            for members in crowds_of(known, users, lab.rng):
                crowd = await lab.crowd([k.ask for k in members], group, book)
                seen = company(crowd)
                count, of, most = count + seen.had, of + seen.of, max(most, seen.most)
                source = seen.source if seen.had else source
                for member, answer in zip(members, crowd.answers, strict=True):
                    book.compare(member.alone, answer, group, "alone", f"with {users} users", float(users))
        finally:
            if of:
                claim = f"at {users} users, {{count}} of {{of}} answers were written beside others"
                book.counted(claim, source, count, of, SHARE)
                if 2 <= most < users / 2:
                    book.note(f"of {users} users, no more than {most:.0f} were seen at once")
