"""What the kernels are asked to draw, and what their answers mean (docs/arithmetic.md, section 6).

Log-probabilities are the model's own. Penalties, bias and bans are edits of single logits; kernels apply them to what is
drawn from, not to what is reported; so are the masks of guides.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from queueproof.engine.outputs import Logprob, PositionLogprobs
from queueproof.engine.protocols import Tokenizer
from queueproof.engine.request import Sequence
from queueproof.kernels.ops import F32, I32, DrawBatch, Drawn, Edits, Masks

I64 = NDArray[np.int64]
_NO_IDS = np.empty(0, np.int64)


@dataclass(slots=True)
class RowPlan:
    """Rows of logits that a step needs, in lists of one length.

    rows: token rows of the step. owners: whose they are. positions: the index in its sequence of the token that is drawn
    or scored. scores: the token to score, -1 to draw one. guesses: how many guesses the row relies on.
    """

    rows: list[int] = field(default_factory=list)
    owners: list[Sequence] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    scores: list[int] = field(default_factory=list)
    guesses: list[int] = field(default_factory=list)

    def add(self, owner: Sequence, row: int, position: int, score: int = -1, guesses: int = 0) -> None:
        self.rows.append(row)
        self.owners.append(owner)
        self.positions.append(position)
        self.scores.append(score)
        self.guesses.append(guesses)

    def part(self, first: int, end: int) -> RowPlan:
        if first == 0 and end >= len(self.rows):
            return self
        lists = (self.rows, self.owners, self.positions, self.scores, self.guesses)
        return RowPlan(*(values[first:end] for values in lists))  # type: ignore[arg-type]


class Sampler:
    """Keeps the sampling parameters of running sequences in arrays, by `Sequence.row`."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, max_seqs: int) -> None:
        self._tokenizer, self._vocab_size = tokenizer, vocab_size
        self._holders: list[Sequence | None] = [None] * max_seqs
        self._temperature = np.zeros(max_seqs, np.float32)
        self._top_k = np.zeros(max_seqs, np.int32)
        self._top_p = np.ones(max_seqs, np.float32)
        self._min_p = np.zeros(max_seqs, np.float32)
        self._seed = np.zeros(max_seqs, np.uint64)

    def batch(self, plan: RowPlan) -> DrawBatch:
        """What to do with the plan's rows. The tokens before each of them must be known where it has penalties."""
        holders, owners = self._holders, plan.owners
        for sequence in owners:
            if holders[sequence.row] is not sequence:
                self._enter(sequence)
        rows = np.array([sequence.row for sequence in owners])
        drawn = [sequence.top for sequence in owners]
        tops = [
            top if score < 0 else sequence.request.params.prompt_logprobs or 0
            for top, score, sequence in zip(drawn, plan.scores, owners, strict=True)
        ]
        top = max(tops)
        return DrawBatch(
            tokens=np.array(plan.scores, np.int32),
            temperature=self._temperature[rows],
            top_k=self._top_k[rows],
            top_p=self._top_p[rows],
            min_p=self._min_p[rows],
            seed=self._seed[rows],
            position=np.array(plan.positions, np.int64),
            top=None if top < 0 else min(top, self._vocab_size),
            edits=self._edits(plan),
            masks=self._masks(plan),
        )

    def position_logprobs(self, drawn: Drawn, row: int, token: int, most: int, decode: bool) -> PositionLogprobs:
        """The chosen token first, then the `most` best ones. Ranks count from 1. Pre: the draw reported ranks."""
        assert drawn.ranks is not None and drawn.top_ids is not None and drawn.top_logprobs is not None
        own = Logprob(float(drawn.logprobs[row]), int(drawn.ranks[row]), self._decoded(token, decode))
        chosen = {token: own}
        best = zip(drawn.top_ids[row, :most].tolist(), drawn.top_logprobs[row, :most].tolist(), strict=True)
        for i, (other, logprob) in enumerate(best):
            if other != token:
                chosen[other] = Logprob(logprob, i + 1, self._decoded(other, decode))
        return chosen

    def _decoded(self, token: int, decode: bool) -> str | None:
        return self._tokenizer.decode([token], skip_special_tokens=False) if decode else None

    def _enter(self, sequence: Sequence) -> None:
        params, row = sequence.request.params, sequence.row
        self._holders[row] = sequence
        self._temperature[row], self._top_k[row] = params.temperature, min(params.top_k, self._vocab_size)
        self._top_p[row], self._min_p[row], self._seed[row] = params.top_p, params.min_p, sequence.seed

    def _edits(self, plan: RowPlan) -> Edits | None:
        found = []
        for row, sequence in enumerate(plan.owners):
            if sequence.request.edits and plan.scores[row] < 0:
                ids, *values = _changes(sequence, plan.positions[row])
                if ids.size:
                    found.append((np.full(ids.size, row), ids, *values))
        if not found:
            return None
        rows, ids, bias, repetition, frequency, presence, banned = (
            np.concatenate(part) for part in zip(*found, strict=True)
        )
        return Edits(rows.astype(np.int32), ids.astype(np.int32), bias, repetition, frequency, presence, banned)

    def _masks(self, plan: RowPlan) -> Masks | None:
        rows, allowed = [], []
        for row, sequence in enumerate(plan.owners):
            if sequence.guide is not None and plan.scores[row] < 0:
                known = sequence.length
                mask = sequence.guide.mask(sequence.tokens[known : known + plan.guesses[row]].tolist())
                if mask is not None:
                    rows.append(row)
                    allowed.append(mask)
        return Masks(np.array(rows, np.int32), np.stack(allowed)) if rows else None


def _changes(sequence: Sequence, position: int) -> tuple[I64, F32, F32, F32, F32, NDArray[np.bool_]]:
    """Ids whose logits change before the token at `position` is drawn, ascending, and the values of `Edits` for each."""
    request, params = sequence.request, sequence.request.params
    answer: I32 = sequence.tokens[request.prompt_length : position]
    bias = params.logit_bias or {}
    seen = sequence.tokens[:position] if params.repetition_penalty != 1.0 else _NO_IDS
    used, counts = _NO_IDS, _NO_IDS
    if params.frequency_penalty != 0.0 or params.presence_penalty != 0.0:
        used, counts = np.unique(answer, return_counts=True)
    banned = request.banned_at_first if answer.size < params.min_tokens else _NO_IDS
    biased = np.fromiter(bias.keys(), np.int64)
    ids = np.unique(np.concatenate([biased, seen, used, banned]))
    add, scale = np.zeros(ids.size, np.float32), np.ones(ids.size, np.float32)
    frequency, presence = np.zeros(ids.size, np.float32), np.zeros(ids.size, np.float32)
    never = np.zeros(ids.size, np.bool_)
    add[np.searchsorted(ids, biased)] = np.fromiter(bias.values(), np.float32)
    scale[np.searchsorted(ids, seen)] = params.repetition_penalty
    at = np.searchsorted(ids, used)
    frequency[at] = np.float32(params.frequency_penalty) * counts.astype(np.float32)
    presence[at] = params.presence_penalty
    never[np.searchsorted(ids, banned)] = True
    return ids.astype(np.int64), add, scale, frequency, presence, never
