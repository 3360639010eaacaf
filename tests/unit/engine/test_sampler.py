"""The sampler against docs/arithmetic.md section 6, spelled out once more with the oracle's row operations."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from queueproof.arithmetic.diff import same_bits
from queueproof.arithmetic.oracle import sampling as oracle
from queueproof.engine.config import EngineConfig
from queueproof.engine.engine import Engine
from queueproof.engine.request import Request, Sequence
from queueproof.engine.sampler import RowPlan, Sampler
from queueproof.engine.sampling_params import SamplingParams
from queueproof.kernels.host import HostRows
from queueproof.kernels.ops import F32, I32, DrawBatch, Drawn
from tests.support.fake_backend import FakeTokenizer, load_fake

V = 37
PROMPT = [3, 5, 5, 9]


class OracleRows(HostRows):
    """The host's draws over the oracle's functions; remembers the row that a token was drawn from."""

    drawn_from: F32 | None = None

    def stats(self, logits: F32) -> tuple[I32, F32, F32]:
        return oracle.stats(logits)

    def topk(self, logits: F32, k: int) -> I32:
        return oracle.topk(logits, k)

    def sample(self, row: F32, *options: Any) -> int:
        self.drawn_from = row.copy()
        return oracle.sample(row, *options)


def sampler() -> Sampler:
    return Sampler(FakeTokenizer(V), V, 4)


def plan_of(sequences: list[Sequence], score: int = -1) -> RowPlan:
    plan = RowPlan()
    for row, sequence in enumerate(sequences):
        sequence.row = row
        plan.add(sequence, row, sequence.length, score)
    return plan


def batch_of(sequence: Sequence, score: int = -1) -> DrawBatch:
    return sampler().batch(plan_of([sequence], score))


def draw(sequence: Sequence, row: F32, rows: HostRows, score: int = -1) -> Drawn:
    return rows.draw(row[None], batch_of(sequence, score)).result()


def logits_row(seed: int) -> F32:
    rng = np.random.default_rng(seed)
    row = rng.normal(0, 3, V).astype(np.float32)
    row[rng.integers(V, size=4)] = row[7]  # ties
    return row


def request_with(params: SamplingParams, answer: list[int]) -> Request:
    request = Engine(load_fake(vocab_size=V), EngineConfig(num_blocks=4)).make_request(PROMPT, params)
    for token in answer:
        request.sequences[0].append(token, -1.0, 2.0)
    return request


def expected_logits(row: F32, params: SamplingParams, answer: list[int], ends: set[int]) -> F32:
    """Element by element, in f32, in the order of the definition."""
    out = []
    for i, x in enumerate(row):
        if params.logit_bias and i in params.logit_bias:
            x = x + np.float32(params.logit_bias[i])
        if i in PROMPT or i in answer:
            rho = np.float32(params.repetition_penalty)
            x = x / rho if x > 0 else x * rho
        x = x - np.float32(params.frequency_penalty) * np.float32(answer.count(i))
        if answer.count(i):
            x = x - np.float32(params.presence_penalty)
        if len(answer) < params.min_tokens and i in ends:
            x = np.float32(-np.inf)
        out.append(x)
    return np.array(out, np.float32)


@pytest.mark.parametrize("seed", range(40))
def test_changed_logits_and_the_token_drawn_from_them(seed: int) -> None:
    rng = random.Random(seed)
    params = SamplingParams(
        temperature=0.8 if seed % 2 else 0.0,
        repetition_penalty=rng.choice([1.0, 1.3, 0.7]),
        frequency_penalty=rng.choice([0.0, 0.4, -0.3]),
        presence_penalty=rng.choice([0.0, 0.6]),
        logit_bias=rng.choice([None, {5: 2.5, 30: -3.0}]),
        min_tokens=rng.choice([0, 5]),
        stop_token_ids=[11],
        seed=seed,
    )
    answer = [rng.choice([5, 8, 8, 12]) for _ in range(rng.randrange(7))]
    request, row, rows = request_with(params, answer), logits_row(seed), OracleRows()
    original = row.copy()
    drawn = draw(request.sequences[0], row, rows)
    token = drawn.tokens[0]
    changed = expected_logits(row, params, answer, {0, 11})
    if params.temperature:
        assert rows.drawn_from is not None and same_bits(rows.drawn_from + np.float32(0), changed + np.float32(0))
        position = len(PROMPT) + len(answer)
        assert token == oracle.sample(changed, params.temperature, 0, 1.0, 0.0, seed, position)
    else:
        assert token == oracle.ranks(changed)[0]
    assert same_bits(row, original)  # a copy was changed
    assert drawn.logprobs[0] == oracle.logprobs(row[None])[0, token]  # of the model, before edits


def test_several_rows_are_edited_each_by_its_own_request() -> None:
    params = [
        SamplingParams(temperature=0, logit_bias={1: 50.0}),
        SamplingParams(temperature=0),
        SamplingParams(temperature=0, frequency_penalty=2.0, logit_bias={2: 40.0}),
        SamplingParams(temperature=0, logit_bias={5: 60.0}, stop_token_ids=[5], min_tokens=1),
    ]
    sequences = [request_with(p, [8]).sequences[0] for p in params]
    sequences[3] = request_with(params[3], []).sequences[0]
    logits = np.stack([logits_row(i) for i in range(4)])
    drawn = OracleRows().draw(logits, sampler().batch(plan_of(sequences))).result()
    assert drawn.tokens.tolist() == [1, oracle.ranks(logits[1])[0], 2, oracle.ranks(logits[3])[0]]


def test_a_scored_token_has_no_edits() -> None:
    request = request_with(SamplingParams(temperature=0, logit_bias={1: 50.0}, prompt_logprobs=0), [])
    batch = batch_of(request.sequences[0], score=7)
    assert batch.edits is None and batch.tokens.tolist() == [7] and batch.top == 0


def test_penalties_count_what_a_guess_relies_on() -> None:
    """The row behind a guess is drawn as if the guess had been drawn."""
    request = request_with(SamplingParams(temperature=0, repetition_penalty=2.0, frequency_penalty=0.5), [8])
    sequence = request.sequences[0]
    sequence.row, sequence.tokens[sequence.length] = 0, 12
    plan = RowPlan()
    plan.add(sequence, 0, sequence.length)
    plan.add(sequence, 1, sequence.length + 1, guesses=1)
    edits = sampler().batch(plan).edits
    assert edits is not None
    named = [edits.ids[edits.rows == row].tolist() for row in (0, 1)]
    assert named == [[3, 5, 8, 9], [3, 5, 8, 9, 12]]
    assert edits.frequency[edits.rows == 1].tolist() == [0, 0, 0.5, 0, 0.5]


def test_filters_seed_and_position_reach_the_row_operation() -> None:
    params = SamplingParams(n=2, temperature=0.5, top_k=4, top_p=0.75, min_p=0.25, seed=(1 << 64) - 1)
    request = request_with(params, [])
    batch = sampler().batch(plan_of(request.sequences))
    columns = (batch.temperature, batch.top_k, batch.top_p, batch.min_p, batch.seed, batch.position)
    assert [c.dtype.name for c in columns] == ["float32", "int32", "float32", "float32", "uint64", "int64"]
    assert list(zip(*(c.tolist() for c in columns), strict=True)) == [
        (0.5, 4, 0.75, 0.25, (1 << 64) - 1, 4),
        (0.5, 4, 0.75, 0.25, 0, 4),
    ]


def test_a_row_of_the_arrays_is_taken_over_by_its_next_holder() -> None:
    both = sampler()
    for temperature in (0.25, 0.75):
        sequence = request_with(SamplingParams(temperature=temperature), []).sequences[0]
        assert both.batch(plan_of([sequence])).temperature.tolist() == [temperature]


def test_log_probabilities_are_those_of_the_model() -> None:
    rows, row = OracleRows(), logits_row(5)
    every = oracle.logprobs(row[None])[0]
    ranks = {int(token): i + 1 for i, token in enumerate(oracle.ranks(row))}
    best = oracle.topk(row[None], 3)[0].tolist()
    m, logz = oracle.stats(row[None])[1:]
    sequence = request_with(SamplingParams(prompt_logprobs=3), []).sequences[0]
    for token in range(V):
        drawn = draw(sequence, row, rows, score=token)
        assert drawn.tokens[0] == token and drawn.logprobs[0] == every[token] and drawn.lse[0] == (m + logz)[0]
        entries = sampler().position_logprobs(drawn, 0, token, 3, decode=True)
        assert list(entries) == [token, *(t for t in best if t != token)]
        for t, entry in entries.items():
            assert same_bits(np.float64(entry.logprob), np.float64(every[t])) and entry.rank == ranks[t]
            assert entry.decoded_token == FakeTokenizer(V).decode([t])
        assert list(sampler().position_logprobs(drawn, 0, token, 0, decode=False)) == [token]


def test_how_many_best_tokens_are_asked_for() -> None:
    """Of the batch: the most that one of its rows wants."""
    asks = [SamplingParams(logprobs=n) for n in (None, 0, 4)]
    sequences = [request_with(params, []).sequences[0] for params in asks]
    tops = [sampler().batch(plan_of(sequences[:n])).top for n in (1, 2, 3)]
    assert tops == [None, 0, 4]


def test_asking_for_more_than_the_vocabulary_gives_all_of_it() -> None:
    sequence = request_with(SamplingParams(logprobs=1000), []).sequences[0]
    drawn = draw(sequence, logits_row(1), OracleRows())
    assert len(sampler().position_logprobs(drawn, 0, int(drawn.tokens[0]), 1000, decode=False)) == V
