"""The plan of attention: every row and split once, nothing outside of a window, however a step looks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queueproof.kernels.triton.attention_plan import Plan, plan


@dataclass(frozen=True)
class Case:
    """starts, lengths: first position and tokens of each sequence."""

    starts: list[int]
    lengths: list[int]
    tile: int
    most_decode_items: int
    window: int | None
    decode_tokens: int

    @property
    def positions(self) -> np.ndarray:
        pieces = [np.arange(a, a + n) for a, n in zip(self.starts, self.lengths, strict=True)]
        return np.concatenate([*pieces, np.empty(0)]).astype(np.int32)

    @property
    def query_start(self) -> np.ndarray:
        return np.concatenate([[0], np.cumsum(self.lengths)]).astype(np.int32)

    def plan(self) -> Plan:
        return plan(
            self.positions, self.query_start, self.tile, self.most_decode_items, self.window, self.decode_tokens
        )

    def splits(self, position: int) -> list[int]:
        first = 0 if self.window is None else max(0, position - self.window + 1)
        return list(range(first // 512, position // 512 + 1))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    n = draw(st.integers(1, 6))
    start = st.one_of(st.integers(0, 3000), st.sampled_from([0, 63, 64, 511, 512, 1023]))
    length = st.one_of(st.integers(1, 12), st.integers(1, 200))
    return Case(
        draw(st.lists(start, min_size=n, max_size=n)),
        draw(st.lists(length, min_size=n, max_size=n)),
        draw(st.integers(1, 70)),
        draw(st.sampled_from([0, 1, 7, 40, 10**6])),
        draw(st.one_of(st.none(), st.integers(1, 3000))),
        draw(st.integers(0, 16)),
    )


@given(cases())
def test_every_row_is_computed_once_and_whole(case: Case) -> None:
    p, positions = case.plan(), case.positions
    sequences = np.repeat(np.arange(len(case.lengths)), case.lengths)
    seen: dict[int, list[int]] = {}
    for row, sequence, position, split in p.decode_items.tolist():
        assert (sequence, position) == (sequences[row], positions[row])
        seen.setdefault(row, []).append(split)
    for row, splits in seen.items():
        assert splits == case.splits(int(positions[row]))  # neighbours in the list, ascending
    assert [row for row, *_ in p.decode_items.tolist()] == [row for row, splits in seen.items() for _ in splits]
    prefilled: list[int] = []
    for first, rows, sequence, position in p.prefill_items.tolist():
        here = slice(first, first + rows)
        assert 0 < rows <= case.tile
        assert (sequences[here] == sequence).all()
        np.testing.assert_array_equal(positions[here], np.arange(position, position + rows))
        prefilled += range(first, first + rows)
    assert sorted([*seen, *prefilled]) == list(range(len(positions)))


@given(cases())
def test_who_is_decoded(case: Case) -> None:
    p = case.plan()
    assert len(p.decode_items) <= case.most_decode_items
    decoded = {sequence for _, sequence, *_ in p.decode_items.tolist()}
    assert all(case.lengths[s] <= case.decode_tokens for s in decoded)
    assert not decoded & {item[2] for item in p.prefill_items.tolist()}  # no sequence is torn
    if case.most_decode_items == 10**6:
        assert decoded == {s for s, n in enumerate(case.lengths) if n <= case.decode_tokens}


@given(cases())
def test_long_walks_come_first(case: Case) -> None:
    walks = [
        (position + rows - 1) // 64 - (0 if case.window is None else max(0, position - case.window + 1)) // 64
        for _, rows, _, position in case.plan().prefill_items.tolist()
    ]
    assert walks == sorted(walks, reverse=True)


def test_gaps_in_a_sequence_end_a_tile() -> None:
    positions, query_start = np.array([4, 5, 9, 10, 11, 0], np.int32), np.array([0, 5, 6], np.int32)
    items = plan(positions, query_start, 16, 0, None, 0).prefill_items
    assert sorted(items.tolist()) == [[0, 2, 0, 4], [2, 3, 0, 9], [5, 1, 1, 0]]


@pytest.mark.parametrize("decode_tokens", [0, 8])
def test_an_empty_step(decode_tokens: int) -> None:
    empty = np.empty(0, np.int32)
    p = plan(empty, np.zeros(1, np.int32), 16, 100, None, decode_tokens)
    assert p.decode_items.shape == (0, 4) and p.prefill_items.shape == (0, 4)
