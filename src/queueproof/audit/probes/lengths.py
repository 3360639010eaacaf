"""Does a long prompt that is read while short answers are written change them, or they its answer?"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from queueproof.audit import names
from queueproof.audit.ask import Answer, Ask, Cache, Prompt
from queueproof.audit.book import Book
from queueproof.audit.lab import Lab
from queueproof.audit.probes.crowds import SHARE, Known, baselines, crowds_of, written
from queueproof.audit.probes.shaping import begun, if_taken, words
from queueproof.contract.axes import Axis

LONG, LONGER = 640, 2600  # words: more than a step of llama.cpp's reads (512), and than one of vLLM's usual (2048)
_QUICK = 0.3  # seconds to the first token of a LONG prompt, up to which LONGER ones are tried too
_VICTIMS = 3  # short answers that are being written
_CROWDS = 8  # at most, in a round
_AFTER = 0.2  # of their time of writing, after which the other one is sent


@dataclass(frozen=True, slots=True)
class _Long:
    """A long prompt, and its answer alone where it can be cold twice."""

    ask: Ask
    alone: Answer | None
    words: int


class LengthsProbe:
    """A few short prompts, and one more that is sent while their answers are written: a short one, or a long one.

    Servers cut long prefills into chunks, by how much room the others leave, and put chunks and short answers into one
    step. The short company is the control: as many requests, the same moment, no long prefill.
    """

    name = names.LENGTHS
    question = "Does a long prompt beside short ones change their answers, or they its own?"
    axis: Axis | None = Axis.SCHEDULE
    needs_witness = True
    alone = 2.0
    together = 2.4

    async def run(self, lab: Lab, book: Book) -> None:
        known = _short(await baselines(lab, lab.prompts, book))
        if not known:
            return
        count = min(_VICTIMS, max(1, lab.settings.users - 1))
        crowds = list(crowds_of(known, count, lab.rng))
        crowds = [crowds[i % len(crowds)] for i in range(min(_CROWDS, max(len(crowds), -(-len(lab.prompts) // count))))]
        size, moment = LONG, _moment([k.alone for k in known])
        for i, members in enumerate(crowds):
            long = await self._long(lab, book, LONGER if size == LONGER and i % 2 else LONG, i)
            if long is None and size == LONGER:
                size = LONG
                book.note(f"prompts of {LONGER} words were not answered: only those of {LONG} were tried")
                long = await self._long(lab, book, LONG, i)
            *short, _ = await self._crowd(lab, book, members, lab.rng.choice(known).ask, None, moment)
            moment = _moment(short) or moment  # that a few begin together takes longer than alone
            if long is not None:
                *_, late = await self._crowd(lab, book, members, long.ask, long, moment)
                quick = late is not None and late.ttft is not None and late.ttft <= _QUICK
                size = LONGER if i == 0 and quick else size
        if lab.cold is not Cache.COLD:
            book.note("the long prompts' own answers were not compared: this endpoint cannot forget them")

    async def _long(self, lab: Lab, book: Book, count: int, i: int) -> _Long | None:
        """A new long prompt. It is asked alone first only where it can be cold again."""
        base = _shortest(lab.prompts)
        prompt = begun(base, words(lab.rng, count), f"{base.key}+{count} #{i}")
        ask = lab.greedy(prompt)
        if lab.cold is not Cache.COLD:
            return _Long(ask, None, count)
        alone = await if_taken(lab, ask, "long, alone", book)
        if isinstance(alone, str):
            return None
        return _Long(ask, alone, count) if alone is not None else None

    async def _crowd(
        self, lab: Lab, book: Book, members: list[Known], other: Ask, long: _Long | None, moment: float
    ) -> tuple[Answer | None, ...]:
        """The members, and the other one after so many seconds, while they are written. Returns their answers, then its."""
        delays = [*(0.0 for _ in members), moment]
        role = "beside a long prompt" if long is not None else "beside a short prompt"
        crowd = await lab.crowd([*(k.ask for k in members), other], role, book, delays)
        group = names.SHORT_BESIDE_LONG if long is not None else names.SHORT_BESIDE_SHORT
        for member, answer in zip(members, crowd.answers, strict=False):
            book.compare(member.alone, answer, group, "alone", role)
        late = crowd.answers[-1]
        if long is not None:
            book.compare(long.alone, late, names.LONG_BESIDE_SHORT, "alone", "beside short answers")
            self._say(book, [answer for answer in crowd.answers[:-1] if answer is not None], late, long.alone)
        return crowd.answers

    def _say(self, book: Book, victims: list[Answer], late: Answer | None, alone: Answer | None) -> None:
        if not victims or late is None:
            return
        reading = alone.ttft if alone is not None and alone.ttft is not None else 0.0
        during = sum(1 for victim in victims if _during(victim, late, reading))
        claim = "a long prompt was sent and read while {count} of {of} short answers were written"
        book.counted(claim, "interleaved streams", during, len(victims), SHARE)


def _during(victim: Answer, late: Answer, reading: float) -> bool:
    """Whether the other was sent after the victim's first piece, and at least half read before the victim's last.

    reading: seconds to the other's first piece alone, so that it was reading for as long at least before it began. A server
    that lets it wait until the victim is done takes all of them after that.
    """
    span = written(victim)
    if span is None or not late.arrivals:
        return False
    return span[0] <= late.started and late.arrivals[0] <= span[1] + reading / 2


def _moment(answers: Sequence[Answer | None]) -> float:
    """Seconds after which requests that were sent together and answered like these are being written. 0 without any."""
    came = [answer for answer in answers if answer is not None]
    if not came:
        return 0.0
    first = statistics.median(answer.ttft or 0.0 for answer in came)
    return first + _AFTER * (statistics.median(answer.latency for answer in came) - first)


def _short(known: list[Known]) -> list[Known]:
    """Of all, those whose answers are long enough to be met, and of these the half with the shortest prompts."""
    most = max((_made(k.alone) for k in known), default=0)
    ranked = sorted((k for k in known if 2 * _made(k.alone) >= most), key=lambda k: _size(k.ask.prompt))
    return ranked[: max(_VICTIMS, -(-len(ranked) // 2))]


def _made(answer: Answer) -> int:
    return answer.completion_tokens if answer.completion_tokens is not None else len(answer.text)


def _shortest(prompts: Sequence[Prompt]) -> Prompt:
    return min(prompts, key=_size)


def _size(prompt: Prompt) -> int:
    if prompt.messages is not None:
        return sum(len(content) for _, content in prompt.messages)
    return len(prompt.text) if prompt.text is not None else 4 * len(prompt.ids or ())
