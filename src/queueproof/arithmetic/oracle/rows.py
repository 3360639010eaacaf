"""Section 6 for a whole batch, row by row: edits, a token drawn or scored, log-probabilities, ranks.

It has the methods of the door's RowOps, Draw and Drawn without importing them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from queueproof.arithmetic.oracle import sampling
from queueproof.arithmetic.oracle.numbers import F32, I32


@dataclass(frozen=True, slots=True)
class Drawn:
    """The fields of the door's Drawn; `result` makes it a Draw as well."""

    tokens: I32
    logprobs: F32
    lse: F32
    ranks: I32 | None
    top_ids: I32 | None
    top_logprobs: F32 | None

    def result(self) -> Drawn:
        return self


@np.errstate(all="ignore")
def edit(row: F32, edits: Any, number: int) -> F32:
    """A copy of row `number` with those edits that name it."""
    x = row.copy()
    for e in np.flatnonzero(edits.rows == number):
        value = x[edits.ids[e]] + edits.bias[e]
        value = value / edits.repetition[e] if value > 0 else value * edits.repetition[e]
        value = (value - edits.frequency[e]) - edits.presence[e]
        x[edits.ids[e]] = np.float32(-np.inf) if edits.banned[e] else value
    return x


def mask(row: F32, masks: Any, number: int) -> F32:
    """A copy of row `number` with the ids that its mask leaves out at −∞."""
    x = row.copy()
    for m in np.flatnonzero(masks.rows == number):
        for i in range(len(x)):
            if not int(masks.allowed[m][i // 32]) >> i % 32 & 1:
                x[i] = np.float32(-np.inf)
    return x


class OracleRows:
    """stats, topk and sample are the functions of one arithmetic; another one overrides them."""

    def stats(self, logits: F32) -> tuple[I32, F32, F32]:
        return sampling.stats(logits)

    def topk(self, logits: F32, k: int) -> I32:
        return sampling.topk(logits, k)

    def sample(
        self, row: F32, temperature: float, top_k: int, top_p: float, min_p: float, seed: int, position: int
    ) -> int:
        return sampling.sample(row, temperature, top_k, top_p, min_p, seed, position)

    def host(self, logits: F32) -> F32:
        return logits.copy()

    @np.errstate(all="ignore")
    def draw(self, logits: F32, batch: Any) -> Drawn:
        best, top, logz = self.stats(logits)
        every = (logits - top[:, None]) - logz[:, None]
        tokens = np.array([self._token(row, r, batch) if best[r] >= 0 else -1 for r, row in enumerate(logits)], np.int32)
        chosen = every[np.arange(len(tokens)), tokens]
        if batch.top is None:
            return Drawn(tokens, chosen, top + logz, None, None, None)
        order = np.stack([sampling.ranks(row) for row in logits])
        ranks = np.array([list(ids).index(max(t, 0)) + 1 for ids, t in zip(order, tokens, strict=True)], np.int32)
        ids = order[:, : batch.top].astype(np.int32)
        return Drawn(tokens, chosen, top + logz, ranks, ids, np.take_along_axis(every, ids, axis=1))

    def _token(self, row: F32, r: int, batch: Any) -> int:
        if batch.tokens[r] >= 0:
            return int(batch.tokens[r])
        x = row if batch.edits is None else edit(row, batch.edits, r)
        x = x if batch.masks is None else mask(x, batch.masks, r)
        if batch.temperature[r] == 0:
            return int(sampling.ranks(x)[0])
        options = (batch.temperature, batch.top_k, batch.top_p, batch.min_p, batch.seed, batch.position)
        temperature, top_k, top_p, min_p, seed, position = (values[r].item() for values in options)
        return self.sample(x, temperature, top_k, top_p, min_p, seed, position)
