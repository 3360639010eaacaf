"""Forward passes of the CPU kernels alone: random weights in a model's shape, no engine, no tokenizer.

    python benchmarks/forward.py [--threads 2] [--json]

For each number of sequences: the median time of one decode step (trunk, head, log-sum-exp), tokens/s, and the ratios to
the machine's limits, measured beside it (docs/checking.md, "The speed"). The last row is a prefill of 512 tokens.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

import numpy as np

from queueproof.cli.machine import measure
from queueproof.kernels.ops import StepBatch
from queueproof.kernels.registry import backend

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.support.tiny import TinyConfig, build, limits

SMOLLM2_135M = TinyConfig(
    vocab_size=49152, hidden=576, intermediate=1536, layers=30, heads=9, kv_heads=3, head_dim=64, tied=True
)
CASES = [(1, 1), (2, 1), (4, 1), (8, 1), (24, 1), (48, 1), (1, 512)]  # sequences, tokens of each
CONTEXT, PAGE = 100, 16  # keys before a decode step


def step(sequences: int, tokens: int) -> StepBatch:
    first = CONTEXT if tokens == 1 else 0
    positions = np.tile(np.arange(first, first + tokens), sequences)
    per_sequence = -(-(first + tokens) // PAGE)
    tables = np.arange(sequences * per_sequence).reshape(sequences, per_sequence)
    owners = np.repeat(np.arange(sequences), tokens)
    slots = tables[owners, positions // PAGE] * PAGE + positions % PAGE
    starts = np.arange(sequences + 1) * tokens
    ids = np.arange(positions.size)
    return StepBatch(*(a.astype(np.int32) for a in (ids, positions)), slots, *(a.astype(np.int32) for a in (starts, tables)))  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    door, c = backend("ieee/1"), SMOLLM2_135M
    executor = door.executor(build(door, c), limits(512, 64, 600, PAGE, 1024, 64), options.threads)
    rows = door.rows(options.threads)
    layer = c.hidden * ((2 * c.heads + 2 * c.kv_heads) * c.head_dim + 3 * c.intermediate)
    trunk, head = c.layers * layer, c.hidden * c.vocab_size
    results = []
    for sequences, tokens in CASES:
        batch, times = step(sequences, tokens), []
        last = np.cumsum([tokens] * sequences, dtype=np.int32) - np.int32(1)
        before = measure(options.threads)
        for _ in range(options.repeats if tokens == 1 else 3):
            start = time.perf_counter()
            executor.forward(batch)
            rows.stats(executor.logits(last))
            times.append(time.perf_counter() - start)
        limit = before.or_better(measure(options.threads))
        seconds = statistics.median(times)
        flops = 2.0 * (trunk * sequences * tokens + head * sequences)
        results.append(
            {
                "sequences": sequences,
                "tokens_each": tokens,
                "seconds": seconds,
                "tokens_per_s": sequences * tokens / seconds,
                "memory_ratio": 2.0 * (trunk + head) / seconds / limit.read_bytes_per_s,
                "fma_ratio": flops / seconds / limit.flops_per_s,
                "read_bytes_per_s": limit.read_bytes_per_s,
                "flops_per_s": limit.flops_per_s,
            }
        )
        if not options.json:
            r = results[-1]
            print(
                f"{sequences:3d} x {tokens:3d}  {1e3 * seconds:8.2f} ms  {r['tokens_per_s']:7.1f} tok/s  "
                f"{r['memory_ratio']:4.0%} of {limit.read_bytes_per_s / 1e9:.1f} GB/s  "
                f"{r['fma_ratio']:4.0%} of {limit.flops_per_s / 1e9:.0f} GFLOP/s",
                flush=True,
            )
    if options.json:
        print(json.dumps({"threads": options.threads, "rows": results}))


if __name__ == "__main__":
    main()
