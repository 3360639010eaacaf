"""Who is admitted next. A policy may change when an answer comes, never what it is."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Protocol


class Candidate(Protocol):
    length: int


class Policy(Protocol):
    def pick(self, waiting: Sequence[Candidate]) -> int:
        """Index of the sequence to admit next; `waiting` is not empty, in order of arrival, preempted ones first."""
        ...


class FirstCome:
    def pick(self, waiting: Sequence[Candidate]) -> int:
        return 0


class RandomOrder:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def pick(self, waiting: Sequence[Candidate]) -> int:
        return self._random.randrange(len(waiting))


class LongestFirst:
    def pick(self, waiting: Sequence[Candidate]) -> int:
        return max(range(len(waiting)), key=lambda i: waiting[i].length)


POLICIES: dict[str, Callable[[int], Policy]] = {
    "fcfs": lambda seed: FirstCome(),
    "random": RandomOrder,
    "longest-first": lambda seed: LongestFirst(),
}


def make_policy(name: str, seed: int) -> Policy:
    """The policy of that name, one of POLICIES; the seed is that of "random"."""
    return POLICIES[name](seed)
