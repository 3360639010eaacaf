"""Random schedules of an engine, from a seed: jobs, options, arrivals, aborts.

`Alone` computes a job by itself, with nothing that could matter switched on; `simulate` runs a draw and compares. Models
whose context is longer than MAX_LEN get prompts around the edges of attention's blocks and splits as well.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from queueproof.engine.config import EngineConfig
from queueproof.engine.engine import Engine
from queueproof.engine.outputs import RequestOutput
from queueproof.engine.protocols import LoadedModel
from queueproof.engine.sampling_params import SamplingParams
from queueproof.engine.stats import EngineStats
from tests.support.fake_backend import FakeLoaded, load_fake
from tests.support.late_backend import load_late

MAX_LEN = 192
NAN_TOKEN = 61
Answer = tuple[Any, ...]


def fake_model(broken: bool = False) -> FakeLoaded:
    return load_fake(max_len=MAX_LEN, eos_ids=(0,), nan_token=NAN_TOKEN, broken=broken)


def late_model(eager: bool = False, bug: str | None = None) -> Any:
    return load_late(eager, bug, max_len=MAX_LEN, eos_ids=(0,), nan_token=NAN_TOKEN)


@dataclass(frozen=True)
class Job:
    prompt: tuple[int, ...]
    params: SamplingParams
    arrival: int  # the step before which it is added
    abort_after: int | None  # steps after its arrival
    salt: str | None


@dataclass
class Found:
    """What a number of simulations did and where they went wrong."""

    stats: EngineStats = field(default_factory=EngineStats)
    differences: list[str] = field(default_factory=list)
    compared: int = 0
    aborted: int = 0
    siblings: int = 0
    nan_errors: int = 0
    stopped: int = 0
    options: set[Any] = field(default_factory=set)
    outputs: list[tuple[Job, RequestOutput]] = field(default_factory=list)

    def add(self, stats: EngineStats) -> None:
        for f in dataclasses.fields(EngineStats):
            mine, other = getattr(self.stats, f.name), getattr(stats, f.name)
            setattr(self.stats, f.name, max(mine, other) if f.name == "largest_batch" else mine + other)


def draw_params(rng: random.Random) -> SamplingParams:
    sampled = rng.random() < 0.35
    return SamplingParams(
        n=rng.choice([1, 1, 1, 1, 2, 3]) if sampled else 1,
        temperature=rng.choice([0.3, 1.0, 1.7]) if sampled else 0.0,
        top_k=rng.choice([0, 0, 5]),
        top_p=rng.choice([1.0, 0.8]),
        min_p=rng.choice([0.0, 0.0, 0.05]),
        repetition_penalty=rng.choice([1.0] * 5 + [1.2]),
        presence_penalty=rng.choice([0.0] * 5 + [0.5]),
        frequency_penalty=rng.choice([0.0] * 5 + [0.3]),
        logit_bias=rng.choice([None, None, None, {5: 3.0, 7: -4.0}]),
        seed=rng.getrandbits(64),
        stop=rng.choice([None, None, ["ab", "3B"], "XO"]),
        stop_token_ids=rng.choice([None, None, [9, 44]]),
        ignore_eos=rng.random() < 0.7,
        max_tokens=rng.choice([1, 2, 7, 24, 40, 60]),
        min_tokens=rng.choice([0, 0, 1]),
        logprobs=rng.choice([None, None, 0, 3]),
        prompt_logprobs=rng.choice([None] * 7 + [2]),
    )


def draw_jobs(rng: random.Random, count: int, max_len: int) -> list[Job]:
    long = max_len > MAX_LEN
    common = [rng.randrange(NAN_TOKEN) for _ in range(600 if long else 100)]
    jobs = []
    for _ in range(count):
        shared = rng.choice([0, 0, 15, 16, 17, 32, 48, 64, 65, 96] + [127, 128, 511, 512, 513, 576] * long)
        tail = [rng.randrange(NAN_TOKEN) for _ in range(rng.choice([1, 1, 2, 16, 30] + [64] * long))]
        if rng.random() < 0.03:
            tail[-1] = NAN_TOKEN
        # Two beginnings with the same blocks after the first: only a chain of hashes tells them apart.
        first = [(common[0] + rng.randrange(2)) % NAN_TOKEN, *common[1:]]
        params = draw_params(rng)
        abort_after = rng.randrange(12) if rng.random() < 0.1 else None
        salt = rng.choice([None] * 6 + ["pepper"])
        jobs.append(Job((*first[:shared], *tail), params, rng.randrange(rng.choice([1, 20])), abort_after, salt))
    return jobs


def draw_config(rng: random.Random, model: LoadedModel) -> EngineConfig:
    size = rng.choice([16, 16, 32, 64])
    tokens = max(model.max_len, rng.choice([192, 192, 256, 512, 8192]))
    beside = random.Random(repr(rng.getstate()))  # of its own, so that what it may choose from moves no other choice
    return EngineConfig(
        arithmetic=model.backend.arithmetic,
        threads=rng.choice([1, 2, 4]),
        max_model_len=model.max_len,
        max_num_seqs=rng.choice([1, 3, 8, 8]),
        max_num_batched_tokens=rng.choice([2, 9, 16, 33, 64, 512]),
        prefill_tokens_beside_decode=beside.choice([None, None, 7, 40]),
        block_size=size,
        num_blocks=-(-tokens // size),
        enable_prefix_caching=rng.random() < 0.7,
        policy=rng.choice(["fcfs", "random", "longest-first"]),
        policy_seed=rng.randrange(1000),
        num_speculative_tokens=rng.choice([0, 0, 1, 4]),
    )


def answers(output: RequestOutput) -> list[Answer]:
    """Everything about the answers that must not change."""
    return [
        (
            tuple(o.token_ids),
            o.logprob_bits.tobytes(),
            o.lse_bits.tobytes(),
            o.text,
            o.logprobs,
            o.finish_reason,
            o.stop_reason,
            o.seed,
        )
        for o in output.outputs
    ]


class Alone:
    """Answers of jobs computed alone: one sequence, whole prompts, one size of block, no cache, no guesses.

    A job that was computed before is not computed again.
    """

    def __init__(self, model: LoadedModel) -> None:
        config = EngineConfig(
            arithmetic=model.backend.arithmetic,
            threads=1,
            max_model_len=model.max_len,
            max_num_seqs=1,
            max_num_batched_tokens=4096,
            num_blocks=model.max_len // 16,
            enable_prefix_caching=False,
        )
        self._engine = Engine(model, config)
        self._known: dict[str, tuple[list[Answer], Any]] = {}

    def __call__(self, prompt: tuple[int, ...], params: SamplingParams) -> tuple[list[Answer], Any]:
        """One answer for each of n, each from a request of its own, and the prompt's log-probabilities."""
        job = repr((prompt, params))
        if job not in self._known:
            self._known[job] = self._compute(prompt, params)
        return self._known[job]

    def _compute(self, prompt: tuple[int, ...], params: SamplingParams) -> tuple[list[Answer], Any]:
        found: list[Answer] = []
        scores = None
        assert params.seed is not None
        for i in range(params.n):
            seed = (params.seed + i) % (1 << 64)
            request = self._engine.add_request(list(prompt), dataclasses.replace(params, n=1, seed=seed))
            while self._engine.has_work:
                self._engine.step()
            output = self._engine.output(request)
            found += answers(output)
            scores = output.prompt_logprobs if i == 0 else scores
        return found, scores


@cache
def fake_alone() -> Alone:
    """For every test that compares with `fake_model`: many draw the same jobs."""
    return Alone(fake_model())


def guided(seed: int, jobs: list[Job], guides: Sequence[str]) -> list[Job]:
    """Most of the jobs with a guide, their end tokens and lengths left to it."""
    rng, found = random.Random(seed), []
    for job in jobs:
        if rng.random() < 0.8:
            changes: dict[str, Any] = {"guide": rng.choice(guides), "ignore_eos": False, "min_tokens": 0}
            changes |= {"stop_token_ids": None, "max_tokens": rng.choice([3, 20, 60])}
            job = dataclasses.replace(job, params=dataclasses.replace(job.params, **changes))
        found.append(job)
    return found


def simulate(seed: int, model: LoadedModel, alone: Alone, found: Found, guides: Sequence[str] = ()) -> None:
    """One draw: some jobs in one engine, the first ones twice if the draw says so (a warm cache)."""
    rng = random.Random(seed)
    config, jobs = draw_config(rng, model), draw_jobs(rng, rng.choice([2, 5, 9]), model.max_len)
    jobs = guided(seed, jobs, guides) if guides else jobs
    # A team larger than the machine waits for itself most of the time, so that only every fifth draw has more than a thread.
    threads = config.threads if seed % 5 == 2 else 1
    config = dataclasses.replace(config, async_scheduling=seed % 8 > 0, threads=threads)
    if rng.random() < 0.4:
        jobs += [dataclasses.replace(job, arrival=job.arrival + 60, abort_after=None) for job in jobs[:3]]
    engine = Engine(model, config)
    reset_at = rng.randrange(40) if rng.random() < 0.1 else -1
    running: dict[str, tuple[Job, int]] = {}
    ended: list[tuple[Job, RequestOutput]] = []
    waiting = sorted(jobs, key=lambda job: job.arrival)
    now = 0
    while waiting or engine.has_work:
        if waiting and not engine.has_work:
            now = max(now, waiting[0].arrival)
        while waiting and waiting[0].arrival <= now:
            job = waiting.pop(0)
            request = engine.add_request(list(job.prompt), job.params, cache_salt=job.salt)
            running[request.request_id] = job, now
        for request_id, (job, since) in list(running.items()):
            if job.abort_after is not None and now - since >= job.abort_after:
                aborted = engine.abort(request_id)
                assert aborted is not None
                engine.check_integrity()
                ended.append((running.pop(request_id)[0], engine.output(aborted)))
        if now == reset_at:
            engine.reset_prefix_cache()
        for request in engine.step():
            if request.finished:
                ended.append((running.pop(request.request_id)[0], engine.output(request)))
        engine.check_integrity()
        now += 1
        assert now < 5000, "the engine does not come to an end"
    assert not running and len(ended) == len(jobs)
    found.outputs += [(job, output) for job, output in ended]
    for job, output in ended:
        _compare(seed, job, output, alone, found)
    found.add(engine.stats)
    found.options.update((config.policy, config.block_size, config.enable_prefix_caching, f"{threads} threads"))
    engine.close()


def _compare(seed: int, job: Job, output: RequestOutput, alone: Alone, found: Found) -> None:
    expected, scores = alone(job.prompt, job.params)
    found.siblings += len(expected) > 1
    if output.prompt_logprobs != (scores if scores is None else scores[: len(output.prompt_logprobs or ())]):
        found.differences.append(f"seed {seed}: prompt logprobs of {job}")
    for i, (got, want) in enumerate(zip(answers(output), expected, strict=True)):
        found.compared += 1
        found.stopped += got[5] == "stop"
        found.nan_errors += got[5] == "error"
        if got[5] == "abort":
            found.aborted += 1
            n = len(got[0])
            got, want = (got[0], got[1], got[2]), (want[0][:n], want[1][: 4 * n], want[2][: 4 * n])
        if got != want:
            found.differences.append(f"seed {seed}, answer {i}: {got} instead of {want} for {job}")
