"""14 surroundings x 56 prompts: of an executor, whole logits rows; of the engine, ids and the bits of log-probabilities.

The reference of every comparison is the same prompt alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from queueproof.engine.llm import LLM
from queueproof.engine.outputs import RequestOutput
from queueproof.engine.sampling_params import SamplingParams
from tests.support.gpu_driver import Bits, Driver, Found, joined, kept
from tests.support.gpu_lab import Lab
from tests.support.gpu_model import SyntheticModel, as_inputs, without_end
from tests.support.tiny import Sequence

TAIL = 4  # rows compared of each prompt: its last, and those of the given tokens after it
ANSWER = 24
# Random weights never say the same thing twice, and then there is nothing to guess: half of the answers have three words.
REPEATING = {17: 100.0, 18: 100.0, 19: 100.0}


@dataclass(frozen=True, slots=True)
class Condition:
    """batch: sequences at once. chunk: most tokens of a prompt in a step; budget: most tokens in a step.

    found: tokens of each prompt come from the blocks of another sequence. evict: blocks are given away before the last
    rows. strangers: other sequences that decode beside.
    """

    name: str
    batch: int = 56
    chunk: int = 1 << 20
    budget: int = 4096
    shuffled: bool = False
    found: bool = False
    evict: bool = False
    block_size: int | None = None
    graphs: bool = True
    strangers: bool = False


CONDITIONS = (
    Condition("8 at once", batch=8),
    Condition("56 at once"),
    Condition("shuffled", shuffled=True, batch=48),
    Condition("steps of 64 tokens", batch=7, budget=64),
    Condition("chunks of 16", chunk=16),
    Condition("chunks of 100", chunk=100, batch=20, shuffled=True),
    Condition("chunks of 513", chunk=513, batch=30),
    Condition("token by token", chunk=1),
    Condition("cache hits", found=True, batch=16),
    Condition("evicted and recomputed", evict=True, batch=12),
    Condition("blocks of 16", block_size=16),
    Condition("blocks of 128", block_size=128, budget=300),
    Condition("no graphs", graphs=False, batch=24),
    Condition("beside strangers", strangers=True, batch=8),
)


def matrix_prompts(lab: Lab) -> list[list[int]]:
    """Lengths over the whole range, edges of blocks among them; every second prompt shares its beginning."""
    n, longest = lab.sizes.prompts, lab.sizes.longest_prompt
    edges = [e + d for e in (16, 64, 128, 512, 1024) for d in (-1, 0, 1) if e + d <= longest]
    spread = [int(x) for x in np.linspace(1, longest, n)]
    lengths = (edges + spread[len(edges) :])[:n]
    several = lab.ids("matrix", lengths)
    shared = lab.ids("shared", [longest])[0]
    return [shared[: len(p) * 3 // 4] + p[len(p) * 3 // 4 :] if i % 2 else p for i, p in enumerate(several)]


def executor_matrix(lab: Lab) -> Found:
    """Whole logits rows of an executor: one comparison is all `TAIL` rows of a prompt."""
    found = Found("executor: 14 surroundings x 56 prompts")
    prompts = matrix_prompts(lab)
    tails = lab.ids("tails", [TAIL - 1] * len(prompts))
    whole = [p + t for p, t in zip(prompts, tails, strict=True)]
    driver, reference = lab.driver(), []
    for ids in whole:
        with driver.sequences([ids]) as (s,):
            rows = [kept(driver.run([(s, len(ids) - TAIL + 1)]))]
            reference.append(joined(rows + [kept(driver.run([(s, 1)])) for _ in range(TAIL - 1)]))
    for condition in CONDITIONS:
        driver = lab.driver(condition.block_size, condition.graphs)
        for index, got in _Serving(lab, driver, whole, condition, found).run():
            different = int((got != reference[index]).any())
            found.count(f"{condition.name}, prompt {index} of {len(prompts[index])}", 1, different)
    found.saw(conditions=len(CONDITIONS), prompts=len(prompts))
    return found


@dataclass(slots=True)
class _Running:
    sequence: Sequence
    prefill_end: int  # tokens that are computed in pieces; those after it one by one
    base: Sequence | None = None  # whose blocks it shares
    shared: int = 0
    rows: dict[int, Bits] | None = None  # by position


class _Serving:
    """Continuous batching by hand, under one condition."""

    def __init__(self, lab: Lab, driver: Driver, whole: list[list[int]], c: Condition, found: Found) -> None:
        self._lab, self._driver, self._whole, self._c, self._found = lab, driver, whole, c, found
        self._running: dict[int, _Running] = {}
        self._evicted: set[int] = set()

    def run(self) -> Iterator[tuple[int, Bits]]:
        """(prompt, its last TAIL rows), in the order in which they are finished."""
        order = list(range(len(self._whole)))
        if self._c.shuffled:
            np.random.default_rng(5).shuffle(order)
        strangers = self._lab.ids("strangers", [120] * self._lab.sizes.strangers) if self._c.strangers else []
        with self._driver.sequences(strangers) as others:
            self._driver.fill([(s, 3 + i % 20) for i, s in enumerate(others)])
            while order or self._running:
                while order and len(self._running) < self._c.batch:
                    index = order.pop(0)
                    self._running[index] = self._admit(self._whole[index])
                yield from self._step([(s, 1) for s in others if s.done < len(s.ids)])

    def _admit(self, ids: list[int]) -> _Running:
        driver, end = self._driver, len(ids) - TAIL + 1
        size = driver.limits.block_size
        hit = (end - 1) // size * size if self._c.found else 0
        if not hit:
            return _Running(driver.sequence(ids), end, rows={})
        base = driver.sequence(ids[:hit])
        driver.run([(base, hit)])
        self._found.saw(hit_tokens=hit)
        return _Running(driver.sequence(ids, base, hit), end, base, hit, rows={})

    def _parts(self, left: int) -> list[tuple[int, int]]:
        """(prompt, tokens in this step), at most `left` tokens."""
        parts = []
        for index, r in self._running.items():
            n = min(self._c.chunk, left, max(1, r.prefill_end - r.sequence.done))
            if n:
                parts.append((index, n))
                left -= n
        return parts

    def _step(self, others: list[tuple[Sequence, int]]) -> Iterator[tuple[int, Bits]]:
        driver, parts = self._driver, self._parts(self._c.budget - len(others))
        got = driver.run([(self._running[i].sequence, n) for i, n in parts] + others)
        finished = []
        for row, (i, _) in enumerate(parts):
            r = self._running[i]
            done, length = r.sequence.done, len(r.sequence.ids)
            assert r.rows is not None
            if done > length - TAIL:
                r.rows[done] = kept(got[row : row + 1])
            if self._c.evict and i not in self._evicted and done == length - 1:
                self._evicted.add(i)
                driver.drop(r.sequence)
                # What was computed of the answer is now part of the prefill, and its last row is compared again.
                self._running[i] = _Running(driver.sequence(self._whole[i]), length - 1, rows=r.rows)
                self._found.saw(evictions=1)
            elif done == length:
                finished.append(i)
        for i in finished:
            r = self._running.pop(i)
            driver.drop(r.sequence, r.shared)
            if r.base is not None:
                driver.drop(r.base)
            assert r.rows is not None
            yield i, joined([r.rows[done] for done in sorted(r.rows)])


@dataclass(frozen=True, slots=True)
class EngineCondition:
    """options: of EngineConfig. witness: a field of EngineStats, and the least that it must come to."""

    name: str
    options: dict[str, Any]
    witness: str = "largest_batch"
    at_least: int = 2
    warm: bool = False
    graphs: bool = True
    strangers: bool = False


def engine_conditions(lab: Lab) -> tuple[EngineCondition, ...]:
    n = lab.sizes.prompts
    small = {"block_size": 16, "num_blocks": lab.sizes.small_pool // 16}
    return (
        EngineCondition("all at once", {}, at_least=n // 2),
        EngineCondition("warm cache", {}, "prefix_cache_hit_tokens", warm=True),
        EngineCondition("8 at once", {"max_num_seqs": min(8, n)}, at_least=min(8, n) // 2),
        EngineCondition("48 at once", {"max_num_seqs": min(48, n)}, at_least=min(48, n) // 2),
        EngineCondition("random admission", {"max_num_seqs": min(20, n), "policy": "random", "policy_seed": 3}),
        EngineCondition("longest first", {"max_num_seqs": min(20, n), "policy": "longest-first"}),
        EngineCondition(
            "steps of 64 tokens", {"max_num_batched_tokens": 64, "max_num_seqs": min(32, n)}, "mixed_steps"
        ),
        EngineCondition("steps of 33 tokens", {"max_num_batched_tokens": 33, "max_num_seqs": 7}, "split_prefills"),
        EngineCondition("a small pool", small, "preemptions"),
        EngineCondition("blocks of 16", {"block_size": 16}, at_least=n // 2),
        EngineCondition("blocks of 128", {"block_size": 128}, at_least=n // 2),
        EngineCondition("4 tokens guessed", {"num_speculative_tokens": 4}, "guesses_proposed"),
        EngineCondition("no graphs", {"max_num_seqs": min(24, n)}, graphs=False),
        EngineCondition("beside strangers", {}, at_least=n // 2, strangers=True),
    )


def engine_matrix(lab: Lab) -> Found:
    """Answers of the engine through `LLM`: token ids, log-probability bits, log-sum-exp bits."""
    found = Found("engine: 14 surroundings x 56 prompts")
    prompts = as_inputs(matrix_prompts(lab))
    params = [
        SamplingParams(
            temperature=0.8 * (i % 2),
            top_p=0.95,
            seed=i,
            max_tokens=ANSWER,
            ignore_eos=True,
            detokenize=False,
            logit_bias=REPEATING if i % 4 > 1 else None,
        )
        for i in range(len(prompts))
    ]
    strangers = as_inputs(lab.ids("strangers", [30 + i % 50 for i in range(lab.sizes.strangers)]))
    other = SamplingParams(temperature=0.7, seed=9, max_tokens=ANSWER, ignore_eos=True, detokenize=False)
    # A model that names no end token: guesses need text that repeats, not that ends.
    model = without_end(lab.model)
    eager = SyntheticModel(model.config, model.forward, model.tokenizer, model.name, lab.eager_backend, model.max_len)
    base = {"max_num_seqs": len(prompts), "max_num_batched_tokens": max(2048, lab.sizes.longest_prompt)}
    base |= {"block_size": lab.sizes.block_size, "max_model_len": lab.max_len}
    base |= {"num_blocks": sum(len(p["prompt_token_ids"]) + ANSWER for p in prompts) // 8 + 4 * len(prompts)}
    alone = {"max_num_seqs": 1, "enable_prefix_caching": False}
    with LLM(model, **(base | alone)) as llm:
        reference = [bits_of(o) for o in llm.generate(prompts, params)]
        assert llm.stats.largest_batch == 1
    for c in engine_conditions(lab):
        with LLM(model if c.graphs else eager, **(base | c.options)) as llm:
            if c.warm:
                llm.generate(prompts, params)
                llm.reset_stats()
            several = prompts + strangers if c.strangers else prompts
            answers = llm.generate(several, params + [other] * (len(several) - len(params)))
            stats = llm.stats
        for i, answer in enumerate(answers[: len(prompts)]):
            found.count(f"{c.name}, prompt {i}", 1, int(bits_of(answer) != reference[i]))
        seen = int(getattr(stats, c.witness))
        found.witness[f"{c.name}: {c.witness}"] = seen if seen >= c.at_least else 0
    found.saw(conditions=len(engine_conditions(lab)), prompts=len(prompts))
    return found


def bits_of(output: RequestOutput) -> tuple[Any, ...]:
    (answer,) = output.outputs
    return answer.token_ids, answer.logprob_bits.tobytes(), answer.lse_bits.tobytes()
