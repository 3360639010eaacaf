"""Elementwise kernels and draws on the GPU, alone: how near they are to the speed of a copy, and that no schedule moves a bit.

    python benchmarks/gpu_elementwise.py --out FOLDER [--only bits,kernels,draws,schedules] [--budget 85]

Sizes of Qwen3-8B. kernels: CUDA graphs of launches over enough buffers to pass the L2 (few rows: as many as 16). draws: time on
the card of a whole draw, copies included, while the host runs ahead; and the host's own time to enqueue one.
FOLDER/elementwise.json has everything.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from queueproof.kernels.ops import DrawBatch, Edits
from queueproof.kernels.triton import elementwise
from queueproof.kernels.triton.card import find_card
from queueproof.kernels.triton.device import DeviceLogits
from queueproof.kernels.triton.rows import TritonRows

H, F, HEADS, KV_HEADS, D, V, BLOCK = 4096, 12288, 32, 8, 128, 151_936, 64
ROWS, DRAW_ROWS = (1, 8, 64, 256, 2048, 8192), (1, 8, 64, 256)
WARPS = (1, 2, 4, 8, 16)
DRAW_SCHEDULES = ((1024, 4), (2048, 4), (2048, 8), (4096, 8))  # (tile, warps)
L2_BYTES, MOST_SETS = 120_000_000, 16
H16 = torch.bfloat16
EPS = 1e-6


@dataclass(frozen=True)
class Kernel:
    """make: the tensors for a number of rows. run: launches; results: what it wrote. bytes: read and written, a row."""

    name: str
    make: Callable[[int], dict[str, Any]]
    run: Callable[[dict[str, Any], bool, int | None], None]
    results: tuple[str, ...]
    bytes: int


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, device="cuda").to(dtype)


def made_rope(rows: int) -> dict[str, Any]:
    blocks = -(-rows // BLOCK)
    positions = torch.arange(rows, device="cuda")
    return {
        "qkv": normal(rows, (HEADS + 2 * KV_HEADS) * D, dtype=H16),
        "cos": normal(8192, D // 2),
        "sin": normal(8192, D // 2),
        "positions": positions.to(torch.int32),
        "slots": positions,
        "k": torch.zeros(blocks, KV_HEADS, BLOCK, D, device="cuda", dtype=H16),
        "v": torch.zeros(blocks, KV_HEADS, BLOCK, D, device="cuda", dtype=H16),
        "q": torch.zeros(rows, HEADS * D, device="cuda", dtype=H16),
        "weight": normal(D),
    }


def run_rope(normed: bool) -> Callable[[dict[str, Any], bool, int | None], None]:
    def run(t: dict[str, Any], pdl: bool, warps: int | None) -> None:
        weight = t["weight"] if normed else None
        places = (t["positions"], t["slots"], t["k"], t["v"], t["q"])
        elementwise.rope_and_cache(t["qkv"], t["cos"], t["sin"], *places, weight, weight, EPS, pdl, warps)

    return run


def made_norm(rows: int) -> dict[str, Any]:
    delta = normal(rows, H, dtype=H16)
    return {"h": normal(rows, H), "weight": normal(H), "delta": delta, "out": torch.zeros_like(delta)}


def made_embed(rows: int) -> dict[str, Any]:
    tokens = torch.randint(0, 16_384, (rows,), device="cuda", dtype=torch.int32)
    drawn = torch.full_like(tokens, -1)
    drawn[::2] = torch.arange(rows, device="cuda", dtype=torch.int32)[::2]
    table = normal(16_384, H, dtype=H16)
    return {
        "table": table,
        "tokens": tokens,
        "drawn": drawn,
        "last": tokens.flip(0),
        "out": torch.zeros(rows, H, device="cuda"),
    }


KERNELS = [
    Kernel(
        "embed",
        made_embed,
        lambda t, pdl, w: elementwise.embed(t["table"], t["tokens"], t["drawn"], t["last"], t["out"], pdl, w),
        ("out",),
        6 * H,
    ),
    Kernel("add", made_norm, lambda t, pdl, w: elementwise.add(t["h"], t["delta"], pdl, w), ("h",), 10 * H),
    Kernel(
        "rms_norm",
        made_norm,
        lambda t, pdl, w: elementwise.rms_norm(t["h"], t["weight"], EPS, None, t["out"], pdl, w),
        ("out",),
        6 * H,
    ),
    Kernel(
        "rms_norm_residual",
        made_norm,
        lambda t, pdl, w: elementwise.rms_norm(t["h"], t["weight"], EPS, t["delta"], t["out"], pdl, w),
        ("out", "h"),
        12 * H,
    ),
    Kernel(
        "silu_mul",
        lambda rows: {"x": normal(rows, 2 * F, dtype=H16), "out": torch.zeros(rows, F, device="cuda", dtype=H16)},
        lambda t, pdl, w: elementwise.silu_mul(t["x"], t["out"], pdl, w),
        ("out",),
        6 * F,
    ),
    Kernel("rope_and_cache", made_rope, run_rope(False), ("q", "k", "v"), 4 * (HEADS + 2 * KV_HEADS) * D),
    Kernel("rope_and_cache_norms", made_rope, run_rope(True), ("q", "k", "v"), 4 * (HEADS + 2 * KV_HEADS) * D),
    Kernel(
        "gather_rows",
        lambda rows: {
            "h": normal(rows, H),
            "rows": torch.randperm(rows, device="cuda").to(torch.int32),
            "out": torch.zeros(rows, H, device="cuda"),
        },
        lambda t, pdl, w: elementwise.gather_rows(t["h"], t["rows"], t["out"], pdl, w),
        ("out",),
        8 * H,
    ),
]


def made_logits(rows: int, scale: float = 3.0) -> DeviceLogits:
    values = torch.randn(rows, V, device="cuda", generator=torch.Generator("cuda").manual_seed(rows)) * scale
    values[:, ::7919] += 5 * scale  # a few tokens stand out, as they do in a model
    return DeviceLogits(values, torch.zeros(rows, dtype=torch.int32, device="cuda"))


def wanted(rows: int, top: int | None = None, edits: Edits | None = None, **fields: float) -> DrawBatch:
    def full(name: str, default: float, dtype: type) -> np.ndarray:
        return np.full(rows, fields.get(name, default), dtype)

    return DrawBatch(
        full("tokens", -1, np.int32),
        full("temperature", 0, np.float32),
        full("top_k", 0, np.int32),
        full("top_p", 1, np.float32),
        full("min_p", 0, np.float32),
        np.arange(rows, dtype=np.uint64),
        np.full(rows, 200, np.int64),
        top,
        edits,
    )


def edits(rows: int, each: int = 200) -> Edits:
    n = rows * each
    ids = np.concatenate([np.random.default_rng(r).choice(V, each, replace=False) for r in range(rows)])
    one = np.ones(n, np.float32)
    return Edits(
        np.repeat(np.arange(rows), each).astype(np.int32),
        ids.astype(np.int32),
        0 * one,
        1.1 * one,
        0 * one,
        0 * one,
        one < 0,
    )


DRAWS: dict[str, Callable[[int], DrawBatch]] = {
    "greedy": lambda rows: wanted(rows),
    "temperature": lambda rows: wanted(rows, temperature=1),
    "top_p 0.9": lambda rows: wanted(rows, temperature=1, top_p=0.9),
    "top_k 50, top_p 0.9": lambda rows: wanted(rows, temperature=1, top_p=0.9, top_k=50),
    "min_p 0.05": lambda rows: wanted(rows, temperature=1, min_p=0.05),
    "top_p 0.9 of a flat row": lambda rows: wanted(rows, temperature=50, top_p=0.9),
    "200 edits a row": lambda rows: wanted(rows, edits=edits(rows)),
    "20 best": lambda rows: wanted(rows, top=20),
}


def compile_one(job: tuple[str, int | tuple[int, int]]) -> str | None:
    """Fills Triton's cache by launches on one row."""
    try:
        name, how = job
        if name == "elementwise":
            for kernel in KERNELS:
                for pdl in (True, False):
                    kernel.run(kernel.make(1), pdl, how or None)  # type: ignore[arg-type]
        else:
            tile, warps = how  # type: ignore[misc]
            TritonRows(find_card(), tile=tile, num_warps=warps).draw(made_logits(1), DRAWS[name](1)).result()
        torch.cuda.synchronize()
    except Exception as error:  # reported by the caller, job by job
        return f"{job}: {type(error).__name__}: {str(error)[:300]}"
    return None


def compile_all(workers: int) -> list[str]:
    jobs: list[Any] = [(name, (2048, 8)) for name in DRAWS]
    jobs += [("elementwise", warps) for warps in (0, *WARPS)]
    jobs += [(name, s) for s in DRAW_SCHEDULES if s != (2048, 8) for name in ("greedy", "temperature")]
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        return [error for error in pool.map(compile_one, jobs, chunksize=1) if error]


def graph_time(launches: list[Callable[[], None]], least: float = 0.004) -> float:
    """Seconds of one launch, from a CUDA graph that holds all of them: the median of a few runs."""
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())  # which fills the tensors
    with torch.cuda.stream(stream):
        for launch in launches:
            launch()
        stream.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            for launch in launches:
                launch()
    times, spent = [], 0.0
    while len(times) < 3 or (spent < least and len(times) < 20):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
        spent += times[-1]
    return statistics.median(times[1:]) / len(launches)


def copy_speed() -> float:
    """Bytes a second, read and written, of a copy on the card."""
    source = torch.empty(500_000_000, dtype=torch.int8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() / graph_time([lambda: target.copy_(source)] * 4)


def time_kernel(kernel: Kernel, rows: int, warps: int | None = None) -> float:
    sets = max(1, min(MOST_SETS, -(-L2_BYTES // (rows * kernel.bytes))))
    tensors = [kernel.make(rows) for _ in range(sets)]
    launches = [lambda t=t: kernel.run(t, True, warps) for t in tensors] * max(1, 24 // sets)
    return graph_time(launches)


def kernels(speed: float, left: Callable[[], float]) -> list[dict[str, Any]]:
    found = []
    for kernel in KERNELS:
        for rows in ROWS:
            if left() < 0:
                return found
            seconds = time_kernel(kernel, rows)
            rate = rows * kernel.bytes / seconds
            found.append(
                {"kernel": kernel.name, "rows": rows, "us": seconds * 1e6, "GB/s": rate / 1e9, "of copy": rate / speed}
            )
        print(
            f"{kernel.name:22s}"
            + "".join(f"{x['rows']:6d}: {x['us']:7.2f} us {x['of copy']:5.2f}" for x in found[-len(ROWS) :]),
            flush=True,
        )
    return found


def time_draw(rows: TritonRows, logits: DeviceLogits, batch: DrawBatch, repeats: int = 6) -> tuple[float, float]:
    """(seconds on the card, seconds of the host to enqueue) of one draw. Two at a time: results have two places."""
    for _ in range(2):
        rows.draw(logits, batch).result()
    on_card, on_host = [], []
    for _ in range(repeats):
        torch.cuda.synchronize()
        torch.cuda._sleep(12_000_000)  # the host runs ahead
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        began = time.perf_counter()
        draws = [rows.draw(logits, batch) for _ in range(2)]
        on_host.append((time.perf_counter() - began) / 2)
        end.record()
        end.synchronize()
        on_card.append(start.elapsed_time(end) / 2e3)
        for draw in draws:
            draw.result()
    return statistics.median(on_card), statistics.median(on_host)


def draws(speed: float, left: Callable[[], float]) -> list[dict[str, Any]]:
    found = []
    sampler = TritonRows(find_card())
    for r in DRAW_ROWS:
        logits = made_logits(r)
        floor = r * V * 4 / (speed / 2)  # the logits, read once
        for name, make in DRAWS.items():
            if left() < 0:
                return found
            card, host = time_draw(sampler, logits, make(r))
            found.append(
                {"draw": name, "rows": r, "us": card * 1e6, "host us": host * 1e6, "of one read": floor / card}
            )
            print(
                f"{r:4d} rows, {name:24s} {card * 1e6:8.1f} us ({floor / card:.2f} of one read), host {host * 1e6:6.1f} us",
                flush=True,
            )
    return found


def schedules(left: Callable[[], float]) -> list[dict[str, Any]]:
    """Other numbers of warps and tiles: whether the ones in use are the fast ones."""
    found: list[dict[str, Any]] = []
    for kernel in KERNELS:
        for rows in (1, 64, 8192):
            if left() < 0:
                return found
            times = {w: time_kernel(kernel, rows, w) * 1e6 for w in WARPS}
            found.append({"kernel": kernel.name, "rows": rows, "us by warps": times})
            print(
                f"{kernel.name:22s} {rows:5d} rows, warps: us", {w: round(t, 2) for w, t in times.items()}, flush=True
            )
    for r in (1, 64, 256):
        logits = made_logits(r)
        for name in ("greedy", "temperature"):
            if left() < 0:
                return found
            times = {
                f"{tile}/{warps}": time_draw(TritonRows(find_card(), tile, warps), logits, DRAWS[name](r))[0] * 1e6
                for tile, warps in DRAW_SCHEDULES
            }
            found.append({"draw": name, "rows": r, "us by tile/warps": times})
            print(f"{name}, {r} rows, tile/warps: us", {s: round(t, 1) for s, t in times.items()}, flush=True)
    return found


def bits() -> list[str]:
    """What differs between schedules: nothing should."""
    different = []
    for kernel in KERNELS:
        for rows in (1, 7, 64, 300):
            outcomes = []
            for warps in WARPS:
                torch.manual_seed(rows)
                tensors = kernel.make(rows)
                kernel.run(tensors, warps % 4 == 0, warps)
                outcomes.append([tensors[name].clone() for name in kernel.results])
            for warps, outcome in zip(WARPS, outcomes, strict=True):
                if not all(torch.equal(a, b) for a, b in zip(outcome, outcomes[0], strict=True)):
                    different.append(f"{kernel.name}, {rows} rows, {warps} warps")
    for r in (1, 5, 64):
        logits = made_logits(r)
        for name in ("greedy", "temperature"):
            results = [
                TritonRows(find_card(), tile, warps).draw(logits, DRAWS[name](r)).result()
                for tile, warps in DRAW_SCHEDULES
            ]
            for schedule, result in zip(DRAW_SCHEDULES, results, strict=True):
                for field in ("tokens", "logprobs", "lse"):
                    if not np.array_equal(getattr(result, field), getattr(results[0], field)):
                        different.append(f"draw {name}, {r} rows, {schedule}: {field}")
    return different


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="bits,kernels,draws,schedules")
    parser.add_argument("--budget", type=float, default=85, help="seconds")
    options = parser.parse_args()
    parts = options.only.split(",")
    end = time.monotonic() + options.budget

    def left() -> float:
        return end - time.monotonic()

    errors = compile_all(min(14, os.cpu_count() or 1))
    report: dict[str, Any] = {"card": torch.cuda.get_device_name(), "torch": torch.__version__, "errors": errors}
    print(*errors, f"built, {left():.0f} s left", sep="\n", flush=True)
    speed = copy_speed()
    report["copy GB/s"] = speed / 1e9
    print(f"copy {speed / 1e9:.0f} GB/s", flush=True)
    work: dict[str, Callable[[], Any]] = {
        "bits": bits,
        "kernels": lambda: kernels(speed, left),
        "draws": lambda: draws(speed, left),
        "schedules": lambda: schedules(left),
    }
    options.out.mkdir(parents=True, exist_ok=True)
    for part in parts:
        report[part] = work[part]()
        if part == "bits":
            print(f"bits: {len(report['bits'])} differences", *report["bits"], sep="\n  ", flush=True)
        (options.out / "elementwise.json").write_text(json.dumps(report, indent=1))
    print(f"{left():.0f} s left", flush=True)


if __name__ == "__main__":
    main()
