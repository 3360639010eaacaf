"""Matrix products on the GPU: which schedules are fast, alone and in a layer, and how they stand against cuBLAS.

    python benchmarks/gpu_kernels.py --tune --out FOLDER [--budget 240] [--model qwen3-8b]
    python benchmarks/gpu_kernels.py --table --out FOLDER

Times are of CUDA graphs that hold a row of launches, each on other weights, together more than the L2 holds. Every
schedule that is timed is first compared bit for bit with the chain; an unequal one is reported and never chosen.
--tune writes schedules.json (what kernels/triton/schedules/ holds for a card) and tune.jsonl (everything that was seen).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from gpu_candidates import DTYPE, MODELS, Compiler, Job, Run, Shape, candidates, own

from queueproof.kernels.triton.card import find_card
from queueproof.kernels.triton.linear import Tile, Weight, narrow
from queueproof.kernels.triton.products import Products, telling_factors
from queueproof.kernels.triton.schedules import Schedule, Vendor, to_json

L2_BYTES = 120_000_000  # weights of one graph hold at least this much: more than twice the L2 of an H200
REFERENCES = {False: Tile(False, 128, 128, 64, 8, 3), True: Tile(False, 64, 128, 64, 8, 3)}  # by gated
DECODE_ROWS, MORE_ROWS = (1, 8, 16, 32, 48, 64, 96, 128, 192, 256), (1024, 4096, 512, 2048, 384, 768, 8192)
TABLE_ROWS = (1, 8, 16, 32, 64, 128, 256, 1024, 4096)
MOST_HEAD_ROWS = 1024
KEPT = 6  # schedules of one point in the table


class Graph:
    """A CUDA graph of `launches` runs on rotating weights."""

    def __init__(self, run: Run, x: torch.Tensor, weights: list[Weight], out: torch.Tensor, launches: int) -> None:
        self.launches = launches
        self._used = run, x, weights, out  # a capture gives unused memory back to the card
        run(x, weights[0], out)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            for i in range(launches):
                run(x, weights[i % len(weights)], out)
        self.graph.replay()

    def time(self) -> float:
        """Microseconds of one run."""
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        self.graph.replay()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e3 / self.launches


def interleaved(graphs: Mapping[Any, Any], rounds: int) -> dict[Any, float]:
    times: dict[Any, list[float]] = {name: [] for name in graphs}
    for _ in range(rounds):
        for name, graph in graphs.items():
            times[name].append(graph.time())
    return {name: statistics.median(t) for name, t in times.items()}


class Bench:
    """Weights and inputs of one shape; factors that show every order of additions, and what the chain makes of them."""

    def __init__(self, shape: Shape, most_rows: int) -> None:
        self.shape = shape
        size = shape.n * shape.k * 2
        copies = max(1 if size > 4 * L2_BYTES else 2, -(-L2_BYTES // size))
        torch.manual_seed(7)
        self.weights = [
            self._weight(torch.randn((shape.n, shape.k), dtype=DTYPE, device="cuda") * 0.02) for _ in range(copies)
        ]
        self.x = torch.randn((most_rows, shape.k), dtype=DTYPE, device="cuda")
        self.launches = max(len(self.weights), 12) if size < L2_BYTES else len(self.weights) * 3
        self._telling_x, telling_w = telling_factors(most_rows, shape.n, shape.k, DTYPE, torch.device("cuda"))
        self._telling_w = self._weight(telling_w)
        self._want = torch.empty((most_rows, shape.columns), dtype=shape.out_dtype, device="cuda")
        narrow(REFERENCES[shape.gated], self._telling_x, self._telling_w, self._want, shape.gated, False)
        torch.cuda.synchronize()

    def _weight(self, data: torch.Tensor) -> Weight:
        return Weight(data, self.shape.n, self.shape.k)

    def equal(self, run: Run, rows: int) -> bool:
        out = torch.full((rows, self.shape.columns), float("nan"), dtype=self.shape.out_dtype, device="cuda")
        run(self._telling_x[:rows], self._telling_w, out)
        kind = torch.int32 if out.element_size() == 4 else torch.int16
        return torch.equal(out.view(kind), self._want[:rows].view(kind))

    def graph(self, run: Run, rows: int) -> Graph:
        out = torch.empty((rows, self.shape.columns), dtype=self.shape.out_dtype, device="cuda")
        launches = self.launches if rows <= 512 else len(self.weights)
        return Graph(run, self.x[:rows].contiguous(), self.weights, out, launches)

    def torch_run(self, rows: int) -> Run:
        """What torch does: a cuBLAS product with a 16-bit result; gated: then two elementwise kernels."""
        plain = torch.empty((rows, self.shape.n), dtype=DTYPE, device="cuda")
        half = self.shape.n // 2

        def run(x: torch.Tensor, w: Weight, out: torch.Tensor) -> None:
            torch.mm(x, w.data.T, out=plain)
            if self.shape.gated:
                torch.mul(torch.nn.functional.silu(plain[:, :half]), plain[:, half:], out=out)

        return run


@dataclass
class Point:
    """What is known of one shape at one number of rows."""

    runs: dict[Schedule, Run]
    screened: dict[Schedule, float] = field(default_factory=dict)
    unequal: list[Schedule] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    best: list[Schedule] = field(default_factory=list)

    def without_pdl(self) -> Tile | None:
        return next((s for s in self.best if isinstance(s, Tile)), None)


def kept(ranked: list[Schedule]) -> list[Schedule]:
    """The best, and one of our own among them: the vendor's may be refused elsewhere."""
    tile = [s for s in ranked if isinstance(s, Tile)][:1]
    return list(dict.fromkeys([*ranked[: KEPT - 1], *tile]))


def named(schedule: Schedule) -> str:
    values = [v for v in to_json(schedule).values() if not isinstance(v, dict)]
    if isinstance(schedule, Vendor):
        values += [v for _, v in schedule.algorithm]
    return " ".join(str(int(v)) if isinstance(v, bool) else str(v) for v in values)


class Tuning:
    """Screens all candidates of all points, then times the best against torch in turn."""

    def __init__(self, out: Path, budget: float, compiler: Compiler) -> None:
        self.deadline = time.monotonic() + budget
        self.out, self.compiler = out, compiler
        self.log = (out / "tune.jsonl").open("a")
        self.points: dict[tuple[Shape, int], Point] = {}
        self.table: dict[tuple[Shape, int], dict[str, Any]] = {}
        self.products = Products(find_card())

    def left(self) -> float:
        return self.deadline - time.monotonic()

    def screen(self, bench: Bench, rows: int) -> None:
        shape = bench.shape
        runs: dict[Schedule, Run] = {t: own(t, shape.gated) for t in candidates(rows, shape)}
        runs |= self.products.vendor_runs(shape.kind, rows, bench.weights[0], shape.out_dtype)
        point = self.points[shape, rows] = Point(runs)
        for schedule, run in runs.items():
            try:
                if bench.equal(run, rows):
                    graph = bench.graph(run, rows)
                    point.screened[schedule] = statistics.median(graph.time() for _ in range(3))
                else:
                    point.unequal.append(schedule)
            except Exception as error:  # a schedule that cannot be launched here is no candidate; it is listed
                point.failed.append(f"{named(schedule)}: {type(error).__name__} {str(error)[:160]}")
        order = sorted(point.screened, key=point.screened.__getitem__)
        tiles, vendors = [s for s in order if isinstance(s, Tile)], [s for s in order if isinstance(s, Vendor)]
        point.best = sorted({*order[:5], *tiles[:3], *vendors[:2]}, key=point.screened.__getitem__)
        refused = [named(s) for s in point.unequal]
        print(
            f"  {shape.name} M={rows}: {len(order)} equal, unequal: {refused}, failed: {point.failed[:2]}", flush=True
        )

    def decide(self, bench: Bench, rows: int) -> None:
        shape, point = bench.shape, self.points[bench.shape, rows]
        if not point.best:
            return
        graphs: dict[Any, Graph] = {s: bench.graph(point.runs[s], rows) for s in point.best}
        graphs["torch"] = bench.graph(bench.torch_run(rows), rows)
        tile = point.without_pdl()
        if tile:
            graphs["without PDL"] = bench.graph(own(tile, shape.gated, pdl=False), rows)
        medians = interleaved(graphs, 9 if rows <= 512 else 5)
        base, plain = medians.pop("torch"), medians.pop("without PDL", None)
        ranked = sorted(medians, key=medians.__getitem__)
        us = medians[ranked[0]]
        entry = {
            "n": shape.n, "k": shape.k, "gated": shape.gated, "out": shape.out, "rows": rows, "us": round(us, 2), "torch_us": round(base, 2),
            "schedules": [to_json(s) for s in kept(ranked)],
        }  # fmt: skip
        self.table[shape, rows] = entry
        more = {
            "shape": shape.name, "speed_of_torch": base / us, "without_pdl_us": plain, "gb_per_s": shape.n * shape.k * 2 / us / 1e3,
            "tflop_per_s": 2 * shape.n * shape.k * rows / us / 1e6, "final": {named(s): t for s, t in medians.items()},
            "screened": {named(s): t for s, t in point.screened.items()}, "unequal": [named(s) for s in point.unequal], "failed": point.failed,
        }  # fmt: skip
        self.log.write(json.dumps(entry | more) + "\n")
        self.log.flush()
        line = f"{shape.name:14s} M={rows:5d} torch {base:8.1f} us | best {us:8.1f} x{base / us:.3f} {more['gb_per_s']:6.0f} GB/s {more['tflop_per_s']:5.0f} TF"
        for kind in (Tile, Vendor):
            line += "".join(f" | {named(s)}: {medians[s]:.1f}" for s in [s for s in ranked if isinstance(s, kind)][:1])
        print(f"{line} | no PDL {plain or 0:.1f}", flush=True)
        self.save()

    def save(self) -> None:
        head = json.dumps({"gpu": torch.cuda.get_device_name(), "torch": torch.__version__})
        entries = ",\n".join(json.dumps(e) for e in self.table.values())
        (self.out / "schedules.json").write_text(f'{head[:-1]}, "entries": [\n{entries}\n]}}\n')

    def over_shapes(self, shapes: list[Shape], rows: tuple[int, ...], work: Callable[[Bench, int], None]) -> None:
        for shape in shapes:
            counts = [r for r in rows if shape.out == "h16" or r <= MOST_HEAD_ROWS]
            if not counts or self.left() <= 0:
                continue
            bench: Bench | None = Bench(shape, max(counts))
            for r in counts:
                try:
                    if self.left() > 0 and bench is not None:
                        work(bench, r)
                except Exception:  # the other points are still worth their time
                    traceback.print_exc()
            bench = None
            torch.cuda.empty_cache()

    def run(self, shapes: list[Shape], rows: tuple[int, ...]) -> None:
        jobs: list[Job] = [(REFERENCES[s.gated], s.gated, s.out, False) for s in shapes]
        jobs += [(t, s.gated, s.out, True) for s in shapes for r in rows for t in candidates(r, s)]
        self.compiler.compile(jobs)
        self.over_shapes(shapes, rows, self.screen)
        fastest = [(s, p.without_pdl()) for (s, r), p in self.points.items() if r in rows]
        self.compiler.compile([(t, s.gated, s.out, False) for s, t in fastest if t])
        self.over_shapes(shapes, rows, self.decide)
        print(f"{self.left():.0f} s left", flush=True)

    def summary(self) -> None:
        ratios = [e["torch_us"] / e["us"] for e in self.table.values()]
        if ratios:
            print(
                f"speed over torch's, geometric mean of {len(ratios)} points: {statistics.geometric_mean(ratios):.3f}"
            )


def tune(options: argparse.Namespace, shapes: list[Shape]) -> None:
    from gpu_layers import tune_layers

    compiler = Compiler(options.workers)
    tuning = Tuning(options.out, options.budget, compiler)
    try:
        if options.rows:
            tuning.run(shapes, tuple(options.rows))
        else:
            tuning.run(shapes, DECODE_ROWS)
            tuning.summary()
            tune_layers(options.model, tuning, [r for r in DECODE_ROWS if tuning.left() > 0])
            tuning.run(shapes, MORE_ROWS)
        tuning.summary()
    finally:
        compiler.close()


def show_table(out: Path, shapes: list[Shape], rows: tuple[int, ...]) -> None:
    """What the package chooses on this card against torch, interleaved."""
    products, results = Products(find_card()), []
    for shape in shapes:
        counts = [r for r in rows if shape.out == "h16" or r <= MOST_HEAD_ROWS]
        bench = Bench(shape, max(counts))
        call = products.gated if shape.gated else products.linear
        for r in counts:
            equal = bench.equal(call, r)
            graphs = {"own": bench.graph(call, r), "torch": bench.graph(bench.torch_run(r), r)}
            times = interleaved(graphs, 15 if r <= 512 else 7)
            us, base = times["own"], times["torch"]
            chosen = products.report.chosen[shape.kind, r]
            results.append({
                "layer": shape.name, "n": shape.n, "k": shape.k, "rows": r, "us": us, "torch_us": base, "speed_of_torch": base / us,
                "gb_per_s": shape.n * shape.k * 2 / us / 1e3, "tflop_per_s": 2 * shape.n * shape.k * r / us / 1e6, "equal": equal,
                "schedule": to_json(chosen),
            })  # fmt: skip
            e = results[-1]
            print(
                f"{shape.name:14s} M={r:5d} {us:8.1f} us, torch {base:8.1f}: x{base / us:.3f} {e['gb_per_s']:6.0f} GB/s {e['tflop_per_s']:5.0f} TF  {named(chosen)}",
                flush=True,
            )
            if not equal:
                print("  UNEQUAL to the chain", flush=True)
        del bench
        torch.cuda.empty_cache()
    mean = statistics.geometric_mean(e["speed_of_torch"] for e in results)
    print(
        f"speed over torch's, geometric mean of {len(results)} points: {mean:.3f}; all equal: {all(e['equal'] for e in results)}"
    )
    document = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "geometric_mean": mean,
        "points": results,
    }
    (out / "kernel_table.json").write_text(json.dumps(document, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--tune", action="store_true", help="sweep schedules, write schedules.json and tune.jsonl")
    parser.add_argument("--table", action="store_true", help="the schedules that the package chooses against torch")
    parser.add_argument("--model", choices=sorted(MODELS), default="qwen3-8b")
    parser.add_argument("--shapes", nargs="*", help="names of layers; all by default")
    parser.add_argument("--rows", nargs="*", type=int)
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--budget", type=float, default=240.0, help="seconds, of --tune")
    parser.add_argument("--workers", type=int, default=min(14, os.cpu_count() or 1))
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs a CUDA device")
    options.out.mkdir(parents=True, exist_ok=True)
    shapes = [s for s in MODELS[options.model] if not options.shapes or s.name in options.shapes]
    if options.tune:
        tune(options, shapes)
    if options.table:
        show_table(options.out, shapes, tuple(options.rows or TABLE_ROWS))


if __name__ == "__main__":
    main()
