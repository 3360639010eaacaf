"""The matrix products of some models, the schedules worth a measurement for each, and their compilation in parallel."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch

from queueproof.kernels.triton.linear import Tile, Weight, fits, narrow, wide
from queueproof.kernels.triton.schedules import Kind

DTYPE = torch.bfloat16
SHARED_BYTES = 227 * 1024
MOST_ACCUMULATORS = 160  # registers of one thread
Run = Callable[[torch.Tensor, Weight, torch.Tensor], None]
Job = tuple[Tile, bool, str, bool]  # tile, gated, out, PDL


@dataclass(frozen=True)
class Shape:
    name: str
    n: int
    k: int
    gated: bool = False
    out: str = "h16"

    @property
    def kind(self) -> Kind:
        return Kind(self.n, self.k, self.gated, self.out)

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

# BN, BK, warps, stages
BY_POINTER = [(64, 64, 4, (6, 8)), (64, 128, 4, (5,))]
BY_POINTER_FEW = [
    (16, 128, 1, (5, 7)), (16, 256, 1, (4,)), (16, 128, 2, (7, 9)), (16, 256, 2, (4, 5)), (32, 128, 2, (4, 6)), (32, 128, 4, (4, 5, 6)),
    (32, 64, 4, (8,)), (64, 64, 2, (5, 7)),
]  # fmt: skip
# BN, BK, warps, stages, programs of a processor
BY_TMA = [
    (64, 128, 4, (4, 6, 8), 1), (64, 256, 4, (4,), 1), (64, 64, 4, (10,), 1), (128, 64, 4, (6, 8), 1), (128, 128, 4, (4,), 1),
    (64, 128, 4, (3, 5), 2), (64, 64, 4, (4, 6), 2), (64, 64, 4, (4,), 3), (32, 128, 4, (5, 8), 2), (32, 128, 2, (5, 8), 2),
    (32, 256, 4, (4,), 2), (32, 128, 2, (5,), 3), (32, 128, 4, (10,), 1), (16, 256, 2, (5,), 3), (16, 256, 1, (5,), 3),
]  # fmt: skip
# BN, BM, BK, warps, stages, programs of a processor
FOR_HUNDREDS = [
    (64, 128, 64, 4, (6, 8), 1), (128, 128, 64, 8, (4, 6), 1), (128, 128, 64, 4, (4,), 1), (128, 64, 64, 4, (6, 8), 1), (64, 64, 64, 4, (8,), 1),
    (64, 64, 128, 4, (5,), 1), (64, 128, 128, 4, (4,), 1), (128, 256, 64, 8, (4,), 1), (256, 128, 64, 8, (4,), 1), (64, 64, 64, 4, (5,), 2),
    (64, 128, 64, 4, (4,), 2), (128, 64, 64, 4, (4,), 2), (64, 64, 128, 4, (3,), 2),
]  # fmt: skip
FOR_THOUSANDS = [
    (256, 128, 64, 8, (3, 4), 1), (128, 256, 64, 8, (3, 4), 1), (128, 128, 64, 8, (4,), 1), (128, 128, 64, 4, (4,), 1),
]  # fmt: skip


def candidates(rows: int, shape: Shape) -> list[Tile]:
    """Own schedules worth a measurement for this many rows."""
    tiles: list[Tile] = []
    if rows <= 64:
        bm = 8 if rows <= 8 else 16 if rows <= 16 else 32 if rows <= 32 else 64
        for bn, bk, warps, stages in BY_POINTER + (BY_POINTER_FEW if rows <= 32 else []):
            tiles += [Tile(False, bn, bm, bk, warps, s) for s in stages if warps <= bn * bm // 64]
        for bn, bk, warps, stages_of, programs in BY_TMA:
            tiles += [Tile(True, bn, max(16, bm), bk, warps, s, per_processor=programs) for s in stages_of]
    elif rows <= 256:
        for bn, bm, bk, warps, stages, programs in FOR_HUNDREDS:
            if bm <= max(rows, 64):
                tiles += [Tile(True, bn, bm, bk, warps, s, swap=False, per_processor=programs) for s in stages]
            if bm <= 128:
                tiles.append(Tile(True, bn, bm, bk, warps, stages[-1], per_processor=programs))
    else:
        for bn, bm, bk, warps, stages, programs in FOR_THOUSANDS:
            tiles += [Tile(True, bn, bm, bk, warps, s, False, g, 0, programs) for s in stages for g in (8, 16)]
        tiles.append(Tile(True, 128, 128, 64, 8, 4))
    accumulators = 2 if shape.gated else 1
    return [
        t
        for t in dict.fromkeys(tiles)
        if fits(t, shape.gated, SHARED_BYTES // t.per_processor)
        and accumulators * t.bn * t.bm // (t.warps * 32) <= MOST_ACCUMULATORS
    ]


def asking_ahead(tile: Tile, k: int) -> list[Tile]:
    """The tile with other numbers of steps asked for ahead, itself left out."""
    steps = [s for s in (0, 2, 4, 8, 16) if s * tile.bk <= min(k, 2048) and s != tile.ahead]
    return [replace(tile, ahead=s) for s in steps]


def own(tile: Tile, is_gated: bool, pdl: bool = True) -> Run:
    if not tile.wide:
        return lambda x, w, out: narrow(tile, x, w, out, is_gated, pdl)
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    return lambda x, w, out: wide(tile, x, w, out, is_gated, pdl, processors)


def compile_one(job: Job) -> str | None:
    """Fills Triton's cache by a launch on a small problem with the same specialisation."""
    tile, is_gated, out_name, pdl = job
    try:
        k, n = tile.bk * max(tile.ahead, 1), tile.bn * (2 if is_gated else 1)
        w = Weight(torch.zeros((n, k), dtype=DTYPE, device="cuda"), n, k)
        x = torch.zeros((max(16, tile.bm), k), dtype=DTYPE, device="cuda")
        out = torch.zeros((x.shape[0], tile.bn), dtype=torch.float32 if out_name == "f32" else DTYPE, device="cuda")
        own(tile, is_gated, pdl)(x, w, out)
        torch.cuda.synchronize()
    except Exception as error:  # reported by the caller, job by job
        return f"{tile}: {type(error).__name__}: {str(error)[:200]}"
    return None


class Compiler:
    """Processes that compile. Their CUDA contexts are idle while this process measures."""

    def __init__(self, workers: int) -> None:
        self._pool = multiprocessing.get_context("spawn").Pool(workers)
        self._done: set[Job] = set()

    def compile(self, jobs: Iterable[Job]) -> None:
        fresh = [j for j in dict.fromkeys(jobs) if j not in self._done]
        self._done.update(fresh)
        start = time.monotonic()
        for message in self._pool.imap_unordered(compile_one, fresh):
            if message:
                print("  cannot be built:", message, flush=True)
        print(f"built {len(fresh)} kernels in {time.monotonic() - start:.1f} s", flush=True)

    def close(self) -> None:
        self._pool.terminate()
