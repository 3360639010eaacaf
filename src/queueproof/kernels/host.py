"""What all backends on the host share: logits are NumPy arrays, and a draw is finished when it returns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import psutil

from queueproof.kernels.ops import F32, I32, Defaults, DrawBatch, Drawn, Edits, Masks

MOST_KV_BYTES = 4 << 30


def defaults() -> Defaults:
    """Sizes of an engine on a laptop: at most 4 GiB and a quarter of the memory that is free for keys and values.

    To compute a token of a prefill takes about a fifth of the time in which the weights are read once: some tens of tokens
    beside decodes make their step three times as long, a whole step full of them fifty times.
    """
    memory = min(MOST_KV_BYTES, psutil.virtual_memory().available // 4)
    return Defaults(
        max_num_seqs=32,
        max_num_batched_tokens=512,
        block_size=16,
        kv_cache_memory=memory,
        prefill_tokens_beside_decode=32,
    )


@dataclass(frozen=True, slots=True)
class Finished:
    """A `Draw` with nothing left to wait for."""

    drawn: Drawn

    def result(self) -> Drawn:
        return self.drawn


class HostRows(ABC):
    """`RowOps` over three functions of rows (docs/arithmetic.md section 6), which a backend brings."""

    @abstractmethod
    def stats(self, logits: F32) -> tuple[I32, F32, F32]:
        """Of f32 [R, V]: best id (i32 [R]; -1: the row holds a NaN), max (f32 [R]), logz (f32 [R])."""

    @abstractmethod
    def topk(self, logits: F32, k: int) -> I32:
        """i32 [R, k]: the ids of the first k ranks. Pre: 1 <= k <= V."""

    @abstractmethod
    def sample(
        self, row: F32, temperature: float, top_k: int, top_p: float, min_p: float, seed: int, position: int
    ) -> int:
        """One token of f32 [V]; temperature > 0. top_k 0, top_p 1 and min_p 0 switch a filter off. -1: a NaN."""

    def host(self, logits: F32) -> F32:
        return logits.copy()

    @np.errstate(all="ignore")  # infinities are logits like others, and a NaN is reported
    def draw(self, logits: F32, batch: DrawBatch) -> Finished:
        best, top, logz = self.stats(logits)
        tokens = np.where(batch.tokens >= 0, batch.tokens, best)
        changed = {} if batch.edits is None else edited(logits, batch.edits)
        if batch.masks is not None:
            changed |= masked(logits, batch.masks, changed)
        for row in np.flatnonzero((batch.tokens < 0) & (best >= 0)).tolist():
            x = changed.get(row)
            if batch.temperature[row] > 0:
                tokens[row] = self.sample(
                    logits[row] if x is None else x,
                    float(batch.temperature[row]),
                    int(batch.top_k[row]),
                    float(batch.top_p[row]),
                    float(batch.min_p[row]),
                    int(batch.seed[row]),
                    int(batch.position[row]),
                )
            elif x is not None:
                tokens[row] = self.topk(x[None], 1)[0, 0]
        tokens[best < 0] = -1
        own = np.take_along_axis(logits, np.maximum(tokens, 0)[:, None], axis=1)
        logprobs = (own[:, 0] - top) - logz
        if batch.top is None:
            return Finished(Drawn(tokens, logprobs, top + logz))
        # Larger logits come first, then smaller ids.
        before = (logits == own) & (np.arange(logits.shape[1]) < tokens[:, None])
        ranks = 1 + np.count_nonzero((logits > own) | before, axis=1).astype(np.int32)
        ids = self.topk(logits, batch.top) if batch.top else np.empty((len(tokens), 0), np.int32)
        others = (np.take_along_axis(logits, ids, axis=1) - top[:, None]) - logz[:, None]
        return Finished(Drawn(tokens, logprobs, top + logz, ranks, ids, others))


@np.errstate(all="ignore")
def edited(logits: F32, edits: Edits) -> dict[int, F32]:
    """Copies of the rows that are changed, by row. Each step is one f32 operation for each pair."""
    x = logits[edits.rows, edits.ids] + edits.bias
    x = np.where(x > 0, x / edits.repetition, x * edits.repetition)
    x -= edits.frequency
    x -= edits.presence
    x[edits.banned] = -np.inf
    rows, index = np.unique(edits.rows, return_inverse=True)
    copies = logits[rows]
    copies[index, edits.ids] = x
    return dict(zip(rows.tolist(), copies, strict=True))


def masked(logits: F32, masks: Masks, changed: dict[int, F32]) -> dict[int, F32]:
    """Copies of the rows that have a mask, by row; those in `changed` stand for the logits' own."""
    n = logits.shape[1]
    bits = np.unpackbits(masks.allowed.astype("<u4", copy=False).view(np.uint8), axis=1, count=n, bitorder="little")
    rows = masks.rows.tolist()
    never = np.float32(-np.inf)
    return {r: np.where(bits[i].view(np.bool_), changed.get(r, logits[r]), never) for i, r in enumerate(rows)}
