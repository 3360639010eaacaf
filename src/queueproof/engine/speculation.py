"""Guesses of the next tokens, looked up in the text so far. The sampler verifies them, so they cannot change an answer."""

from __future__ import annotations

import numpy as np

from queueproof.kernels.ops import I32

LONGEST_NGRAM = 3
SHORTEST_NGRAM = 2
WINDOW = 4096  # how far back to look: bounds the cost of a step


def propose(tokens: I32, most: int) -> I32:
    """Up to `most` guesses: what followed the latest earlier place where the last n tokens stood, longest n first."""
    text = tokens[-WINDOW:]
    for n in range(LONGEST_NGRAM, SHORTEST_NGRAM - 1, -1):
        starts = text.size - n  # the last n tokens themselves are no earlier place
        if starts < 1:
            continue
        hit = text[:starts] == text[-n]
        for i in range(1, n):
            hit &= text[i : i + starts] == text[-n + i]
        where = np.flatnonzero(hit)
        if where.size:
            first = int(where[-1]) + n
            return text[first : first + most]
    return text[:0]
