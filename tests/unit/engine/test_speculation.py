"""Guesses from earlier text."""

from __future__ import annotations

import numpy as np
import pytest

from queueproof.engine.speculation import WINDOW, propose


@pytest.mark.parametrize(
    ("text", "most", "guesses"),
    [
        ([1, 2, 3, 4, 9, 1, 2, 3], 2, [4, 9]),
        ([1, 2, 3, 4, 9, 1, 2, 3], 9, [4, 9, 1, 2, 3]),
        ([1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3], 1, [5]),  # the latest place
        ([7, 2, 3, 4, 8, 2, 3], 1, [4]),  # two tokens, where three are nowhere
        ([5, 2, 3, 6, 7, 2, 3, 8, 5, 2, 3], 1, [6]),  # three before two
        ([4, 4, 4, 4], 3, [4]),
        ([1, 2, 3, 4], 3, []),
        ([3, 1, 3], 3, []),
        ([1], 3, []),
        ([1, 2], 3, []),
    ],
)
def test_proposals(text: list[int], most: int, guesses: list[int]) -> None:
    assert propose(np.array(text, np.int32), most).tolist() == guesses


def test_only_the_last_part_of_a_text_is_searched() -> None:
    text = np.arange(WINDOW + 10, dtype=np.int32)
    text[-3:] = text[:3]
    assert propose(text, 4).size == 0
