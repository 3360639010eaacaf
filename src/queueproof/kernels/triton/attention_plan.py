"""Who computes which attention of a step: work items for the kernels of attention.py. Free to change: no choice moves a bit.

A sequence with few tokens in the step gets decode items, one for each token and split of 512 keys, so that a long context
is spread over the card. Others get prefill items, tiles of consecutive tokens that walk all of their splits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from queueproof.arithmetic.tensorcore1 import KEY_BLOCK, KEY_SPLIT
from queueproof.kernels.ops import I32

DECODE_FIELDS = 4  # row, sequence, position, split
PREFILL_FIELDS = 4  # first row, rows, sequence, position of the first row
DECODE_TOKENS = 8  # a sequence with at most so many tokens in a step is decoded


@dataclass(frozen=True, slots=True)
class Plan:
    """decode_items: i32 [Wd, DECODE_FIELDS]; those of a row are neighbours, their splits ascending up to the row's own.

    prefill_items: i32 [Wp, PREFILL_FIELDS], the longest walks first.
    """

    decode_items: I32
    prefill_items: I32


def plan(
    positions: I32,
    query_start: I32,
    tile: int,
    most_decode_items: int,
    window: int | None = None,
    decode_tokens: int = DECODE_TOKENS,
) -> Plan:
    """positions: i32 [T], query_start: i32 [S + 1], as in StepBatch.

    tile: tokens of a prefill item at most. most_decode_items: what does not fit is prefilled. window: of the layer that
    looks back furthest; None if one looks back to the first key.
    """
    counts = np.diff(query_start)
    sequence = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    first = _first_key(positions, window) // KEY_SPLIT
    splits = positions // KEY_SPLIT - first + 1
    decoded = np.repeat(counts <= decode_tokens, counts)
    if int(splits[decoded].sum()) > most_decode_items:
        # Sequences in order, as long as they fit whole.
        ends = np.cumsum(np.where(decoded, splits, 0))
        last_of_each = np.minimum(query_start[1:], len(positions)) - 1
        decoded &= (ends[last_of_each] <= most_decode_items)[sequence]
    rows = np.flatnonzero(decoded).astype(np.int32)
    return Plan(
        _decode_items(rows, sequence[rows], positions[rows], first[rows], splits[rows]),
        _prefill_items(np.flatnonzero(~decoded).astype(np.int32), sequence, positions, tile, window),
    )


def _first_key(positions: I32, window: int | None) -> I32:
    return np.zeros_like(positions) if window is None else np.maximum(positions - window + 1, 0)


def _decode_items(rows: I32, sequences: I32, positions: I32, first: I32, splits: I32) -> I32:
    items = np.empty((int(splits.sum()), DECODE_FIELDS), np.int32)
    for field, values in enumerate((rows, sequences, positions, first)):
        items[:, field] = np.repeat(values, splits)
    items[:, 3] += np.arange(len(items)) - np.repeat(np.cumsum(splits) - splits, splits)
    return items


def _prefill_items(rows: I32, sequence: I32, positions: I32, tile: int, window: int | None) -> I32:
    """Tiles within runs of rows of one sequence with consecutive positions."""
    if not rows.size:
        return np.empty((0, PREFILL_FIELDS), np.int32)
    of, at = sequence[rows], positions[rows]
    breaks = np.empty(len(rows), np.bool_)
    breaks[0] = True
    breaks[1:] = (np.diff(rows) != 1) | (np.diff(of) != 0) | (np.diff(at) != 1)
    starts = np.flatnonzero(breaks)
    lengths = np.diff(np.append(starts, len(rows)))
    tiles = -(-lengths // tile)
    index = np.arange(int(tiles.sum())) - np.repeat(np.cumsum(tiles) - tiles, tiles)
    begin = np.repeat(starts, tiles) + index * tile
    items = np.empty((len(begin), PREFILL_FIELDS), np.int32)
    items[:, 0] = rows[begin]
    items[:, 1] = np.minimum(np.repeat(lengths, tiles) - index * tile, tile)
    items[:, 2] = of[begin]
    items[:, 3] = at[begin]
    last = items[:, 3] + items[:, 1] - 1
    blocks = last // KEY_BLOCK - _first_key(items[:, 3], window) // KEY_BLOCK
    return items[np.argsort(-blocks, kind="stable")]
