"""What a run will do: which probes, at how many users, within which budget, and so how many prompts are asked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from queueproof.audit.ask import Prompt
from queueproof.audit.budget import Budget
from queueproof.audit.lab import Settings
from queueproof.audit.probes.base import Probe
from queueproof.contract.errors import InvalidParameter

LEAST_PROMPTS = 4  # fewer say too little
SPARE = 0.85  # of the budget that a plan may use: estimates are estimates
CROWD_COST = 0.35  # of an answer in a crowd, in answers alone: a batch shares the weights, on any machine


@dataclass(frozen=True, slots=True)
class Plan:
    """needed: comparisons that each probe goes on to, in rounds; None is one round."""

    probes: tuple[Probe, ...]
    settings: Settings
    budget: Budget
    needed: int | None = None


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


def prompts_within(plan: Plan, offered: int, seconds: float, tokens: float) -> int:
    """How many of the prompts the budget is enough for. seconds, tokens: of one answer alone, as measured."""
    alone = sum(probe.alone for probe in plan.probes)
    together = sum(probe.together for probe in plan.probes)
    limits = [float(offered)]
    if plan.budget.seconds is not None and seconds > 0:
        limits.append(plan.budget.seconds * SPARE / (seconds * (alone + CROWD_COST * together) or 1.0))
    if plan.budget.requests is not None:
        limits.append(plan.budget.requests * SPARE / ((alone + together) or 1.0))
    if plan.budget.tokens is not None and tokens > 0:
        limits.append(plan.budget.tokens * SPARE / (tokens * (alone + together) or 1.0))
    return min(offered, max(LEAST_PROMPTS, int(min(limits))))


def digest(prompts: Sequence[Prompt]) -> str:
    """SHA-256, hex, of the prompts in their order: two runs with one digest asked the same."""
    plain = [[p.key, p.kind, p.messages, p.text, p.ids] for p in prompts]
    return hashlib.sha256(json.dumps(plain, ensure_ascii=True).encode()).hexdigest()
