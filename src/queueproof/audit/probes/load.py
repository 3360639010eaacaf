"""Does an answer change under load, when others come and go at random while it is written?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from queueproof.audit import names
from queueproof.audit.ask import Answer, Ask
from queueproof.audit.book import Book
from queueproof.audit.lab import Crowd, Lab
from queueproof.audit.probes.crowds import SHARE, Known, baselines, latency, written
from queueproof.audit.probes.shaping import begun, words
from queueproof.contract.axes import Axis

LIGHT, HEAVY = "light load", "heavy load"
_RATES = {LIGHT: 0.5, HEAVY: 2.0}  # arrivals within the time of an answer alone, in parts of the users
_FILL = 0.5  # requests of other lengths for each that is compared
_WORDS = (4, 400)  # before the prompts of these
_LENGTHS = (0.25, 2.0)  # of their answers, in parts of max_tokens


class LoadProbe:
    """All prompts, and others of random lengths among them, arriving at random (a Poisson process), against alone.

    Twice: at a rate that the endpoint may keep up with, and at one at which a queue forms. The rates are taken from how
    long an answer alone takes, and no more than twice the run's users are under way at once.
    """

    name = names.LOAD
    question = "Do random arrivals of requests of mixed lengths change an answer?"
    axis: Axis | None = Axis.SCHEDULE
    needs_witness = True
    alone = 0.0
    together = 3.5

    async def run(self, lab: Lab, book: Book) -> None:
        known = await baselines(lab, lab.prompts, book)
        if not known:
            return
        for group, rate in _RATES.items():
            await self._arrivals(lab, book, known, group, rate * lab.settings.users / max(latency(known), 1e-3))

    async def _arrivals(self, lab: Lab, book: Book, known: list[Known], group: str, rate: float) -> None:
        rng, users = lab.rng, lab.settings.users
        asked: list[tuple[Ask, Known | None]] = [(k.ask, k) for k in known]
        asked += [(self._filler(lab, rng.choice(known).ask), None) for _ in range(max(2, round(_FILL * len(known))))]
        rng.shuffle(asked)
        delays = list(accumulate(rng.expovariate(rate) for _ in asked))
        crowd = await lab.crowd([ask for ask, _ in asked], group, book, delays, limit=2 * users)
        mine = [i for i, (_, member) in enumerate(asked) if member is not None]
        for i in mine:
            member = asked[i][1]
            if member is not None:
                book.compare(member.alone, crowd.answers[i], group, "alone", f"under {group}")
        self._say(book, crowd, mine, group)

    def _filler(self, lab: Lab, like: Ask) -> Ask:
        """A request like another one, with a longer prompt, and an answer that is shorter or longer."""
        rng = lab.rng
        prompt = begun(like.prompt, words(rng, rng.randint(*_WORDS)), f"{like.prompt.key}+load")
        low, high = (max(2, round(part * lab.settings.max_tokens)) for part in _LENGTHS)
        return replace(like, prompt=prompt, max_tokens=rng.randint(low, high), exact_tokens=True)

    def _say(self, book: Book, crowd: Crowd, mine: Sequence[int], group: str) -> None:
        came = [i for i in mine if crowd.answers[i] is not None]
        if not came:
            return
        met = _met(crowd.answers, came)
        if crowd.running is not None and crowd.running >= 2 and met < SHARE * len(came):
            claim = f"under {group}, the server ran at least 2 requests at once while these {{of}} answers were written"
            book.counted(claim, "/metrics", len(came), len(came), SHARE)
        else:
            claim = f"under {group}, others began or ended while {{count}} of {{of}} answers were written"
            book.counted(claim, "interleaved streams", met, len(came), SHARE)
        before, after = crowd.before, crowd.after
        if before is not None and after is not None and after.preemptions and after.preemptions != before.preemptions:
            book.note(
                f"under {group}, the server preempted {after.preemptions - (before.preemptions or 0):.0f} requests"
            )


def _met(answers: Sequence[Answer | None], mine: Sequence[int]) -> int:
    """How many of the answers at these places were being written when another one began or ended."""
    spans = {i: span for i, answer in enumerate(answers) if (span := written(answer)) is not None}
    moments = [(t, i) for i, span in spans.items() for t in span]
    return sum(1 for i in mine if i in spans and any(j != i and spans[i][0] < t < spans[i][1] for t, j in moments))
