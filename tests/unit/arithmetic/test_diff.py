from __future__ import annotations

import math

import numpy as np

from queueproof.arithmetic.diff import AnswerDiff, compare_answers, first_difference, same_bits

NAN = float("nan")


def f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def test_same_bits() -> None:
    assert same_bits(f32(1, -0.0, np.inf), f32(1, -0.0, np.inf))
    assert not same_bits(f32(0.0), f32(-0.0)), "the sign of zero counts"
    assert not same_bits(f32(1), f32(np.nextafter(np.float32(1), np.float32(2))))
    negative_nan_with_payload = np.array([0xFFC00123], np.uint32).view(np.float32)
    assert same_bits(f32(NAN), negative_nan_with_payload)
    assert not same_bits(f32(NAN), f32(1))
    assert not same_bits(f32(1), np.array([1.0])), "the type counts"
    assert not same_bits(f32(1), f32(1, 1))
    assert same_bits([], [])
    assert same_bits(np.zeros((3, 2), np.float32).T, np.zeros((2, 3), np.float32))
    assert same_bits([1, 2], [1, 2]) and not same_bits([1, 2], [1, 3])


def test_first_difference() -> None:
    assert first_difference([1, 2, 3], [1, 2, 3]) is None
    assert first_difference([1, 2, 3], [1, 9, 3]) == 1
    assert first_difference([1, 2], [1, 2, 3]) == 2
    assert first_difference([], [1]) == 0
    assert first_difference([], []) is None
    assert first_difference([NAN, 0.0], [NAN, -0.0]) == 1


def test_compare_answers() -> None:
    same = compare_answers([1, 2], [-0.5, NAN], [1, 2], [-0.5, NAN])
    assert same == AnswerDiff(None, None, 0.0) and same.same

    only_logprob = compare_answers([1, 2], [-0.5, -1.0], [1, 2], [-0.5, -1.25])
    assert only_logprob == AnswerDiff(None, 1, 0.25) and not only_logprob.same

    # After the first differing id the log-probabilities belong to different texts and are not subtracted.
    ids = compare_answers([1, 2, 3], [-0.5, -1.0, -9.0], [1, 7, 3], [-0.5, -3.0, -1.0])
    assert ids == AnswerDiff(1, 1, 0.0)

    longer = compare_answers([1], [-0.5], [1, 2], [-0.5, -1.0])
    assert longer.first_id == 1 and longer.first_logprob == 1
    assert compare_answers([1], [NAN], [1], [-1.0]).max_logprob_difference == math.inf
    assert compare_answers([1], [-math.inf], [1], [-math.inf]).same
