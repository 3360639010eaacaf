"""Which kernel does which matrix product. Any of them may: no choice moves a bit, so the choice is for speed alone.

The vendor's product is taken only at sizes where it has been compared with the chain, bit for bit, on this card. Its order
of additions depends on the size and not on the numbers, so numbers that make every order visible settle it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import triton

from queueproof.kernels.cuda import cublaslt
from queueproof.kernels.triton.card import Card
from queueproof.kernels.triton.elementwise import silu_mul
from queueproof.kernels.triton.linear import Tile, Weight, fits, narrow, tma_can_address, wide
from queueproof.kernels.triton.schedules import Kind, Schedule, Vendor, default_tiles, proposals

ROW_COUNTS = (
    1, 2, 4, 8, 16, 24, 32, 48, 64, *range(80, 257, 16), *range(320, 1025, 64), *range(1152, 2049, 128), *range(2304, 16385, 256),
)  # fmt: skip
COARSE = 1024  # above the largest of ROW_COUNTS, its multiples
MOST_ALGORITHMS = 8
REFERENCE = Tile(False, 64, 64, 64, 4, 3)  # of the chain that the vendor's products are compared with

Run = Callable[[torch.Tensor, Weight, torch.Tensor], None]
Propose = Callable[[Kind, int], Sequence[Schedule]]


def padded_rows(tokens: int) -> int:
    """The row count of a step with that many tokens: the next one of the finite set that products are chosen for."""
    if tokens > ROW_COUNTS[-1]:
        return -(-tokens // COARSE) * COARSE
    return ROW_COUNTS[bisect_left(ROW_COUNTS, tokens)]


@dataclass(frozen=True, slots=True)
class Use:
    """A matrix, the type of its product, and the row counts at which it will be asked for."""

    weight: Weight
    gated: bool
    out: torch.dtype
    rows: Sequence[int]


@dataclass(slots=True)
class Report:
    """What came of looking at the vendor's products. refused: sizes (rows, n, k) where every algorithm tried differs."""

    vendor: str = "not there"
    compared: int = 0
    equal: int = 0
    refused: list[tuple[int, int, int]] = field(default_factory=list)
    chosen: dict[tuple[Kind, int], Schedule] = field(default_factory=dict)


Key = tuple[int, int, int, torch.dtype, bool, torch.dtype, bool]


def _key(rows: int, w: Weight, out: torch.dtype, gated: bool) -> Key:
    return rows, w.n, w.k, w.data.dtype, w.bias is None, out, gated


class Products:
    """Chooses for each size at its first use, and remembers. Not while a graph is captured: run each size once before."""

    def __init__(self, card: Card, propose: Propose | None = None) -> None:
        """propose: schedules to try first for a product and a row count, best first; by default those that were measured."""
        self._card = card
        self._propose = propose or (lambda kind, rows: proposals(card.name, card.family, kind, rows))
        self._equal: dict[tuple[Any, ...], bool] = {}
        self._runs: dict[Key, Run] = {}
        self._checks: dict[tuple[int, int, torch.dtype, torch.dtype], _Check] = {}
        self._vendor = cublaslt.load(card.device) if card.device.type == "cuda" else None
        self.report = Report()
        if self._vendor is not None:
            self.report.vendor = f"cuBLASLt {self._vendor.version}"
        self._shared = _shared_bytes(card)

    def linear(self, x: torch.Tensor, w: Weight, out: torch.Tensor) -> None:
        """out [rows, n], h16 or f32, = x [rows, k] h16 · wᵀ (+ bias)."""
        run = self._runs.get(_key(x.shape[0], w, out.dtype, False)) or self._choose(x, w, out, False)
        run(x, w, out)

    def gated(self, x: torch.Tensor, w: Weight, out: torch.Tensor) -> None:
        """out h16 [rows, n/2] = round16(silu(g) * u), (g, u) = x · wᵀ."""
        run = self._runs.get(_key(x.shape[0], w, out.dtype, True)) or self._choose(x, w, out, True)
        run(x, w, out)

    def prepare(self, uses: Iterable[Use]) -> Report:
        """Chooses for all of them, once for each shape. To be called while there is memory to spare: comparing takes the
        room of a matrix, of its input and twice of its output."""
        for use in uses:
            w = use.weight
            for rows in sorted(set(use.rows), reverse=True):  # the largest comparison serves the others
                if _key(rows, w, use.out, use.gated) not in self._runs:
                    self._choose_for(rows, w, use.gated, use.out)
            self._checks.clear()
        return self.report

    def forget(self) -> None:
        """Chooses anew at the next use: for proposals that change."""
        self._runs.clear()

    def _choose(self, x: torch.Tensor, w: Weight, out: torch.Tensor, gated: bool) -> Run:
        self.prepare([Use(w, gated, out.dtype, (x.shape[0],))])
        return self._runs[_key(x.shape[0], w, out.dtype, gated)]

    def _choose_for(self, rows: int, w: Weight, gated: bool, dtype: torch.dtype) -> None:
        kind = Kind(w.n, w.k, gated, "f32" if dtype == torch.float32 else "h16")
        for schedule in [*self._propose(kind, rows), *default_tiles(rows)]:
            run = self._runnable(schedule, kind, rows, w, dtype)
            if run is not None:
                self._runs[_key(rows, w, dtype, gated)] = run
                self.report.chosen[kind, rows] = schedule
                return

    def _runnable(self, schedule: Schedule, kind: Kind, rows: int, w: Weight, dtype: torch.dtype) -> Run | None:
        """None where this card, shape or library cannot have that schedule, or the vendor's bits differ."""
        if isinstance(schedule, Vendor):
            return self._vendor_run(schedule, kind, rows, w, dtype)
        if not fits(schedule, kind.gated, self._shared):
            return None
        gated, pdl, tile = kind.gated, self._card.pdl, schedule
        if not tile.wide:
            return lambda x, w, out: narrow(tile, x, w, out, gated, pdl)
        if not self._card.pdl or not tma_can_address(w.k):
            return None
        processors = self._card.processors
        return lambda x, w, out: wide(tile, x, w, out, gated, pdl, processors)

    def _vendor_run(self, wanted: Vendor, kind: Kind, rows: int, w: Weight, dtype: torch.dtype) -> Run | None:
        if self._vendor is None or w.bias is not None or not tma_can_address(w.k, w.n):
            return None
        plans = self._vendor.plans(rows, w.n, w.k, w.data.dtype, dtype, MOST_ALGORITHMS)
        alike = dict(wanted.algorithm)
        plans = sorted(plans, key=lambda p: p.config != alike)  # stable: the library's order otherwise
        for plan in plans:
            if self._is_equal(plan, rows, w, dtype):
                return self._vendor_call(plan, kind, rows, w)
        size = (rows, w.n, w.k)
        if plans and size not in self.report.refused:
            self.report.refused.append(size)
        return None

    def vendor_runs(self, kind: Kind, rows: int, w: Weight, dtype: torch.dtype) -> dict[Vendor, Run]:
        """All that the library offers for that size, compared or not: for measurements."""
        if self._vendor is None:
            return {}
        plans = self._vendor.plans(rows, w.n, w.k, w.data.dtype, dtype, 2 * MOST_ALGORITHMS)
        return {Vendor(tuple(p.config.items())): self._vendor_call(p, kind, rows, w) for p in plans}

    def _is_equal(self, plan: cublaslt.Plan, rows: int, w: Weight, dtype: torch.dtype) -> bool:
        key = (rows, w.n, w.k, w.data.dtype, dtype, *plan.config.values())
        if key not in self._equal:
            self._equal[key] = self._check(rows, w, dtype).equal(plan, rows)
            self.report.compared += 1
            self.report.equal += self._equal[key]
        return self._equal[key]

    def _vendor_call(self, plan: cublaslt.Plan, kind: Kind, rows: int, w: Weight) -> Run:
        call, pdl, device = plan.run, self._card.pdl, self._card.device

        def plain(x: torch.Tensor, w: Weight, out: torch.Tensor) -> None:
            call(x.data_ptr(), w.data.data_ptr(), out.data_ptr(), _stream(device))

        def gated(x: torch.Tensor, w: Weight, out: torch.Tensor) -> None:
            both = torch.empty((rows, w.n), dtype=out.dtype, device=device)
            plain(x, w, both)
            silu_mul(both, out, pdl)

        return gated if kind.gated else plain

    def _check(self, rows: int, w: Weight, dtype: torch.dtype) -> _Check:
        """The comparison for that shape, with the chain's results for at least that many rows."""
        key = (w.n, w.k, w.data.dtype, dtype)
        if key not in self._checks or self._checks[key].rows < rows:
            self._checks[key] = _Check(rows, w, dtype)
        return self._checks[key]


def telling_factors(
    rows: int, n: int, k: int, dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """x [rows, k] and w [n, k] with exact products of 0 for even k: what the chain makes of them are its roundings."""
    generator = torch.Generator(device).manual_seed(1)
    x, w = (torch.empty((r, k), dtype=dtype, device=device).normal_(generator=generator) for r in (rows, n))
    half = k // 2
    x[:, half : 2 * half] = x[:, :half]
    w[:, half : 2 * half] = -w[:, :half]
    return x, w


class _Check:
    """x and w of one shape, and their product by one of our kernels. Rows are independent: a part of them checks products
    of fewer rows.

    The second half of K takes back what the first half adds, so that a sum is what its roundings left over: another order
    leaves other bits, and rounding to 16 bits does not hide them.
    """

    def __init__(self, rows: int, w: Weight, dtype: torch.dtype) -> None:
        self.rows = rows
        self._x, data = telling_factors(rows, w.n, w.k, w.data.dtype, w.data.device)
        self._w = Weight(data, w.n, w.k)
        self._want = torch.empty((rows, w.n), dtype=dtype, device=w.data.device)
        self._got = torch.empty_like(self._want)
        narrow(REFERENCE, self._x, self._w, self._want, False, False)

    def equal(self, plan: cublaslt.Plan, rows: int) -> bool:
        got, bits = self._got[:rows], torch.int32 if self._want.element_size() == 4 else torch.int16
        got.fill_(float("nan"))
        plan.run(self._x.data_ptr(), self._w.data.data_ptr(), got.data_ptr(), _stream(got.device))
        return torch.equal(got.view(bits), self._want[:rows].view(bits))


def _stream(device: torch.device) -> int:
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0


def _shared_bytes(card: Card) -> int:
    """Shared memory that one program may have. The interpreter has no limit."""
    if card.device.type != "cuda":
        return 1 << 30
    properties = triton.runtime.driver.active.utils.get_device_properties(card.device.index)
    return int(properties["max_shared_mem"])
