"""What several probes need: a part of the prompts, prompts of their own making, and requests with a turn to them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from queueproof.audit.ask import Answer, Ask, Cache, Prompt
from queueproof.audit.book import Book
from queueproof.audit.client.abilities import Ability
from queueproof.audit.client.trouble import Kind
from queueproof.audit.lab import Lab

# Common words: with a space before it, each is one token in nearly every vocabulary, so that a word is a token.
_TEXT = """
the of and to in is that for with was on are as by his they at be this from have or one had word but not what
all were when we there can an your which their said if do will each about how up out them then she many some so
these would other into has more her two like him see time could no make than first been its who now people my
made over
"""
WORDS = _TEXT.split()
_TASK = "Go on with this list of words."
_TRIES = 8


def some(prompts: Sequence[Prompt], share: float, least: int = 8) -> list[Prompt]:
    """That share of the prompts, evenly spread, in their order; at least `least` of them, or all where there are fewer."""
    count = min(len(prompts), max(least, round(share * len(prompts))))
    return [prompts[i * len(prompts) // count] for i in range(count)]


def words(rng: random.Random, count: int) -> str:
    return " ".join(rng.choices(WORDS, k=count))


def begun(prompt: Prompt, beginning: str, key: str) -> Prompt:
    """The same prompt after a text. Where it is token ids, it begins with as many of its own, the text choosing which."""
    if prompt.messages is not None:
        (role, content), *rest = prompt.messages
        return replace(prompt, key=key, messages=((role, f"{beginning}\n\n{content}"), *rest))
    if prompt.text is not None:
        return replace(prompt, key=key, text=f"{beginning}\n\n{prompt.text}")
    ids = prompt.ids or ()
    rng = random.Random(beginning)
    return replace(prompt, key=key, ids=(*rng.choices(ids, k=len(beginning.split())), *ids))


class ExactLength:
    """Prompts of an exact number of tokens. A first one is counted, and from there on each word is taken for a token.

    chat: as a message of a user, whose tokens include those of the template; else as a text. Where the endpoint counts
    tokens, each prompt is counted and mended; else the caller sees the length in the answer, and says so by `was`.
    """

    def __init__(self, lab: Lab, book: Book, rng: random.Random, chat: bool) -> None:
        self._lab, self._book, self._rng, self._chat = lab, book, rng, chat
        self._fixed: int | None = None  # tokens around the words
        self._counts = Ability.TOKENIZE in lab.endpoint.abilities  # else a count is a request, which warms the cache

    async def least(self) -> int | None:
        """The shortest length that can be made, in tokens. None where the endpoint tells no lengths."""
        if self._fixed is None:
            prompt = self._made("length", words(self._rng, 8))
            length = await self._lab.endpoint.count(prompt) if self._counts else None
            if length is None:
                ask = Ask(prompt, max_tokens=1, logprobs=False, cache=Cache.FREE)
                answer = await self._lab.alone(ask, "length", self._book)
                length = answer.prompt_tokens if answer is not None else None
            self._fixed = length - 8 if length is not None else None
        return self._fixed + 8 if self._fixed is not None else None

    async def prompt(self, key: str, length: int) -> Prompt | None:
        """A prompt of that many tokens, of random words. None where it cannot be had."""
        if await self.least() is None or self._fixed is None:
            return None
        chosen = words(self._rng, max(1, length - self._fixed)).split()
        for _ in range(_TRIES):
            made = self._made(key, " ".join(chosen))
            count = await self._lab.endpoint.count(made) if self._counts else length
            if count is None or count == length:
                return made
            if count > length:
                chosen = chosen[: length - count]
            else:
                chosen += words(self._rng, length - count).split()
        return None

    def was(self, wanted: int, length: int) -> None:
        """Tells what an endpoint counted where a length was wanted, for the prompts that follow."""
        if self._fixed is not None:
            self._fixed += length - wanted

    def _made(self, key: str, chosen: str) -> Prompt:
        text = f"{chosen}\n\n{_TASK}"  # what is new comes first: no two have a beginning in common
        return Prompt(key, "boundary", messages=(("user", text),)) if self._chat else Prompt(key, "boundary", text=text)


async def settled(lab: Lab, ask: Ask, book: Book) -> Answer | None:
    """The answer to compare another with that differs in one field: both cold, or else both warm.

    Where the endpoint can forget, the reference. Else it is asked now, once it has been asked before.
    """
    known = await lab.reference(ask, book)
    return known if known is None or lab.cold is Cache.COLD else await lab.alone(ask, "warm reference", book)


async def if_taken(lab: Lab, ask: Ask, role: str, book: Book) -> Answer | str | None:
    """One request alone that an endpoint may be unable to take: what it says then. None: trouble, which is in the book."""
    found = Book(book.name, book.question, book.axis)
    answer = await lab.alone(ask, role, found)
    for problem in found.close(0.0, 0, 0, True).problems:
        if problem.kind == Kind.REJECTED:
            return problem.example
        book.problem(problem.kind, problem.example)
    return answer
