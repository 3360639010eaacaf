"""Python's part of a step: the engine on a device that computes nothing, in no time.

    python benchmarks/engine_host.py --users 1,64,256

Prints milliseconds a step in decode (schedule, arrays, draws, tokens appended, ends), without text and log-probabilities;
then what streams add to a step: outputs of so many users, with text and log-probabilities, when answers are that long.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from queueproof.engine.config import EngineConfig
from queueproof.engine.engine import Engine
from queueproof.engine.sampling_params import SamplingParams
from queueproof.kernels.host import Finished
from queueproof.kernels.ops import DrawBatch, Drawn, Limits
from tests.support.fake_backend import FakeBackend, load_fake

PROMPT, STEPS = 170, 200


class Nothing:
    """Executor and RowOps: every token is 5."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits

    def forward(self, batch: Any) -> None: ...

    def logits(self, rows: Any) -> None: ...

    def close(self) -> None: ...

    def draw(self, logits: None, batch: DrawBatch) -> Finished:
        n = batch.tokens.size
        values = np.full(n, -1, np.float32), np.full(n, 3, np.float32)
        if batch.top is None:
            return Finished(Drawn(np.full(n, 5, np.int32), *values))
        none = np.empty((n, batch.top))
        ranks = np.ones(n, np.int32)
        return Finished(Drawn(np.full(n, 5, np.int32), *values, ranks, none.astype(np.int32), none.astype(np.float32)))


class NoBackend(FakeBackend):
    asynchronous = True

    def rows(self, threads: int) -> Any:
        return Nothing()

    def executor(self, model: Any, limits: Limits, threads: int) -> Any:
        return Nothing(limits)


def milliseconds(users: int, params: SamplingParams) -> float:
    """Median of a step."""
    model = load_fake(vocab_size=150_000, max_len=1024)
    model.backend = NoBackend()
    config = EngineConfig(max_num_seqs=users, max_num_batched_tokens=8192, block_size=64, num_blocks=users * 16)
    engine = Engine(model, config)
    rng = np.random.default_rng(0)
    for _ in range(users):
        engine.add_request(rng.integers(0, 150_000, PROMPT).tolist(), params)
    while engine.stats.generated_tokens < 2 * users:
        engine.step()
    took = []
    for _ in range(STEPS):
        start = time.perf_counter()
        engine.step()
        took.append(time.perf_counter() - start)
    return float(np.median(took)) * 1e3


def output_milliseconds(users: int, length: int) -> float:
    """Median of handing out the outputs of a step when every answer has about `length` tokens."""
    model = load_fake(vocab_size=150_000, max_len=8192)
    model.backend = NoBackend()
    config = EngineConfig(max_num_seqs=users, max_num_batched_tokens=8192, block_size=64, num_blocks=users * 128)
    engine = Engine(model, config)
    params = SamplingParams(temperature=0, max_tokens=length + STEPS, ignore_eos=True, logprobs=0)
    requests = [engine.add_request([7] * PROMPT, params) for _ in range(users)]
    while engine.stats.generated_tokens < users * length:
        engine.step()
    took = []
    for _ in range(STEPS // 4):
        engine.step()
        start = time.perf_counter()
        for request in requests:
            engine.output(request)
        took.append(time.perf_counter() - start)
    return float(np.median(took)) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", default="1,8,64,256")
    parser.add_argument("--lengths", default="100,1000,4000", help="of answers, for the outputs of a step")
    greedy: dict[str, Any] = {"max_tokens": STEPS * 2, "ignore_eos": True, "detokenize": False, "temperature": 0}
    given = parser.parse_args()
    lengths = [int(length) for length in given.lengths.split(",")]
    for users in map(int, given.users.split(",")):
        sampled = SamplingParams(**(greedy | {"temperature": 0.8, "top_p": 0.9, "seed": 1}))
        print(f"{users:4} users: greedy {milliseconds(users, SamplingParams(**greedy)):.3f} ms, "
              f"sampled {milliseconds(users, sampled):.3f} ms a step")  # fmt: skip
        outputs = ", ".join(f"{output_milliseconds(users, n):.3f} ms at {n} tokens" for n in lengths)
        print(f"           outputs: {outputs}")


if __name__ == "__main__":
    main()
