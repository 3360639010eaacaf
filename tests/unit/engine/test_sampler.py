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
from queueproof.engine.request import Request
from queueproof.engine.sampler import LogitRows, Sampler
from queueproof.engine.sampling_params import SamplingParams
from queueproof.kernels.ops import F32, I32
from tests.support.fake_backend import FakeTokenizer, load_fake

V = 37
PROMPT = [3, 5, 5, 9]


class OracleRows:
    """RowOps by the oracle; remembers the row that a token was drawn from."""

    drawn_from: F32 | None = None

    def stats(self, logits: F32) -> tuple[I32, F32, F32]:
        return oracle.stats(logits)

    def topk(self, logits: F32, k: int) -> I32:
        return oracle.topk(logits, k)

    def sample(self, row: F32, *options: Any) -> int:
        self.drawn_from = row.copy()
        return oracle.sample(row, *options)


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
    token = Sampler(rows, FakeTokenizer(V)).draw(request.sequences[0], LogitRows(row[None], rows), 0)
    changed = expected_logits(row, params, answer, {0, 11})
    if params.temperature:
        assert rows.drawn_from is not None and same_bits(rows.drawn_from + np.float32(0), changed + np.float32(0))
        position = len(PROMPT) + len(answer)
        assert token == oracle.sample(changed, params.temperature, 0, 1.0, 0.0, seed, position)
    else:
        assert token == oracle.ranks(changed)[0]
    assert same_bits(row, original)  # a copy was changed


def test_filters_seed_and_position_reach_the_row_operation() -> None:
    seen: list[tuple[Any, ...]] = []

    class Recording(OracleRows):
        def sample(self, row: F32, *options: Any) -> int:
            seen.append(options)
            return 1

    params = SamplingParams(n=2, temperature=0.5, top_k=4, top_p=0.75, min_p=0.25, seed=(1 << 64) - 1)
    request, rows = request_with(params, []), Recording()
    for sequence in request.sequences:
        Sampler(rows, FakeTokenizer(V)).draw(sequence, LogitRows(logits_row(0)[None], rows), 0)
    assert seen == [(0.5, 4, 0.75, 0.25, (1 << 64) - 1, 4), (0.5, 4, 0.75, 0.25, 0, 4)]


def test_log_probabilities_are_those_of_the_model() -> None:
    rows, row = OracleRows(), logits_row(5)
    every = oracle.logprobs(row[None])[0]
    ranks = {int(token): i + 1 for i, token in enumerate(oracle.ranks(row))}
    found = LogitRows(np.stack([logits_row(4), row]), rows)
    sampler = Sampler(rows, FakeTokenizer(V))
    for token in range(V):
        entries = sampler.position_logprobs(found, 1, token, 3, decode=True)
        best = oracle.topk(row[None], 3)[0].tolist()
        assert list(entries) == [token, *(t for t in best if t != token)]
        for t, entry in entries.items():
            assert same_bits(np.float64(entry.logprob), np.float64(every[t])) and entry.rank == ranks[t]
            assert entry.decoded_token == FakeTokenizer(V).decode([t])
        assert list(sampler.position_logprobs(found, 1, token, 0, decode=False)) == [token]
    assert found.best_logprobs[1] == every[found.best[1]]
    m, logz = oracle.stats(row[None])[1:]
    assert np.float32(found.lse[1]) == (m + logz)[0]


def test_asking_for_more_than_the_vocabulary_gives_all_of_it() -> None:
    rows = OracleRows()
    found = LogitRows(logits_row(1)[None], rows)
    assert len(Sampler(rows, FakeTokenizer(V)).position_logprobs(found, 0, 3, 1000, decode=False)) == V
