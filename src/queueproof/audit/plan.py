"""What a run will do: which probes, at how many users, within which budget, and so how many prompts are asked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import NamedTuple

from queueproof.audit.ask import Answer, Prompt
from queueproof.audit.budget import Budget
from queueproof.audit.lab import Settings
from queueproof.audit.probes.base import Probe
from queueproof.contract.errors import InvalidParameter

LEAST_PROMPTS = 4  # fewer say too little
LEAST_USERS = 6  # so are crowds
SPARE = 0.85  # of the budget that a plan may use: estimates are estimates
DEAR, LONG = 0.1, 3.0  # a prompt that takes more of the budget, and so many times the usual, is left out
CROWD_COST = 0.7  # of an answer in a crowd, in answers alone: 0.25 to 0.9 was seen, the most where a batch gains little
_WARM_COST = 1.7  # of an answer alone, where the endpoint cannot forget
_ALL_BELOW = 8  # prompts: of no more than so many a probe asks each, whatever its part


@dataclass(frozen=True, slots=True)
class Plan:
    """needed: comparisons that each probe goes on to, in rounds; None is one round.

    fewer_users: crowds may be smaller than the settings say, where the budget is not enough for them.
    """

    probes: tuple[Probe, ...]
    settings: Settings
    budget: Budget
    needed: int | None = None
    fewer_users: bool = False


def levels(users: int) -> tuple[int, ...]:
    """The numbers of users that are tried: 2, 8, 32, ... and at last `users`. Raises InvalidParameter below 2."""
    if users < 2:
        raise InvalidParameter("users", users, "it must be 2 or more: one user has no neighbours")
    found, level = [], 2
    while level < users:
        found.append(level)
        level *= 4
    return (*found, users)


def choose(all_probes: Sequence[Probe], names: Iterable[str] | None) -> tuple[Probe, ...]:
    """The probes of those names, in the order in which they run. Raises InvalidParameter for an unknown name."""
    if names is None:
        return tuple(all_probes)
    wanted = list(names)
    known = [probe.name for probe in all_probes]
    for name in wanted:
        if name not in known:
            raise InvalidParameter("probes", name, f"there are: {', '.join(known)}")
    return tuple(probe for probe in all_probes if probe.name in wanted)


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast an endpoint answers one request: seconds for a token of the prompt, and for the answer after it.

    extra: tokens that the template adds to a prompt. forgets: whether the endpoint can be asked cold.
    """

    prefill: float
    answer: float
    extra: float
    answer_tokens: float
    forgets: bool = True

    @classmethod
    def of(cls, measured: Sequence[tuple[Prompt, Answer]], forgets: bool = True) -> Pace:
        """From some answers, at least one. Medians; without a count of tokens four bytes are taken for one."""
        sizes = [(answer.prompt_tokens or tokens_in(prompt), answer) for prompt, answer in measured]
        first = [answer.ttft if answer.ttft is not None else answer.latency / 2 for _, answer in sizes]
        return cls(
            prefill=median(ttft / size for ttft, (size, _) in zip(first, sizes, strict=True)),
            answer=median(answer.latency - ttft for ttft, (_, answer) in zip(first, sizes, strict=True)),
            extra=max(0.0, median(size - tokens_in(prompt) for (prompt, _), (size, _) in zip(measured, sizes, strict=True))),
            answer_tokens=median(answer.completion_tokens or 0 for _, answer in measured),
            forgets=forgets,
        )

    def seconds(self, prompt: Prompt) -> float:
        """Of one answer alone, about."""
        return self.answer + self.prefill * (tokens_in(prompt) + self.extra)

    def tokens(self, prompt: Prompt) -> float:
        """Of the prompt and the answer, about."""
        return tokens_in(prompt) + self.extra + self.answer_tokens


def tokens_in(prompt: Prompt) -> float:
    """About; at least 1."""
    if prompt.ids is not None:
        return max(1.0, len(prompt.ids))
    text = prompt.text if prompt.text is not None else "".join(content for _, content in prompt.messages or ())
    return max(1.0, len(text.encode("utf-8", "replace")) / 4)


class Selection(NamedTuple):
    """prompts: to be asked. left_out: those before the last of them that would take too much of the budget each."""

    prompts: tuple[Prompt, ...]
    left_out: tuple[Prompt, ...]


def within(plan: Plan, offered: Sequence[Prompt], pace: Pace) -> Selection:
    """As many of the prompts as the budget is enough for, in their order, but LEAST_PROMPTS at least.

    A prompt far longer than the others is left out where it alone would take much of the budget.
    """
    budget = plan.budget
    alone = sum(probe.alone for probe in plan.probes)
    usual = median(pace.seconds(prompt) for prompt in offered), median(pace.tokens(prompt) for prompt in offered)
    taken: list[Prompt] = []
    left_out: list[Prompt] = []
    for prompt in offered:
        own = pace.seconds(prompt), pace.tokens(prompt)
        dear = [
            limit is not None and alone * mine > DEAR * limit and mine > LONG * common
            for limit, mine, common in zip((budget.seconds, budget.tokens), own, usual, strict=True)
        ]
        if any(dear):
            left_out.append(prompt)
            continue
        seconds, tokens, requests = _all(plan, [*taken, prompt], pace)
        full = _beyond(budget.seconds, seconds) or _beyond(budget.tokens, tokens) or _beyond(budget.requests, requests)
        if full and len(taken) >= LEAST_PROMPTS:
            break
        taken.append(prompt)
    if len(taken) < LEAST_PROMPTS:  # few and long ones: better those than none
        taken = sorted(offered, key=tokens_in)[:LEAST_PROMPTS]
    end = max(offered.index(prompt) for prompt in taken)
    return Selection(tuple(taken), tuple(p for p in left_out if p not in taken and offered.index(p) < end))


def affordable(plan: Plan, offered: Sequence[Prompt], pace: Pace) -> Settings:
    """The plan's settings, with crowds half as large, and half again, until a few prompts fit; LEAST_USERS at least."""
    settings = plan.settings
    least = sorted(offered, key=tokens_in)[:LEAST_PROMPTS]
    while plan.fewer_users and settings.users >= 2 * LEAST_USERS:
        seconds, _, _ = _all(replace(plan, settings=settings), least, pace)
        if not _beyond(plan.budget.seconds, seconds):
            break
        users = settings.users // 2
        settings = replace(settings, users=users, levels=levels(users))
    return settings


class Work(NamedTuple):
    """What a probe asks, as answers for each prompt, about. in_time: the seconds of so many asked alone."""

    answers: float
    in_time: float

    @classmethod
    def of(cls, probe: Probe, prompts: int, users: int, forgets: bool = True) -> Work:
        """A crowd that has fewer prompts than users is filled up, and a probe of some prompts takes all of a few.

        forgets: the endpoint can be asked cold. Else what is compared has to be asked once more, to be as warm.
        """
        alone = max(probe.alone, min(1.0, _ALL_BELOW / prompts)) if probe.alone else 0.0
        alone *= 1.0 if forgets else _WARM_COST
        together = probe.together * max(1.0, users / 2 / prompts)
        return cls(alone + together, alone + CROWD_COST * together)


def _all(plan: Plan, prompts: Sequence[Prompt], pace: Pace) -> tuple[float, float, float]:
    """Seconds, tokens and requests of all probes, about."""
    works = [Work.of(probe, len(prompts), plan.settings.users, pace.forgets) for probe in plan.probes]
    answers, in_time = sum(work.answers for work in works), sum(work.in_time for work in works)
    seconds = sum(pace.seconds(prompt) for prompt in prompts) * in_time
    return seconds, sum(pace.tokens(prompt) for prompt in prompts) * answers, len(prompts) * answers


def _beyond(limit: float | None, value: float) -> bool:
    return limit is not None and value > limit * SPARE


def digest(prompts: Sequence[Prompt]) -> str:
    """SHA-256, hex, of the prompts in their order: two runs with one digest asked the same."""
    plain = [[p.key, p.kind, p.messages, p.text, p.ids] for p in prompts]
    return hashlib.sha256(json.dumps(plain, ensure_ascii=True).encode()).hexdigest()
