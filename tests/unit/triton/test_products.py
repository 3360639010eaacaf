"""The choice of kernels: any card and shape gets one, the vendor's only where its bits have been seen to be equal."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from queueproof.contract.errors import QueueproofError
from tests.support.triton_cpu import DEVICE  # before any kernel

from queueproof.kernels.cuda.cublaslt import Plan  # isort: skip
from queueproof.kernels.triton import schedules  # isort: skip
from queueproof.kernels.triton.card import Card, find_card, interpreted_card  # isort: skip
from queueproof.kernels.triton.linear import Tile, Weight, fits  # isort: skip
from queueproof.kernels.triton.products import ROW_COUNTS, Products, Use, padded_rows, telling_factors  # isort: skip
from queueproof.kernels.triton.schedules import Kind, Vendor, default_tiles, from_json, proposals, slug, to_json  # isort: skip

SMALLEST_SHARED = 99 * 1024  # of the cards that are supported: compute capability 8.6 and 8.9
interpreted = pytest.mark.skipif(DEVICE != "cpu", reason="a stand-in for the vendor's library works on host memory")


@pytest.fixture
def card() -> Card:
    return find_card() if DEVICE == "cuda" else interpreted_card()


@pytest.fixture(autouse=True)
def no_tables_kept() -> Iterator[None]:
    yield
    schedules._table.cache_clear()


def matrix(card: Card, n: int, k: int, bias: bool = False, dtype: torch.dtype = torch.bfloat16) -> Weight:
    generator = torch.Generator().manual_seed(n * k)
    data = torch.randn((n, k), generator=generator).to(dtype).to(card.device)
    return Weight(data, n, k, torch.randn(n, generator=generator).to(card.device) if bias else None)


def rows_of(card: Card, m: int, k: int) -> torch.Tensor:
    return torch.randn((m, k), generator=torch.Generator().manual_seed(m)).bfloat16().to(card.device)


def product(products: Products, x: torch.Tensor, w: Weight, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    out = torch.full((x.shape[0], w.n), 77.0, dtype=dtype, device=x.device)
    products.linear(x, w, out)
    return out


def test_padded_rows() -> None:
    assert list(ROW_COUNTS) == sorted(set(ROW_COUNTS))
    assert [padded_rows(t) for t in (1, 3, 5, 17, 65, 257, 1025, 2049, 16384)] == [
        1,
        4,
        8,
        24,
        80,
        320,
        1152,
        2304,
        16384,
    ]
    assert [padded_rows(t) for t in (16385, 17408, 17409)] == [17408, 17408, 18432]
    assert all(padded_rows(r) == r for r in ROW_COUNTS)


def test_a_bias_belongs_to_its_matrix(card: Card) -> None:
    """Two matrices of one shape, one with a bias, whichever is first."""
    x = rows_of(card, 4, 64)
    plain, biased = matrix(card, 32, 64), matrix(card, 32, 64, bias=True)
    for order in ((plain, biased), (biased, plain)):
        products = Products(card)
        first, second = (product(products, x, w) for w in order)
        assert not torch.equal(first, second)
        assert torch.equal(product(products, x, order[0]), first)


def test_gated_products_and_f32_results(card: Card) -> None:
    products, x, w = Products(card), rows_of(card, 8, 64), matrix(card, 48, 64)
    logits = product(products, x, w, torch.float32)
    assert torch.equal(logits.bfloat16(), product(products, x, w))
    out = torch.empty((8, 24), dtype=torch.bfloat16, device=card.device)
    products.gated(x, w, out)
    want = torch.nn.functional.silu(logits[:, :24].bfloat16().float()) * logits[:, 24:].bfloat16().float()
    torch.testing.assert_close(out.float(), want, rtol=2**-7, atol=1e-6)


@pytest.mark.parametrize("rows", [1, 16, 64, 256, 4096])
def test_the_last_default_fits_every_card(rows: int) -> None:
    last = default_tiles(rows)[-1]
    assert isinstance(last, Tile) and not last.wide
    assert all(fits(last, gated, SMALLEST_SHARED) for gated in (False, True))


@pytest.mark.parametrize("gated", [False, True])
def test_every_size_has_a_tma_tile_that_fits_an_h200(gated: bool) -> None:
    """For sizes where the vendor's products are refused."""
    for rows in ROW_COUNTS:
        found = [
            *proposals(schedules.STANDARD_CARD, "sm90", Kind(24576, 4096, gated, "h16"), rows),
            *default_tiles(rows),
        ]
        assert any(isinstance(s, Tile) and s.wide and fits(s, gated, 227 * 1024 // s.per_processor) for s in found)


def test_schedules_survive_json() -> None:
    for schedule in (Tile(True, 128, 64, 64, 4, 4, swap=False), Vendor((("id", 66), ("tile", 3))), Vendor()):
        assert from_json(json.loads(json.dumps(to_json(schedule)))) == schedule
    assert slug("NVIDIA H200") == "nvidia-h200"


def write_table(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str) -> None:
    (folder / "a-card.json").write_text(text)
    monkeypatch.setattr(schedules, "files", lambda _: folder)
    schedules._table.cache_clear()


def test_the_nearest_measured_product_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def entry(n: int, rows: int, bn: int) -> dict[str, object]:
        tile = to_json(Tile(False, bn, 16, 64, 4, 4))
        return {"n": n, "k": 4096, "gated": False, "out": "h16", "rows": rows, "schedules": [tile]}

    text = json.dumps({"entries": [entry(1024, 8, 16), entry(1024, 64, 32), entry(8192, 8, 64)]})
    write_table(monkeypatch, tmp_path, text)

    def taken(n: int, rows: int, gated: bool = False) -> list[int]:
        found = proposals("A Card", "sm80", Kind(n, 4096, gated, "h16"), rows)
        return [s.bn for s in found if isinstance(s, Tile)]

    assert taken(1024, 1) == [16] and taken(1024, 9) == [32] and taken(1024, 1000) == [32]
    assert taken(2048, 8) == [16] and taken(6144, 8) == [64]
    assert taken(1024, 8, gated=True) == []
    assert proposals("Another Card", "sm80", Kind(1024, 4096, False, "h16"), 8) == []


@pytest.mark.parametrize("text", ["{", "{}", '{"entries": [{"n": 1}]}', '{"entries": 3}'])
def test_a_damaged_table_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str) -> None:
    write_table(monkeypatch, tmp_path, text)
    with pytest.raises(QueueproofError, match="not a table of schedules"):
        proposals("A Card", "sm80", Kind(64, 64, False, "h16"), 8)


@dataclass
class FakeVendor:
    """A library with one algorithm, on host memory: out = factor * the chain of halves of K, or the chain itself."""

    card: Card
    splits: int
    version: int = 1
    calls: int = 0

    def plans(self, m: int, n: int, k: int, dtype: torch.dtype, out_dtype: torch.dtype, most: int) -> list[Plan]:
        own = Products(replace(self.card))

        def view(address: int, shape: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
            size = shape[0] * shape[1] * dtype.itemsize
            buffer = (ctypes.c_char * size).from_address(address)
            return torch.frombuffer(buffer, dtype=dtype).view(shape)

        def run(x: int, w: int, out: int, stream: int) -> None:
            self.calls += 1
            xs, ws = view(x, (m, k), dtype), view(w, (n, k), dtype)
            cuts = [k * i // self.splits for i in range(self.splits + 1)]
            total = torch.zeros((m, n))
            for a, b in zip(cuts, cuts[1:], strict=False):
                part = Weight(ws[:, a:b].contiguous(), n, b - a)
                total += product(own, xs[:, a:b].contiguous(), part, torch.float32)
            view(out, (m, n), out_dtype).copy_(total.to(out_dtype))

        return [Plan({"id": 1}, run)]


def with_vendor(card: Card, splits: int) -> tuple[Products, FakeVendor]:
    products, vendor = Products(card, lambda kind, rows: [Vendor()]), FakeVendor(card, splits)
    products._vendor = vendor  # type: ignore[assignment]
    return products, vendor


@interpreted
@pytest.mark.parametrize("gated", [False, True])
def test_the_vendor_is_used_where_it_is_equal(card: Card, gated: bool) -> None:
    products, vendor = with_vendor(card, splits=1)
    w, x = matrix(card, 32, 128), rows_of(card, 48, 128)
    report = products.prepare([Use(w, gated, torch.bfloat16, (48, 32))])
    assert (report.compared, report.equal, report.refused) == (2, 2, [])
    assert set(report.chosen.values()) == {Vendor()} and vendor.calls == 2
    call: Callable[..., None] = products.gated if gated else products.linear
    got, want = (torch.empty((48, 16 if gated else 32), dtype=torch.bfloat16) for _ in range(2))
    call(x, w, got)
    own = Products(card)
    (own.gated if gated else own.linear)(x, w, want)
    assert vendor.calls == 3 and torch.equal(got, want)


@interpreted
def test_the_vendor_is_refused_where_it_splits(card: Card) -> None:
    """The negative control: two halves of K added up are seen, and our own kernel does the product."""
    products, vendor = with_vendor(card, splits=2)
    w, x = matrix(card, 32, 128), rows_of(card, 48, 128)
    report = products.prepare([Use(w, False, torch.bfloat16, (48,))])
    assert (report.compared, report.equal, report.refused) == (1, 0, [(48, 32, 128)])
    assert torch.equal(product(products, x, w), product(Products(card), x, w)) and vendor.calls == 1


@interpreted
def test_the_vendor_never_gets_a_bias_or_odd_rows(card: Card) -> None:
    products, vendor = with_vendor(card, splits=1)
    for w in (matrix(card, 32, 128, bias=True), matrix(card, 33, 128), matrix(card, 32, 71)):
        product(products, rows_of(card, 48, w.k), w)
    assert vendor.calls == 0


@pytest.mark.parametrize("parts", [2, 3, 8])
def test_telling_factors_tell(card: Card, parts: int) -> None:
    """Nearly every result shows another order, 16 bits or not; with random factors hardly one does."""
    x, data = telling_factors(4, 24, 256, torch.bfloat16, card.device)
    products, cuts = Products(card), [256 * i // parts // 16 * 16 for i in range(parts + 1)]
    split = torch.zeros((4, 24), device=card.device)
    for a, b in zip(cuts, cuts[1:], strict=False):
        piece = Weight(data[:, a:b].contiguous(), 24, b - a)
        split += product(products, x[:, a:b].contiguous(), piece, torch.float32)
    chain = product(products, x, Weight(data, 24, 256))
    assert (chain != split.bfloat16()).float().mean() > 0.8


def test_choices_are_made_anew_after_forgetting(card: Card) -> None:
    wanted = [Tile(False, 16, 16, 32, 2, 3)]
    products, w, x = Products(card, lambda kind, rows: wanted), matrix(card, 32, 64), rows_of(card, 4, 64)
    first = product(products, x, w)
    wanted[0] = Tile(False, 32, 16, 64, 4, 2)
    assert torch.equal(product(products, x, w), first) and set(products.report.chosen.values()) != {wanted[0]}
    products.forget()
    assert torch.equal(product(products, x, w), first) and set(products.report.chosen.values()) == {wanted[0]}


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE != "cuda", reason="needs a CUDA device")
def test_what_the_card_chooses_is_the_chain(card: Card) -> None:
    """Over the whole finite set of row counts, with every algorithm that was let in."""
    w = matrix(card, 4096, 1024)
    x = rows_of(card, ROW_COUNTS[-1], 1024)
    products = Products(card)
    report = products.prepare([Use(w, False, torch.bfloat16, ROW_COUNTS)])
    want = product(products, x[:256], w)
    chunks = [product(products, x[i : i + 256].contiguous(), w) for i in range(0, len(x), 256)]
    whole = torch.cat(chunks)
    assert torch.equal(whole[:256], want)
    for rows in ROW_COUNTS:
        assert torch.equal(product(products, x[:rows].contiguous(), w), whole[:rows]), (rows, report.chosen)
    assert np.isfinite(whole.float().cpu().numpy()).all()
