"""The load of a run: prompts of a seed that no cache has seen, sent by a number of users, and what was timed."""

from __future__ import annotations

import asyncio
import math
import random
import statistics
import string
from collections.abc import Sequence
from dataclasses import dataclass

from queueproof.audit.ask import Answer, Ask, Cache, Cold, Prompt
from queueproof.audit.endpoint import Endpoint
from queueproof.audit.price.records import Role, Run
from queueproof.contract.errors import ServerError

MOST_USERS = 10_000  # more than one client can have connections for
LEAST_REQUESTS = 4  # of a run: one answer alone says too little
_UNIQUE = 8  # letters that begin a prompt
_TEXT = (
    "the a river house stone light water morning garden letter window train market story field music paper bridge winter "
    "summer engine doctor teacher city village mountain forest island harbour kitchen table question answer number picture "
    "color road journey friend family machine language history science weather animal flower bread coffee silver quiet "
    "small large early late often never always under over between after before with without from into through"
)


@dataclass(frozen=True, slots=True)
class Load:
    """What a run asks for. seed: of the prompts: runs of one seed ask the same, but for how each prompt begins."""

    users: int
    seed: int
    max_tokens: int
    prompt_words: int

    @property
    def requests_each(self) -> int:
        """Of a user, one after another."""
        return max(1, math.ceil(LEAST_REQUESTS / self.users))


async def run(endpoint: Endpoint, load: Load, role: Role, turn: int, repeat: int) -> Run:
    """All users at once. The prefix cache is emptied before, where a route does that. Raises Trouble, BudgetSpent."""
    if endpoint.cold_by is Cold.RESET:
        await endpoint.forget()
    asks = _asks(endpoint, load, f"{role.value} {turn} {repeat}")

    async def user(mine: Sequence[Ask]) -> list[Answer]:
        return [await endpoint.ask(ask) for ask in mine]

    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(user(asks[i :: load.users])) for i in range(load.users)]
    except BaseExceptionGroup as several:
        raise several.exceptions[0] from None
    seconds = loop.time() - began
    answers = [answer for task in tasks for answer in task.result()]
    counts = [tokens_of(answer) for answer in answers]
    if not sum(counts):
        raise ServerError("the endpoint's answers are empty: there is nothing to time")
    return Run(
        role=role,
        turn=turn,
        users=load.users,
        seed=load.seed,
        repeat=repeat,
        seconds=seconds,
        requests=len(answers),
        prompt_tokens=sum(answer.prompt_tokens or 0 for answer in answers),
        tokens=sum(counts),
        short=sum(count < load.max_tokens for count in counts),
        tokens_per_s=sum(counts) / seconds,
        ttft=_median([answer.ttft for answer in answers if answer.ttft is not None]),
        tpot=_median([t for pair in zip(answers, counts, strict=True) if (t := _tpot(*pair)) is not None]),
    )


def tokens_of(answer: Answer) -> int:
    """Tokens of an answer: as the endpoint counts them, else those it named, else the pieces that came."""
    if answer.completion_tokens is not None:
        return answer.completion_tokens
    named = answer.ids if answer.ids is not None else answer.tokens
    return len(answer.arrivals) if named is None else len(named)


def _tpot(answer: Answer, tokens: int) -> float | None:
    """None for an answer that came in one piece."""
    if tokens < 2 or len(answer.arrivals) < 2 or answer.arrivals[-1] <= answer.arrivals[0]:
        return None
    return (answer.arrivals[-1] - answer.arrivals[0]) / (tokens - 1)


def _asks(endpoint: Endpoint, load: Load, unique: str) -> list[Ask]:
    cold = Cache.COLD if endpoint.cold_by in (Cold.SALT, Cold.FIELD, Cold.RESET) else Cache.FREE
    words, letters = random.Random(f"words {load.seed}"), random.Random(f"{unique} {load.seed} {load.users}")
    asks, vocabulary = [], _TEXT.split()
    for i in range(load.users * load.requests_each):
        # Single letters are a token each almost everywhere: beginnings differ, lengths do not.
        begin = " ".join(letters.choice(string.ascii_lowercase) for _ in range(_UNIQUE))
        body = " ".join(words.choice(vocabulary) for _ in range(load.prompt_words))
        prompt = Prompt(f"{unique} {i}", "price", (("user", f"{begin}: tell a long story with these words: {body}"),))
        asks.append(Ask(prompt, load.max_tokens, logprobs=False, cache=cold, exact_tokens=True))
    return asks


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None
