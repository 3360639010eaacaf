"""Matrix products on the GPU, alone: which schedules are fast, and how they stand against cuBLAS.

    python benchmarks/gpu_kernels.py --tune --out FOLDER [--budget 240] [--model qwen3-8b]
    python benchmarks/gpu_kernels.py --table --out FOLDER

Times are of CUDA graphs that hold a row of launches, each on other weights, together more than the L2 holds. Every
schedule that is timed is first compared bit for bit with the chain; an unequal one is reported and never chosen.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from queueproof.kernels.cuda import cublaslt
from queueproof.kernels.triton.linear import Tile, Weight, narrow, wide

DTYPE = torch.bfloat16
L2_BYTES = 120_000_000  # weights of one graph hold at least this much: more than twice the L2 of an H200
SHARED_BYTES = 227 * 1024
REFERENCES = {False: Tile(False, 128, 128, 64, 8, 3), True: Tile(False, 64, 128, 64, 8, 3)}  # by gated
FIRST_ROWS, MORE_ROWS = (1, 8, 16, 32, 64, 128, 256), (1024, 4096)
Run = Callable[[torch.Tensor, Weight, torch.Tensor], None]


@dataclass(frozen=True)
class Shape:
    name: str
    n: int
    k: int
    gated: bool = False
    out: str = "h16"

    @property
    def out_dtype(self) -> torch.dtype:
        return torch.float32 if self.out == "f32" else DTYPE

    @property
    def columns(self) -> int:
        return self.n // 2 if self.gated else self.n


MODELS = {
    "qwen3-8b": [
        Shape("gate_up", 24576, 4096, True),
        Shape("down", 4096, 12288),
        Shape("qkv", 6144, 4096),
        Shape("o", 4096, 4096),
        Shape("head", 151936, 4096, False, "f32"),
        Shape("gate_up_plain", 24576, 4096),
    ],
    "qwen3-0.6b": [
        Shape("gate_up", 6144, 1024, True),
        Shape("down", 1024, 3072),
        Shape("qkv", 4096, 1024),
        Shape("o", 1024, 2048),
        Shape("head", 151936, 1024, False, "f32"),
    ],
    "llama-3.1-8b": [
        Shape("gate_up", 28672, 4096, True),
        Shape("down", 4096, 14336),
        Shape("qkv", 6144, 4096),
        Shape("o", 4096, 4096),
        Shape("head", 128256, 4096, False, "f32"),
    ],
}


def shared_bytes(t: Tile, is_gated: bool) -> int:
    return (t.bn * (2 if is_gated else 1) + t.bm) * t.bk * 2 * t.stages


def candidates(rows: int, shape: Shape) -> list[Tile]:
    """Own schedules worth a measurement for this many rows."""
    tiles: list[Tile] = []
    if rows <= 64:
        bm = 8 if rows <= 8 else 16 if rows <= 16 else 32 if rows <= 32 else 64
        bms = (8, 16) if rows <= 8 else (bm,)
        for b in bms:
            few = b <= 16
            narrow_tiles: list[tuple[int, int, int, Iterable[int]]] = [
                (32, 128, 4, (4, 6, 8)),
                (64, 64, 4, (6, 8)),
                (64, 128, 4, (4, 5)),
            ]
            if few:
                narrow_tiles += [
                    (16, 128, 2, (5, 7, 9)),
                    (16, 256, 2, (4, 5)),
                    (32, 128, 2, (4, 6)),
                    (64, 64, 2, (5, 7)),
                    (32, 256, 4, (3, 4)),
                ]
            if b == 8:
                narrow_tiles += [(16, 128, 1, (5, 7)), (16, 256, 1, (4,))]
            if b == 32:
                narrow_tiles += [(16, 128, 4, (5, 7)), (32, 128, 2, (5,)), (128, 64, 4, (4,))]
            if b == 64:
                narrow_tiles += [(32, 64, 4, (6,)), (128, 64, 4, (3, 4)), (16, 128, 4, (4,))]
            for bn, bk, warps, stages in narrow_tiles:
                bn_ = max(16, bn // 2) if shape.gated else bn
                tiles += [Tile(False, bn_, b, bk, warps, s, ahead=4 if bk == 256 else 8) for s in stages]
        b = max(bm, 16)
        for bn, bk, warps, stages in [
            (64, 128, 4, (4, 6, 8)),
            (64, 64, 4, (10,)),
            (128, 64, 4, (6, 8)),
            (128, 128, 4, (4,)),
            (64, 256, 4, (4,)),
        ]:
            tiles += [Tile(True, bn, b, bk, warps, s, swap=True) for s in stages]
    elif rows <= 256:
        for bn, bm, bk, warps, stages in [
            (64, 128, 64, 4, (6, 8)), (128, 128, 64, 8, (4, 6)), (128, 128, 64, 4, (4,)), (128, 64, 64, 4, (6, 8)), (64, 64, 64, 4, (8,)),
            (64, 64, 128, 4, (5,)), (64, 128, 128, 4, (4,)), (32, 128, 64, 4, (8,)), (128, 256, 64, 8, (4,)), (64, 256, 64, 8, (4,)), (256, 128, 64, 8, (4,)),
        ]:  # fmt: skip
            if bm <= max(rows, 64):
                tiles += [Tile(True, bn, bm, bk, warps, s, swap=False) for s in stages]
            if bm <= 128 and bn >= 64:
                tiles += [Tile(True, bn, bm, bk, warps, stages[-1], swap=True)]
    else:
        for bn, bm, bk, warps, stages in [
            (256, 128, 64, 8, (3, 4)), (128, 256, 64, 8, (3, 4)), (128, 128, 64, 8, (4,)), (128, 128, 64, 4, (4,)), (128, 64, 64, 4, (6,)),
        ]:  # fmt: skip
            tiles += [Tile(True, bn, bm, bk, warps, s, swap=False, group=g) for s in stages for g in (8, 16)]
        tiles += [Tile(True, 128, 128, 64, 8, 4, swap=True)]
    fitting = [t for t in tiles if shared_bytes(t, shape.gated) <= SHARED_BYTES - 4096]
    accumulators = 2 if shape.gated else 1
    return [t for t in dict.fromkeys(fitting) if accumulators * t.bn * t.bm // (t.warps * 32) <= 160]


def own(tile: Tile, is_gated: bool, pdl: bool = True) -> Run:
    if not tile.wide:
        return lambda x, w, out: narrow(tile, x, w, out, is_gated, pdl)
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    return lambda x, w, out: wide(tile, x, w, out, is_gated, pdl, processors)


Job = tuple[Tile, bool, str, bool]  # tile, gated, out, PDL


def compile_one(job: Job) -> str | None:
    """Fills Triton's cache by a launch on a small problem with the same specialisation."""
    tile, is_gated, out_name, pdl = job
    try:
        k = tile.bk * max(tile.ahead, 1)
        w = Weight(
            torch.zeros((tile.bn * (2 if is_gated else 1), k), dtype=DTYPE, device="cuda"),
            tile.bn * (2 if is_gated else 1),
            k,
        )
        x = torch.zeros((max(16, tile.bm), k), dtype=DTYPE, device="cuda")
        out = torch.zeros((x.shape[0], tile.bn), dtype=torch.float32 if out_name == "f32" else DTYPE, device="cuda")
        own(tile, is_gated, pdl)(x, w, out)
        torch.cuda.synchronize()
    except Exception as error:  # reported by the caller, job by job
        return f"{tile}: {type(error).__name__}: {str(error)[:200]}"
    return None


class Graph:
    """A CUDA graph of `launches` runs on rotating weights."""

    def __init__(self, run: Run, x: torch.Tensor, weights: list[Weight], out: torch.Tensor, launches: int) -> None:
        self.launches = launches
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


def interleaved(graphs: dict[Any, Graph], rounds: int) -> dict[Any, float]:
    times: dict[Any, list[float]] = {name: [] for name in graphs}
    for _ in range(rounds):
        for name, graph in graphs.items():
            times[name].append(graph.time())
    return {name: statistics.median(t) for name, t in times.items()}


class Bench:
    """Weights, inputs and the reference result of one shape."""

    def __init__(self, shape: Shape, most_rows: int) -> None:
        self.shape = shape
        size = shape.n * shape.k * 2
        copies = max(1 if size > 4 * L2_BYTES else 2, -(-L2_BYTES // size))
        self.weights = [
            Weight(torch.randn((shape.n, shape.k), dtype=DTYPE, device="cuda") * 0.02, shape.n, shape.k)
            for _ in range(copies)
        ]
        self.x = torch.randn((most_rows, shape.k), dtype=DTYPE, device="cuda")
        self.reference = torch.empty((most_rows, shape.columns), dtype=shape.out_dtype, device="cuda")
        self.launches = max(len(self.weights), 12) if size < L2_BYTES else len(self.weights) * 3
        narrow(REFERENCES[shape.gated], self.x, self.weights[0], self.reference, shape.gated, False)
        torch.cuda.synchronize()

    def equal(self, run: Run, rows: int) -> bool:
        out = torch.full((rows, self.shape.columns), float("nan"), dtype=self.shape.out_dtype, device="cuda")
        run(self.x[:rows], self.weights[0], out)
        kind = torch.int32 if out.element_size() == 4 else torch.int16
        return torch.equal(out.view(kind), self.reference[:rows].view(kind))

    def graph(self, run: Run, rows: int) -> Graph:
        out = torch.empty((rows, self.shape.columns), dtype=self.shape.out_dtype, device="cuda")
        launches = self.launches if rows <= 512 else len(self.weights)
        return Graph(run, self.x[:rows].contiguous(), self.weights, out, launches)

    def torch_run(self, rows: int) -> Run:
        """What torch does: a cuBLAS product, h16 out; gated: then two elementwise kernels."""
        plain = torch.empty((rows, self.shape.n), dtype=DTYPE, device="cuda")
        half = self.shape.n // 2

        def run(x: torch.Tensor, w: Weight, out: torch.Tensor) -> None:
            torch.mm(x, w.data.T, out=plain)
            if self.shape.gated:
                torch.mul(torch.nn.functional.silu(plain[:, :half]), plain[:, half:], out=out)

        return run


def vendor_runs(shape: Shape, rows: int, most: int = 16) -> dict[str, tuple[dict[str, Any], Run]]:
    library = _library()
    if library is None:
        return {}
    found: dict[str, tuple[dict[str, Any], Run]] = {}
    scratch = torch.empty((rows, shape.n), dtype=DTYPE, device="cuda") if shape.gated else None
    activation = _silu_mul() if shape.gated else None
    if shape.gated and activation is None:
        return {}
    for plan in library.plans(rows, shape.n, shape.k, DTYPE, DTYPE if shape.gated else shape.out_dtype, most):

        def run(x: torch.Tensor, w: Weight, out: torch.Tensor, plan: cublaslt.Plan = plan) -> None:
            stream = torch.cuda.current_stream().cuda_stream
            if scratch is None:
                plan.run(x.data_ptr(), w.data.data_ptr(), out.data_ptr(), stream)
            else:
                plan.run(x.data_ptr(), w.data.data_ptr(), scratch.data_ptr(), stream)
                activation(scratch, out, True)

        found.setdefault(json.dumps(plan.config), ({"kind": "vendor", "algorithm": plan.config}, run))
    return found


_loaded: list[cublaslt.CublasLt | None] = []


def _library() -> cublaslt.CublasLt | None:
    if not _loaded:
        _loaded.append(cublaslt.load(torch.device("cuda", 0)))
        print("cuBLASLt", _loaded[0].version if _loaded[0] else None)
    return _loaded[0]


def _silu_mul() -> Callable[[torch.Tensor, torch.Tensor, bool], None] | None:
    try:
        from queueproof.kernels.triton.elementwise import silu_mul
    except ImportError:
        return None
    return silu_mul


def tile_json(tile: Tile) -> dict[str, Any]:
    fields = asdict(tile)
    kind = "wide" if fields.pop("wide") else "narrow"
    return {"kind": kind, **fields}


@dataclass
class Point:
    """What is known of one shape at one number of rows."""

    rows: int
    runs: dict[str, tuple[dict[str, Any], Run]]
    screened: dict[str, float]
    unequal: list[str]
    failed: list[str]
    best: list[str]
    without_pdl: Tile | None


def tile_of(schedule: dict[str, Any], **changes: Any) -> Tile:
    fields = {name: value for name, value in schedule.items() if name != "kind"}
    return Tile(**{"wide": schedule["kind"] == "wide", **fields, **changes})


class Tuning:
    """Screens all candidates of all points, compiles variants of the best, then times those against torch in turn."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.deadline = time.monotonic() + options.budget
        self.out = Path(options.out)
        self.out.mkdir(parents=True, exist_ok=True)
        self.log = (self.out / "tune.jsonl").open("a")
        self.entries: list[dict[str, Any]] = []
        self.workers = multiprocessing.get_context("spawn").Pool(options.workers)
        self.compiled: set[Job] = set()

    def compile(self, jobs: Iterable[Job]) -> None:
        fresh = [j for j in dict.fromkeys(jobs) if j not in self.compiled]
        self.compiled.update(fresh)
        start = time.monotonic()
        for message in self.workers.imap_unordered(compile_one, fresh):
            if message:
                print("  does not compile:", message, flush=True)
        print(f"compiled {len(fresh)} kernels in {time.monotonic() - start:.1f} s", flush=True)

    def left(self) -> float:
        return self.deadline - time.monotonic()

    def screen(self, bench: Bench, rows: int) -> Point:
        shape = bench.shape
        tiles = candidates(rows, shape)
        runs: dict[str, tuple[dict[str, Any], Run]] = {
            json.dumps(tile_json(t)): (tile_json(t), own(t, shape.gated)) for t in tiles
        }
        runs |= vendor_runs(shape, rows)
        point = Point(rows, runs, {}, [], [], [], None)
        for name, (_, run) in runs.items():
            try:
                if not bench.equal(run, rows):
                    point.unequal.append(name)
                    continue
                graph = bench.graph(run, rows)
                point.screened[name] = statistics.median(graph.time() for _ in range(3))
            except Exception as error:  # a schedule that cannot be launched here is no candidate; it is listed
                point.failed.append(f"{name}: {type(error).__name__} {str(error)[:160]}")
        order = sorted(point.screened, key=point.screened.__getitem__)
        point.best = order[:4]
        for kind in ("vendor", "wide", "narrow"):
            point.best += [n for n in order if runs[n][0]["kind"] == kind and n not in point.best][:1]
        fastest_own = next((n for n in order if runs[n][0]["kind"] != "vendor"), None)
        if fastest_own:
            schedule = runs[fastest_own][0]
            point.without_pdl = tile_of(schedule)
            for ahead in (0, 2, 16) if schedule["kind"] == "narrow" else ():
                tile = tile_of(schedule, ahead=ahead)
                name = json.dumps(tile_json(tile))
                if name not in runs:
                    point.best.append(name)
                    runs[name] = (tile_json(tile), own(tile, shape.gated))
        unequal_vendor = sum("vendor" in runs[n][0]["kind"] for n in point.unequal)
        print(
            f"  screened {shape.name} M={rows}: {len(point.screened)} equal, {len(point.unequal)} unequal ({unequal_vendor} of the "
            f"vendor's), {len(point.failed)} failed",
            flush=True,
        )
        for message in point.failed[:2]:
            print("    ", message)
        return point

    def decide(self, bench: Bench, point: Point) -> None:
        shape, rows, runs = bench.shape, point.rows, point.runs
        graphs: dict[str, Graph] = {"torch": self.torch_graph(bench, rows)}
        for name in point.best:
            graphs[name] = bench.graph(runs[name][1], rows)
        if point.without_pdl:
            graphs["without PDL"] = bench.graph(own(point.without_pdl, shape.gated, pdl=False), rows)
        medians = interleaved(graphs, 9 if rows <= 512 else 5)
        ranked = sorted((n for n in medians if n in runs), key=medians.__getitem__)
        us, base = medians[ranked[0]], medians["torch"]
        entry = {
            "shape": shape.name, "n": shape.n, "k": shape.k, "gated": shape.gated, "out": shape.out, "rows": rows,
            "torch_us": base, "us": us, "speed_of_torch": base / us, "without_pdl_us": medians.get("without PDL"),
            "gb_per_s": shape.n * shape.k * 2 / us / 1e3, "tflop_per_s": 2 * shape.n * shape.k * rows / us / 1e6,
            "ranked": [{"us": medians[n], **runs[n][0]} for n in ranked],
            "screened": dict(sorted(point.screened.items(), key=lambda i: i[1])),
            "unequal": point.unequal, "failed": point.failed,
        }  # fmt: skip
        self.entries.append(entry)
        self.log.write(json.dumps(entry) + "\n")
        self.log.flush()
        line = (
            f"{shape.name:14s} M={rows:5d} torch {base:8.1f} us | best {us:8.1f} us x{base / us:.3f} "
            f"{entry['gb_per_s']:6.0f} GB/s {entry['tflop_per_s']:5.0f} TF"
        )
        for title, is_vendor in (("own", False), ("vendor", True)):
            name = next((n for n in ranked if (runs[n][0]["kind"] == "vendor") == is_vendor), None)
            if name:
                schedule = runs[name][0]
                fields = schedule.get("algorithm", schedule).values()
                line += f" | {title} {medians[name]:.1f} {' '.join(str(int(v)) if isinstance(v, bool) else str(v) for v in fields)}"
        print(f"{line} | own without PDL {medians.get('without PDL', float('nan')):.1f}", flush=True)
        self.save()

    def torch_graph(self, bench: Bench, rows: int) -> Graph:
        if bench.shape.out == "h16":
            return bench.graph(bench.torch_run(rows), rows)
        out = torch.empty((rows, bench.shape.n), dtype=DTYPE, device="cuda")
        launches = bench.launches if rows <= 512 else len(bench.weights)
        run: Run = lambda x, w, _: torch.mm(x, w.data.T, out=out)  # noqa: E731
        return Graph(run, bench.x[:rows].contiguous(), bench.weights, out, launches)

    def save(self) -> None:
        entries = [
            {"n": e["n"], "k": e["k"], "gated": e["gated"], "out": e["out"], "rows": e["rows"], "us": round(e["us"], 2),
             "torch_us": round(e["torch_us"], 2), "schedules": [{k: v for k, v in r.items() if k != "us"} for r in e["ranked"][:6]]}
            for e in self.entries
        ]  # fmt: skip
        table = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "entries": entries}
        (self.out / "schedules.json").write_text(json.dumps(table, indent=1) + "\n")

    def over_shapes(self, shapes: list[Shape], rows: tuple[int, ...], work: Callable[[Bench, int], None]) -> None:
        for shape in shapes:
            counts = [r for r in rows if not (shape.out == "f32" and r > 1024)]
            if not counts or self.left() <= 0:
                continue
            torch.manual_seed(7)
            bench: Bench | None = Bench(shape, max(counts))
            for r in counts:
                try:
                    if self.left() > 0 and bench is not None:
                        work(bench, r)
                except Exception:  # the other points are still worth their time
                    traceback.print_exc()
            bench = None
            torch.cuda.empty_cache()

    def run(self, shapes: list[Shape], only: list[int] | None) -> None:
        for rows in (FIRST_ROWS, MORE_ROWS) if only is None else (tuple(only),):
            jobs: list[Job] = [(t, s.gated, s.out, False) for s in shapes for t in [REFERENCES[s.gated]]]
            jobs += [(t, s.gated, s.out, True) for s in shapes for r in rows for t in candidates(r, s)]
            self.compile(jobs)
            points: dict[tuple[str, int], Point] = {}

            def screen(bench: Bench, r: int, points: dict[tuple[str, int], Point] = points) -> None:
                points[bench.shape.name, r] = self.screen(bench, r)

            def decide(bench: Bench, r: int, points: dict[tuple[str, int], Point] = points) -> None:
                if (bench.shape.name, r) in points:
                    self.decide(bench, points[bench.shape.name, r])

            self.over_shapes(shapes, rows, screen)
            by_name = {s.name: s for s in shapes}
            variants: list[Job] = []
            for (name, _), point in points.items():
                s = by_name[name]
                variants += [
                    (tile_of(point.runs[n][0]), s.gated, s.out, True)
                    for n in point.best
                    if point.runs[n][0]["kind"] == "narrow"
                ]
                if point.without_pdl:
                    variants.append((point.without_pdl, s.gated, s.out, False))
            self.compile(variants)
            self.over_shapes(shapes, rows, decide)
        self.workers.terminate()
        ratios = [e["speed_of_torch"] for e in self.entries]
        if ratios:
            mean = statistics.geometric_mean(ratios)
            print(f"speed over torch's, geometric mean of {len(ratios)} points: {mean:.3f}; {self.left():.0f} s left")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--tune", action="store_true", help="sweep schedules, write schedules.json and tune.jsonl")
    parser.add_argument("--model", choices=sorted(MODELS), default="qwen3-8b")
    parser.add_argument("--shapes", nargs="*", help="names of layers; all by default")
    parser.add_argument("--rows", nargs="*", type=int)
    parser.add_argument("--out", default=".")
    parser.add_argument("--budget", type=float, default=240.0, help="seconds")
    parser.add_argument("--workers", type=int, default=min(14, os.cpu_count() or 1))
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs a CUDA device")
    shapes = [s for s in MODELS[options.model] if not options.shapes or s.name in options.shapes]
    if options.tune:
        Tuning(options).run(shapes, options.rows)


if __name__ == "__main__":
    main()
