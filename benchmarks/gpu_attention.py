"""Attention on the GPU, alone: that no schedule moves a bit, and which schedules are fast.

    python benchmarks/gpu_attention.py --out FOLDER [--only bits,decode,prefill] [--budget 150]

bits: one long sequence prefilled whole, in chunks, token by token and in mixtures, with every schedule, is compared with
one schedule's result; and with attention in float64. decode, prefill: times of CUDA graphs that walk through more cache than
the L2 holds, at the head counts of Qwen3-8B. FOLDER/attention.json has every time, bests first.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from queueproof.kernels.triton import attention as gpu
from queueproof.kernels.triton.attention import Schedule
from queueproof.kernels.triton.attention_plan import Plan, plan
from queueproof.kernels.triton.step_input import DECODE_ITEMS, META, PREFILL_ITEMS, TABLE_WIDTH, Numbers
from tests.support.paged import Model, Piece, Sequence, Settings, Step

CACHE_BYTES = 150_000_000  # that a graph reads at least: three times the L2 of an H200
QWEN3_8B = Model(32, 8, 128)
BLOCK = 64

DECODE_BITS = [Schedule(w, s, 1) for w, s in ((1, 3), (2, 3), (4, 3), (8, 3), (4, 1), (4, 2), (2, 4), (4, 5))]
PREFILL_BITS = [
    Schedule(w, s, 1, rows)
    for rows, w, s in (
        (128, 8, 3), (128, 8, 2), (128, 4, 2), (64, 4, 1), (64, 4, 2), (64, 4, 3), (64, 8, 3), (32, 4, 3), (32, 2, 2), (16, 1, 3),
        (16, 2, 3), (16, 4, 3), (16, 8, 2),
    )
]  # fmt: skip
FEW_DECODE, FEW_PREFILL = [DECODE_BITS[2], DECODE_BITS[1]], [PREFILL_BITS[0], PREFILL_BITS[11], PREFILL_BITS[4]]
LONG = Model(8, 2, 128)
OTHERS = [
    Model(6, 2, 80),
    Model(8, 1, 64),
    Model(7, 1, 96, "float16"),
    Model(2, 2, 256),
    Model(4, 1, 24, "float16"),
]

DECODE_SPEED = [Schedule(w, s, 1) for w in (1, 2, 4, 8) for s in (2, 3, 4, 5, 6) if not (w == 8 and s > 4)]
PREFILL_SPEED = [Schedule(w, s, 1, rows) for rows, w in ((64, 4), (128, 8), (64, 8)) for s in (2, 3, 4, 5)]
DECODE_SIZES = [
    (1, 300), (8, 300), (64, 300), (256, 300), (1, 4096), (8, 4096), (32, 4096), (64, 4096), (1, 32768)
]  # fmt: skip
PREFILL_SIZES = [(4, 2000), (1, 8192)]

Job = tuple[Model, int, Schedule]  # model, block size, decode if rows is 0


def compile_one(job: Job) -> str | None:
    """Fills Triton's cache by launches on a small problem with the same specialisation."""
    model, block_size, schedule = job
    try:
        kind = "prefill" if schedule.rows else "decode"
        settings = Settings(block_size, decode_tokens=0 if schedule.rows else 1, **{kind: schedule})  # type: ignore[arg-type]
        Step(model, [Piece(Sequence.random(model, 3, 0), 2, 3)], settings, "cuda").run(only=kind)
    except Exception as error:  # reported by the caller, job by job
        return f"{job}: {type(error).__name__}: {str(error)[:200]}"
    return None


def compile_all(jobs: list[Job], workers: int) -> set[Job]:
    """Compiles in as many processes. Returns those that cannot be."""
    start, failed = time.monotonic(), set()
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        for job, message in zip(jobs, pool.map(compile_one, jobs, chunksize=1), strict=True):
            if message:
                failed.add(job)
                print("  not usable:", message, flush=True)
    print(f"compiled {len(jobs)} kernels in {time.monotonic() - start:.1f} s", flush=True)
    return failed


class Bits:
    """Every way to compute a sequence, against one."""

    def __init__(self, failed: set[Job]) -> None:
        self.failed, self.unequal, self.compared = failed, [], 0
        self.missing: list[str] = []

    def usable(self, model: Model, block_size: int, schedules: list[Schedule]) -> list[Schedule]:
        return [s for s in schedules if (model, block_size, s) not in self.failed]

    def same(self, name: str, got: np.ndarray, want: np.ndarray) -> None:
        self.compared += 1
        if not np.array_equal(got, want):
            rows = np.flatnonzero((got != want).any(axis=(1, 2)))
            self.unequal.append(name)
            print(f"  DIFFERS {name}: {len(rows)} of {len(want)} rows, first {rows[:8].tolist()}", flush=True)

    def model(
        self, model: Model, length: int, decodes: list[Schedule], prefills: list[Schedule], blocks: list[int]
    ) -> None:
        start = time.monotonic()
        sequence = Sequence.random(model, length, 11)
        whole = [Piece(sequence, 0, length)]
        edges = [e for k in (0, 64, 512, 1024, 4096) for e in (k - 2, k - 1, k, k + 1, k + 2) if 0 <= e < length]
        cuts = [c for c in (0, 1, 64, 300, 511, 513, 1024, 1500, 2047) if c < length] + [length]
        for window in (None, 100, 700):
            base = Settings(window=window, decode_tokens=0, prefill=prefills[0], programs=132, decode=decodes[0])
            want = Step(model, whole, base, "cuda").run()[:length]
            if window is None:
                self.error(model, sequence, want)
            for size in blocks:
                for n, schedule in enumerate(self.usable(model, size, prefills)):
                    name = f"{model} window {window} block {size} {schedule}"
                    settings = replace(base, block_size=size, prefill=schedule, programs=(7, 132, 1000)[n % 3])
                    self.same(f"whole, {name}", Step(model, whole, settings, "cuda").run()[:length], want)
                    if n % 3 == 0 or size != BLOCK:
                        parts = [
                            Step(model, [Piece(sequence, a, b)], settings, "cuda").run()[: b - a]
                            for a, b in zip(cuts, cuts[1:], strict=False)
                        ]
                        self.same(f"chunks, {name}", np.concatenate(parts), want)
                tokens = [Piece(sequence, e, e + 1) for e in edges]
                for n, schedule in enumerate(self.usable(model, size, decodes)):
                    name = f"{model} window {window} block {size} {schedule}"
                    settings = replace(
                        base, block_size=size, decode=schedule, decode_tokens=8, programs=(3, 264, 5000)[n % 3], planned_window=n % 2 == 0
                    )  # fmt: skip
                    self.same(f"decode, {name}", Step(model, tokens, settings, "cuda").run()[: len(edges)], want[edges])
                    pieces = [
                        Piece(sequence, 0, 1),
                        Piece(sequence, length - 200, length),
                        *tokens[3:6],
                        Piece(sequence, 505, 513),
                    ]
                    mixed = [0, *range(length - 200, length), *edges[3:6], *range(505, 513)]
                    self.same(f"mixed, {name}", Step(model, pieces, settings, "cuda").run()[: len(mixed)], want[mixed])
        print(f"bits of {model}: {time.monotonic() - start:.1f} s", flush=True)

    def error(self, model: Model, sequence: Sequence, got: np.ndarray) -> None:
        q, k, v = (torch.from_numpy(x).to("cuda").transpose(0, 1) for x in sequence.wide(model.dtype))
        k, v = k.repeat_interleave(model.group, 0), v.repeat_interleave(model.group, 0)
        attend = torch.nn.functional.scaled_dot_product_attention
        exact = attend(q.double(), k.double(), v.double(), is_causal=True)
        half = torch.bfloat16 if model.dtype == "bfloat16" else torch.float16
        ours = torch.from_numpy(got.view(np.int16)).to("cuda").view(half).transpose(0, 1).double()
        theirs = attend(q.to(half)[None], k.to(half)[None], v.to(half)[None], is_causal=True)[0].double()
        norms = [((x - exact).norm() / exact.norm()).item() for x in (ours, theirs, exact.to(half).double())]
        print(f"  error against float64, {model}: {norms[0]:.2e}; torch {norms[1]:.2e}; rounded once {norms[2]:.2e}")


class Problem:
    """Random caches of some layers and one step over them."""

    def __init__(self, model: Model, lengths: list[int], tokens: list[int], decode_tokens: int) -> None:
        """lengths: keys of each sequence, of which the last `tokens` are of this step."""
        self.model = model
        counts = [-(-n // BLOCK) for n in lengths]
        per_layer = 2 * sum(counts) * BLOCK * model.kv_heads * model.head_dim * 2
        self.layers = max(1, min(-(-CACHE_BYTES // per_layer), 128))
        shape = (self.layers, sum(counts), model.kv_heads, BLOCK, model.head_dim)
        self.keys, self.values = (torch.randn(shape, dtype=torch.bfloat16, device="cuda") for _ in range(2))
        order = torch.randperm(sum(counts)).to(torch.int32).numpy()
        tables = np.zeros((len(lengths), max(counts)), np.int32)
        for i, count in enumerate(counts):
            tables[i, :count], order = order[:count], order[count:]
        self.positions = np.concatenate(
            [np.arange(n - t, n, dtype=np.int32) for n, t in zip(lengths, tokens, strict=True)]
        )
        self.query_start = np.concatenate([[0], np.cumsum(tokens)]).astype(np.int32)
        rows = len(self.positions)
        self.q = torch.randn((rows, model.heads * model.head_dim), dtype=torch.bfloat16, device="cuda")
        self.out = torch.empty_like(self.q)
        self.tables, self.decode_tokens = tables, decode_tokens

    def numbers(self, tile: int) -> tuple[Numbers, Plan]:
        p = plan(self.positions, self.query_start, tile, 1 << 20, None, self.decode_tokens)
        meta = np.zeros(META, np.int32)
        meta[[TABLE_WIDTH, DECODE_ITEMS, PREFILL_ITEMS]] = (
            self.tables.shape[1],
            len(p.decode_items),
            len(p.prefill_items),
        )
        none = torch.empty(0, dtype=torch.int32, device="cuda")
        there = [
            torch.from_numpy(a.reshape(-1)).to("cuda") for a in (meta, self.tables, p.decode_items, p.prefill_items)
        ]
        return Numbers(there[0], none, none, none, none, *there[1:]), p

    def decode_graph(
        self, schedule: Schedule, numbers: Numbers, scratch: gpu.Scratch, programs: int, pdl: bool = True
    ) -> Graph:
        def run(i: int) -> None:
            gpu.decode(schedule, self.q, self.keys[i], self.values[i], self.out, numbers, scratch, None, programs, True)

        return Graph(run, self.layers)

    def prefill_graph(self, schedule: Schedule, numbers: Numbers, programs: int) -> Graph:
        def run(i: int) -> None:
            gpu.prefill(schedule, self.q, self.keys[i], self.values[i], self.out, numbers, None, programs, True)

        return Graph(run, self.layers)


class Graph:
    def __init__(self, run: Callable[[int], None], layers: int) -> None:
        self.launches = max(layers, 6)
        run(0)
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            for i in range(self.launches):
                run(i % layers)
        self._graph.replay()

    def time(self) -> float:
        """Microseconds of one launch."""
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        self._graph.replay()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e3 / self.launches


def median(graph: Graph, times: int) -> float:
    return statistics.median(graph.time() for _ in range(times))


def ignore(result: torch.Tensor) -> None:
    """For what is run for its time alone."""


def copy_bandwidth() -> float:
    """Bytes read and written a second by a large copy."""
    a = torch.empty(1 << 30, dtype=torch.int8, device="cuda")
    b = torch.empty_like(a)
    graph = Graph(lambda _: ignore(b.copy_(a)), 1)
    return 2 * a.numel() / median(graph, 5) * 1e6


class Speed:
    def __init__(self, failed: set[Job], deadline: float) -> None:
        self._failed, self._deadline = failed, deadline
        self._processors = torch.cuda.get_device_properties(0).multi_processor_count
        self.results: list[dict[str, Any]] = []

    def decode(self) -> None:
        copy = copy_bandwidth()
        print(f"copy {copy / 1e12:.2f} TB/s")
        model = QWEN3_8B
        for n, context in DECODE_SIZES:
            if time.monotonic() > self._deadline:
                print("out of time")
                return
            problem = Problem(model, [context] * n, [1] * n, 8)
            numbers, p = problem.numbers(1)
            scratch = gpu.Scratch.of(
                len(p.decode_items), model.kv_heads, model.group, model.head_dim, torch.device("cuda")
            )
            works = len(p.decode_items) * model.kv_heads
            moved = 2 * n * context * model.kv_heads * model.head_dim * 2 + 4 * problem.q.numel()
            times: list[tuple[float, Schedule]] = []
            for schedule in DECODE_SPEED:
                if (model, BLOCK, schedule) in self._failed:
                    continue
                for per in (1, 2, 3, 4, 6, 8, 12):
                    if per > 1 and self._processors * (per - 1) >= works:
                        break
                    graph = problem.decode_graph(schedule, numbers, scratch, self._processors * per)
                    times.append((median(graph, 3), replace(schedule, programs=per)))
            times.sort(key=lambda t: t[0])
            us, best = times[0]
            # One after another, each a launch of its own: a step's other kernels hide less than this and more than that.
            alone = median(problem.decode_graph(best, numbers, scratch, self._processors * best.programs, pdl=False), 3)
            self.note(
                "decode", n, context, times,
                alone_us=alone, bytes=moved, gb_per_s=moved / us / 1e3, of_copy=moved / us * 1e6 / copy,
            )  # fmt: skip
            print(
                f"decode {n:4d} x {context:6d}: {us:8.1f} us {moved / us / 1e3:6.0f} GB/s {moved / us * 1e6 / copy:.2f} of copy, alone {alone:.1f} us | "
                + "  ".join(f"{t:.1f} w{s.warps} s{s.stages} x{s.programs}" for t, s in times[:6]),
                flush=True,
            )

    def prefill(self) -> None:
        model = QWEN3_8B
        for n, length in PREFILL_SIZES:
            if time.monotonic() > self._deadline:
                print("out of time")
                return
            problem = Problem(model, [length] * n, [length] * n, 0)
            flop = 4 * model.head_dim * model.heads * float((problem.positions + 1.0).sum())
            times: list[tuple[float, Schedule]] = []
            for schedule in PREFILL_SPEED:
                if (model, BLOCK, schedule) in self._failed:
                    continue
                numbers, p = problem.numbers(gpu.tile_rows(schedule, model.group) // model.group)
                exact = -(-len(p.prefill_items) * model.kv_heads // self._processors)
                for per in (1, 2, 3, exact):
                    graph = problem.prefill_graph(schedule, numbers, self._processors * per)
                    times.append((median(graph, 3), replace(schedule, programs=per)))
            times.sort(key=lambda t: t[0])
            us = times[0][0]
            theirs = self.torch_times(n, length)
            self.note("prefill", n, length, times, tflop_per_s=flop / us / 1e6, torch_us=theirs)
            print(
                f"prefill {n} x {length}: {us:.0f} us {flop / us / 1e6:.0f} TFLOP/s; torch "
                + ", ".join(f"{name} {t:.0f} us {flop / t / 1e6:.0f}" for name, t in theirs.items())
                + " | "
                + "  ".join(f"{t:.0f} r{s.rows} w{s.warps} s{s.stages} x{s.programs}" for t, s in times[:8]),
                flush=True,
            )

    def torch_times(self, n: int, length: int) -> dict[str, float]:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        model = QWEN3_8B
        q = torch.randn((n, model.heads, length, model.head_dim), dtype=torch.bfloat16, device="cuda")
        k, v = (torch.randn_like(q) for _ in range(2))
        times = {}
        for name, backend in (("flash", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION)):
            try:
                with sdpa_kernel(backend):
                    attend = torch.nn.functional.scaled_dot_product_attention
                    times[name] = median(Graph(lambda _: ignore(attend(q, k, v, is_causal=True)), 1), 5)  # noqa: B023
            except Exception as error:  # not in this build; said and left out
                print(f"  torch {name}: {str(error)[:100]}")
        return times

    def note(self, kind: str, n: int, context: int, times: list[tuple[float, Schedule]], **more: Any) -> None:
        ranked = [{"us": round(t, 2), **asdict(s)} for t, s in times]
        self.results.append({"kind": kind, "sequences": n, "context": context, **more, "ranked": ranked})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", default=".")
    parser.add_argument("--only", default="bits,decode,prefill")
    parser.add_argument("--budget", type=float, default=150.0, help="seconds, after which no further size is timed")
    parser.add_argument("--workers", type=int, default=min(14, os.cpu_count() or 1))
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs a CUDA device")
    deadline = time.monotonic() + options.budget
    only = options.only.split(",")
    jobs: list[Job] = []
    if "decode" in only:
        jobs += [(QWEN3_8B, BLOCK, s) for s in DECODE_SPEED]
    if "prefill" in only:
        jobs += [(QWEN3_8B, BLOCK, s) for s in PREFILL_SPEED]
    if "bits" in only:
        jobs += [(LONG, 64, s) for s in DECODE_BITS + PREFILL_BITS]
        jobs += [(LONG, size, s) for size in (16, 48, 128) for s in FEW_DECODE + FEW_PREFILL]
        jobs += [(m, 64, s) for m in OTHERS for s in FEW_DECODE + FEW_PREFILL]
    failed = compile_all(jobs, options.workers)
    results: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    folder = Path(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    speed = Speed(failed, deadline)
    for kind in only:
        if kind == "bits":
            bits = Bits(failed)
            bits.model(LONG, 4100, DECODE_BITS, PREFILL_BITS, [64])
            bits.model(LONG, 1300, FEW_DECODE, FEW_PREFILL, [64, 16, 48, 128])
            for model in OTHERS:
                usable = [s for s in FEW_PREFILL if (model, 64, s) not in failed]
                bits.model(model, 1100, FEW_DECODE, usable, [64])
            print(f"bits: {bits.compared} comparisons, {len(bits.unequal)} unequal", flush=True)
            results["bits"] = {"compared": bits.compared, "unequal": bits.unequal}
        elif kind == "decode":
            speed.decode()
        else:
            speed.prefill()
        results["speed"] = speed.results
        (folder / "attention.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
