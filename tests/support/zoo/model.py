"""The model of the zoo: every next token is a pure function of the tokens before it, by hashes.

A state is the CRC-32 of a sequence's ids after a start that stands for the weights, so that a prompt which holds an answer
arrives where the answer did. Margins of the best token are uniform between 0 and 4, so that one step in 400 has two
tokens within 0.01 of one another, as small real models do.
"""

from __future__ import annotations

import math
import zlib
from array import array
from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from typing import NamedTuple

_M = (1 << 64) - 1
_SYLLABLES = ("ba", "du", "fi", "go", "ke", "lo", "mi", "na", "pe", "ra", "so", "tu", "va", "we", "yo", "zi")
WORDS = tuple(" " + "".join(parts) for parts in product(_SYLLABLES, repeat=3))  # texts of ids FIRST, FIRST + 1, ...
FIRST = 16  # ids below it are the template's
_OTHER = FIRST + len(WORDS)  # ids from here on are words that it never writes
_IDS = {word[1:]: FIRST + i for i, word in enumerate(WORDS)}
BOS, END, ROLES = 1, 2, {"system": 3, "user": 4, "assistant": 5}
TOP = 3  # candidates of a step

Texts = Sequence[tuple[str, str]]


class Step(NamedTuple):
    """What may come next, the best first. ends: an answer that may end does so here."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    ends: bool


def tokenize(text: str) -> tuple[int, ...]:
    """A word is a token."""
    return tuple([_IDS.get(word) or _OTHER + zlib.crc32(word.encode()) % 40_000 for word in text.split()])


def template(messages: Texts) -> tuple[int, ...]:
    """The ids of a chat: BOS, each message between its role and END, and the beginning of the answer."""
    ids = [BOS]
    for role, content in messages:
        ids += [ROLES.get(role, 4), *tokenize(content), END]
    return (*ids, ROLES["assistant"])


def text_of(token: int) -> str:
    return WORDS[token - FIRST] if FIRST <= token < _OTHER else f" <{token}>"


def after(ids: Sequence[int], state: int) -> int:
    """The state after these ids."""
    return zlib.crc32(array("I", ids).tobytes(), state)


def mix(value: int) -> int:
    """64 well-mixed bits."""
    value = (value * 0x9E3779B97F4A7C15 + 0xD1B54A32D192ED03) & _M
    value = ((value ^ (value >> 29)) * 0xBF58476D1CE4E5B9) & _M
    value = ((value ^ (value >> 32)) * 0x94D049BB133111EB) & _M
    return value ^ (value >> 31)


@lru_cache(maxsize=1 << 17)
def step(state: int) -> Step:
    """What comes next, computed alone."""
    h = mix(state)
    count = len(WORDS)
    first = h % count
    second = (first + 1 + (h >> 12) % (count // 2 - 1)) % count
    third = (first + count // 2 + (h >> 23) % (count // 2 - 1)) % count
    margin = 4.0 * ((h >> 34) & 0xFFFF) / 0x10000 + 1e-6
    gap = 0.3 + 2.0 * ((h >> 50) & 0xFF) / 0x100
    best = -math.log1p(math.exp(-margin) + 2.0 * math.exp(-margin - gap))
    ids = (FIRST + first, FIRST + second, FIRST + third)
    return Step(ids, (best, best - margin, best - margin - gap), h >> 58 == 0)


@lru_cache(maxsize=1 << 16)
def moved(state: int, key: int, scale: float) -> Step:
    """What comes next where the sums were added in another way: `key` says which. 0 is as computed alone."""
    plain = step(state)
    if key == 0:
        return plain
    h = mix(state ^ mix(key))
    shifts = [scale * (((h >> 16 * i) & 0xFFFF) / 0x8000 - 1.0) for i in range(TOP)]
    ranked = sorted(
        zip([p + s for p, s in zip(plain.logprobs, shifts, strict=True)], plain.ids, strict=True), reverse=True
    )
    return Step(tuple(i for _, i in ranked), tuple(p for p, _ in ranked), plain.ends)


def sampled(found: Step, temperature: float, seed: int, position: int) -> int:
    """Which candidate is taken at a temperature: the greatest with a Gumbel noise that is a function of the seed."""
    scores = []
    for i, (token, logprob) in enumerate(zip(found.ids, found.logprobs, strict=True)):
        u = ((mix(mix(seed) + position * 131 + token) >> 11) + 0.5) / (1 << 53)
        scores.append((logprob / temperature - math.log(-math.log(u)), i))
    return max(scores)[1]


def read(token: int, state: int, key: int, scale: float) -> float:
    """The log-probability of a token that a prompt has there."""
    found = moved(state, key, scale)
    for known, logprob in zip(found.ids, found.logprobs, strict=True):
        if known == token:
            return logprob
    return found.logprobs[-1] - 1.0 - (mix(state + token) % 4096) / 1024
