"""Bitwise comparison of answers. An answer is its token ids and their log-probabilities; two NaNs are equal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

_UINT = {2: np.uint16, 4: np.uint32, 8: np.uint64}


def _unequal(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.bool_]:
    """Element by element, for arrays of one shape and dtype: do the bits differ, and are they not both NaN?"""
    if a.dtype.kind != "f":
        return np.asarray(a != b)
    uint = _UINT[a.dtype.itemsize]
    differ = np.ascontiguousarray(a).view(uint) != np.ascontiguousarray(b).view(uint)
    return np.asarray(differ & ~(np.isnan(a) & np.isnan(b)))


def same_bits(a: ArrayLike, b: ArrayLike) -> bool:
    """Whether two arrays have one shape, one dtype and equal bits (the sign of zero counts; NaN equals NaN).

    Real and integer types only; sequences of Python floats compare as f64, which holds every f32 exactly.
    """
    x, y = np.asarray(a), np.asarray(b)
    return x.shape == y.shape and x.dtype == y.dtype and not _unequal(x, y).any()


def first_difference(a: ArrayLike, b: ArrayLike) -> int | None:
    """First index at which two 1-d sequences differ in bits, or None.

    If one is a prefix of the other it is the length of the shorter one.
    """
    x, y = np.asarray(a), np.asarray(b)
    shared = min(x.size, y.size)
    if shared:
        if x.dtype != y.dtype:
            return 0
        where = np.flatnonzero(_unequal(x[:shared], y[:shared]))
        if where.size:
            return int(where[0])
    return None if x.size == y.size else shared


@dataclass(frozen=True, slots=True)
class AnswerDiff:
    """Where two answers part. Positions count generated tokens from 0; None: no difference."""

    first_id: int | None
    first_logprob: int | None
    max_logprob_difference: float
    """Largest |a - b| while the ids agree (natural log units): beyond that they belong to different texts.
    0 where equal; infinity where only one is NaN or infinite."""

    @property
    def same(self) -> bool:
        return self.first_id is None and self.first_logprob is None


def compare_answers(
    ids_a: Sequence[int], logprobs_a: Sequence[float], ids_b: Sequence[int], logprobs_b: Sequence[float]
) -> AnswerDiff:
    """Compares two answers bit for bit; see AnswerDiff."""
    first_id = first_difference(np.asarray(ids_a, np.int64), np.asarray(ids_b, np.int64))
    first_logprob = first_difference(np.asarray(logprobs_a, np.float64), np.asarray(logprobs_b, np.float64))
    agreed = min(len(ids_a), len(ids_b)) if first_id is None else first_id
    pairs = zip(logprobs_a[:agreed], logprobs_b[:agreed], strict=False)
    return AnswerDiff(first_id, first_logprob, max((_distance(float(x), float(y)) for x, y in pairs), default=0.0))


def _distance(x: float, y: float) -> float:
    if x == y or (math.isnan(x) and math.isnan(y)):
        return 0.0
    difference = abs(x - y)
    return math.inf if math.isnan(difference) else difference
