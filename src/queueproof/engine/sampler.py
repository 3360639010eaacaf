"""From the logits of a step to tokens and log-probabilities (docs/arithmetic.md, section 6).

Log-probabilities are the model's own. Penalties, bias and bans change a copy of a row, in f32, element by element.
"""

from __future__ import annotations

import numpy as np

from queueproof.engine.outputs import Logprob, PositionLogprobs
from queueproof.engine.protocols import Tokenizer
from queueproof.engine.request import Sequence
from queueproof.kernels.ops import F32, I32, RowOps

_NEGATIVE_INFINITY = np.float32(-np.inf)


class LogitRows:
    """Logits f32 [R, V] with what all rows need at once: best token (-1: a NaN), its logprob, max, log-sum-exp."""

    __slots__ = ("best", "best_logprobs", "logits", "logz", "lse", "top")

    def __init__(self, logits: F32, rows: RowOps) -> None:
        best, self.top, self.logz = rows.stats(logits)
        self.logits = logits
        with np.errstate(all="ignore"):
            best_logits = logits[np.arange(best.size), best]
            self.best_logprobs: list[float] = ((best_logits - self.top) - self.logz).tolist()
            self.lse: list[float] = (self.top + self.logz).tolist()
        self.best: list[int] = best.tolist()

    def logprob(self, row: int, token: int) -> float:
        """The exact f32 value, as a Python float."""
        with np.errstate(all="ignore"):
            return float((self.logits[row, token] - self.top[row]) - self.logz[row])


class Sampler:
    def __init__(self, rows: RowOps, tokenizer: Tokenizer) -> None:
        self._rows, self._tokenizer = rows, tokenizer

    def draw(self, sequence: Sequence, rows: LogitRows, row: int) -> int:
        """The next token of a sequence. Pre: rows.best[row] is not -1."""
        params = sequence.request.params
        changed = self._changed_logits(sequence, rows.logits[row])
        if params.temperature == 0.0:
            return rows.best[row] if changed is None else int(self._rows.topk(changed[None], 1)[0, 0])
        return self._rows.sample(
            rows.logits[row] if changed is None else changed,
            params.temperature,
            params.top_k,
            params.top_p,
            params.min_p,
            sequence.seed,
            sequence.length,
        )

    def position_logprobs(self, rows: LogitRows, row: int, token: int, most: int, decode: bool) -> PositionLogprobs:
        """The chosen token first, then the `most` best ones. Ranks count from 1."""
        logits = rows.logits[row]
        own = logits[token]
        rank = 1 + int((logits > own).sum()) + int((logits[:token] == own).sum())
        chosen = {token: Logprob(rows.logprob(row, token), rank, self._decoded(token, decode))}
        if most:
            best = self._rows.topk(rows.logits[row : row + 1], min(most, logits.size))[0].tolist()
            for i, other in enumerate(best):
                if other != token:
                    chosen[other] = Logprob(rows.logprob(row, other), i + 1, self._decoded(other, decode))
        return chosen

    def _decoded(self, token: int, decode: bool) -> str | None:
        return self._tokenizer.decode([token], skip_special_tokens=False) if decode else None

    def _changed_logits(self, sequence: Sequence, row: F32) -> F32 | None:
        """A copy of the row with bias, penalties and bans; None where there are none."""
        request, params = sequence.request, sequence.request.params
        banned = request.banned_at_first if sequence.answer_length < params.min_tokens else None
        if params.logit_bias is None and not params.has_penalties and banned is None:
            return None
        x = row.copy()
        with np.errstate(all="ignore"):
            if params.logit_bias is not None:
                ids = np.fromiter(params.logit_bias.keys(), np.int64)
                x[ids] += np.fromiter(params.logit_bias.values(), np.float32)
            if params.has_penalties:
                self._penalise(sequence, x)
        if banned is not None:
            x[banned] = _NEGATIVE_INFINITY
        return x

    def _penalise(self, sequence: Sequence, x: F32) -> None:
        params, prompt_length = sequence.request.params, sequence.request.prompt_length
        if params.repetition_penalty != 1.0:
            rho = np.float32(params.repetition_penalty)
            seen = np.unique(sequence.tokens[: sequence.length])
            values = x[seen]
            x[seen] = np.where(values > 0, values / rho, values * rho)
        if params.frequency_penalty != 0.0 or params.presence_penalty != 0.0:
            answer: I32 = sequence.tokens[prompt_length : sequence.length]
            ids, counts = np.unique(answer, return_counts=True)
            x[ids] -= np.float32(params.frequency_penalty) * counts.astype(np.float32)
            x[ids] -= np.float32(params.presence_penalty)
