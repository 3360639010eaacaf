"""What every engine of benchmarks/gpu_engine.py is asked for, and the arithmetic of its figures."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

PROMPT, ANSWER = 170, 128
PREFILL_USERS, PREFILL_PROMPT = 32, 2000
MAX_MODEL_LEN, MAX_USERS = 4096, 256
WARM_UP = 8  # users of a round that is not measured


@dataclass(frozen=True, slots=True)
class Case:
    """All users at once, each with a prompt of its own."""

    name: str
    users: int
    prompt: int
    answer: int

    @property
    def counted_tokens(self) -> int:
        """Of one round: answer tokens; where the answer is one token, prompt tokens."""
        return self.users * (self.prompt if self.answer == 1 else self.answer)


def least_bytes(case: Case, matrix_bytes: int, kv_bytes_per_token: int) -> int:
    """What one round must read of the card's memory: the matrices once a step, and each user's keys and values."""
    read = case.answer * matrix_bytes
    return read + case.users * kv_bytes_per_token * sum(case.prompt + i for i in range(1, case.answer))


def least_flops(case: Case, trunk_values: int, head_values: int, attention_width: int) -> int:
    """Of the matrix products and of attention. attention_width: layers * heads * head size."""
    length = case.prompt + case.answer - 1
    attention = 4 * attention_width * length * (length + 1) // 2
    return case.users * (2 * trunk_values * length + 2 * head_values * case.answer + attention)


def cases(users: Iterable[int], prefill: bool = True) -> list[Case]:
    found = [Case(f"{n} users", n, PROMPT, ANSWER) for n in users]
    return found + ([Case("prefill", PREFILL_USERS, PREFILL_PROMPT, 1)] if prefill else [])


def prompts(seed: str, lengths: Iterable[int], vocab_size: int) -> list[list[int]]:
    """Random token ids; the same in every program that gives the same seed."""
    rng = np.random.default_rng(int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8], "little"))
    return [rng.integers(1, vocab_size, n).tolist() for n in lengths]


def round_prompts(case: Case, turn: int, vocab_size: int) -> list[list[int]]:
    """Of one round; no two rounds share any, so that a prefix cache finds nothing."""
    return prompts(f"{case.name} {turn}", [case.prompt] * case.users, vocab_size)
