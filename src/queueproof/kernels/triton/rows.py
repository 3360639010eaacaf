"""`RowOps` on a card: draws are enqueued, and the host waits where it asks for a result.

One copy in (what each row wants, edits), kernels, one copy out. Without edits, filters and reports that is two kernels.
Results are i32 words: R tokens, R logprobs, R log-sum-exps, R ranks, then top ids and top logprobs [R, top].
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
import triton

from queueproof.kernels.ops import F32, I32, DrawBatch, Drawn, Edits, Masks
from queueproof.kernels.triton import row_kernels as K
from queueproof.kernels.triton import selection as S
from queueproof.kernels.triton.card import Card
from queueproof.kernels.triton.device import DeviceLogits, Download, Fetched, Upload
from queueproof.kernels.triton.launch import options

FIELDS, PARTS, SELECT_PARTS = K.FIELDS.value, K.PARTS.value, S.SELECT_PARTS.value
BINS = S.BINS.value
TILE = 2048  # logits that a program takes at a time
ROOM = 4096  # candidates of a row that are held in registers
EDIT_BLOCK = 256
_NO_ROWS = np.empty(0, np.int32)


@dataclass(frozen=True, slots=True)
class Changes:
    """On the card. rows: that are changed. edits: i32 [7, count]. places: masked rows, as places in `rows`; allowed: i32, the
    words of their masks."""

    rows: torch.Tensor
    edits: torch.Tensor
    count: int
    places: torch.Tensor
    allowed: torch.Tensor


class TritonDraw:
    """A `Draw`."""

    def __init__(self, fetched: Fetched, rows: int, top: int | None) -> None:
        self._fetched, self._rows, self._top = fetched, rows, top

    def result(self) -> Drawn:
        words, n = self._fetched.wait(), self._rows
        tokens, logprobs, lse = words[:n], words[n : 2 * n].view(np.float32), words[2 * n : 3 * n].view(np.float32)
        if self._top is None:
            return Drawn(tokens, logprobs, lse)
        ids, of_ids = words[4 * n :].reshape(2, n, self._top)
        return Drawn(tokens, logprobs, lse, words[3 * n : 4 * n], ids, of_ids.view(np.float32))


class TritonRows:
    """A `RowOps`. Everything goes to the current stream, in which the logits were made.

    tile: how many logits a program takes at a time; num_warps: of the kernels over rows; room: for candidates of a row.
    tile and room are powers of two. No bit depends on any of them.
    """

    def __init__(self, card: Card, tile: int = TILE, num_warps: int = 8, room: int = ROOM) -> None:
        self._card, self._tile, self._warps, self._room = card, tile, num_warps, room
        self._upload, self._download = Upload(card.device), Download(card.device)
        self._buffers: dict[str, torch.Tensor] = {}

    def host(self, logits: DeviceLogits) -> F32:
        values: F32 = logits.values.to("cpu", copy=True).numpy()
        return values

    def draw(self, logits: DeviceLogits, batch: DrawBatch) -> TritonDraw:
        x, (r, v), top = logits.values, logits.values.shape, batch.top
        drawn = np.flatnonzero((batch.tokens < 0) & (batch.temperature > 0))
        top_k = np.where(batch.top_k < v, batch.top_k, 0)
        filtered = drawn[(top_k[drawn] > 0) | (batch.top_p[drawn] < 1) | (batch.min_p[drawn] > 0)]
        params, jobs, changes = self._send(batch, r, top_k, drawn, filtered)
        edited = x if changes is None else self._edited(x, changes)
        copies = 0 if changes is None else changes.rows.numel()

        parts, tiles = self._split(r + copies, v, PARTS)
        build = _build(v, self._tile, self._warps, self._card.pdl)
        best = self._buffer("best", (r + copies) * parts, torch.int64)
        state = self._buffer("state", 2 * r, torch.float32)
        out = self._buffer("out", r * (4 + 2 * (top or 0)), torch.int32)
        K.best_kernel[(parts, r + copies)](x, edited, best, r, tiles, **build)
        K.mass_kernel[(parts, r)](
            x,
            edited,
            params,
            best,
            self._buffer("sums", r * parts, torch.int64),
            self._buffer("races", r * parts, torch.int64),
            self._buffer("arrivals", r, torch.int32),
            state,
            out,
            logits.tokens,
            r,
            tiles,
            HAS_RACE=drawn.size > filtered.size,
            **build,
        )
        if filtered.size:
            masses, candidates, counted, select_parts = self._collect(
                x, edited, params, jobs, best, r, parts, filtered.size, 0
            )
            S.draw_kernel[(filtered.size,)](
                x,
                edited,
                params,
                best,
                jobs,
                masses,
                candidates,
                counted,
                state,
                out,
                logits.tokens,
                r,
                parts,
                select_parts,
                **_one_program(v, self._room, self._card.pdl),
            )
        if top is not None:
            K.rank_kernel[(parts, r)](x, out, r, tiles, **build)
        if top:
            _, candidates, counted, _ = self._collect(x, edited, params, jobs, best, r, parts, r, top)
            S.report_kernel[(r,)](
                x, candidates, counted, state, out, r, top, **_one_program(v, self._room, self._card.pdl)
            )
        words = 3 * r if top is None else r * (4 + 2 * top)
        return TritonDraw(self._download.fetch(out[:words]), r, top)

    def _collect(
        self,
        x: torch.Tensor,
        edited: torch.Tensor,
        params: torch.Tensor,
        jobs: torch.Tensor,
        best: torch.Tensor,
        rows: int,
        best_parts: int,
        count: int,
        top: int,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
        """Enqueues the collection of candidates, to report `top` of each row or, where that is 0, for the filtered rows."""
        v = x.shape[1]
        parts, tiles = self._split(count, v, SELECT_PARTS)
        build = {"REPORT": top > 0, **_build(v, self._tile, self._warps, self._card.pdl)}
        table = self._buffer("table", count * parts * BINS, torch.int32)
        masses = self._buffer("masses", count * parts, torch.int64)
        candidates = self._buffer("candidates", count * self._room, torch.int64)
        counted = self._buffer("counted", count, torch.int32)
        known = (x, edited, params, best, jobs, table, masses)
        S.spread_kernel[(parts, count)](*known, rows, tiles, best_parts, **build)
        S.collect_kernel[(parts, count)](
            *known, candidates, counted, rows, tiles, best_parts, top, ROOM=self._room, **build
        )
        return masses, candidates, counted, parts

    def _edited(self, x: torch.Tensor, changes: Changes) -> torch.Tensor:
        """Enqueues copies of the rows that are changed, their edits, then their masks."""
        v, pdl, copies = x.shape[1], self._card.pdl, changes.rows.numel()
        edited = self._buffer("edited", copies * v, torch.float32)
        build = _build(v, self._tile, self._warps, pdl)
        parts, tiles = self._split(copies, v, PARTS)
        K.copy_rows[(parts, copies)](x, changes.rows, edited, tiles, **build)
        if changes.count:
            K.edit_kernel[(triton.cdiv(changes.count, EDIT_BLOCK),)](
                changes.edits, edited, changes.count, V=v, BLOCK=EDIT_BLOCK, **options(4, pdl=pdl)
            )
        if masks := changes.places.numel():
            parts, tiles = self._split(masks, v, PARTS)
            K.mask_kernel[(parts, masks)](changes.places, changes.allowed, edited, tiles, **build)
        return edited

    def _send(
        self, batch: DrawBatch, rows: int, top_k: I32, drawn: np.ndarray, filtered: np.ndarray
    ) -> tuple[torch.Tensor, torch.Tensor, Changes | None]:
        """Enqueues one copy of all there is to know: (params, filtered rows, what changes)."""
        edits, masks = batch.edits, batch.masks
        named = [e.rows for e in (edits, masks) if e is not None]
        changed = np.unique(np.concatenate(named)) if named else _NO_ROWS
        count, masked = 0 if edits is None else edits.ids.size, 0 if masks is None else masks.rows.size
        words_each = 0 if masks is None else masks.allowed.shape[1]
        sizes = (FIELDS * rows, filtered.size, changed.size, 7 * count, masked, masked * words_each)
        ends: list[int] = np.cumsum([_aligned(n) for n in sizes]).tolist()
        words = self._upload.words(ends[-1])
        row = words[: FIELDS * rows].reshape(rows, FIELDS)
        row[:, K.TOKEN.value] = batch.tokens
        row[:, K.TEMPERATURE.value] = batch.temperature.view(np.int32)
        row[:, K.TOP_K.value] = top_k
        row[:, K.TOP_P.value] = batch.top_p.view(np.int32)
        row[:, K.MIN_P.value] = batch.min_p.view(np.int32)
        row[:, K.SEED.value : K.SEED.value + 2] = batch.seed.view(np.int32).reshape(rows, 2)
        row[:, K.POSITION.value : K.POSITION.value + 2] = batch.position.view(np.int32).reshape(rows, 2)
        row[:, K.SOURCE.value] = -1
        row[changed, K.SOURCE.value] = np.arange(changed.size)
        how = row[:, K.HOW.value]
        how[:] = np.where(batch.tokens < 0, K.GREEDY.value, K.GIVEN.value)
        how[drawn] = K.RACE.value
        how[filtered] = K.FILTERED.value

        def part(i: int) -> slice:
            return slice(ends[i - 1], ends[i - 1] + sizes[i])

        words[part(1)], words[part(2)] = filtered, changed
        if edits is not None:
            each = words[part(3)].reshape(7, -1)
            each[0] = np.searchsorted(changed, edits.rows)
            each[1] = edits.ids
            for i, values in enumerate((edits.bias, edits.repetition, edits.frequency, edits.presence), 2):
                each[i] = values.view(np.int32)
            each[6] = edits.banned
        if masks is not None:
            words[part(4)] = np.searchsorted(changed, masks.rows)
            words[part(5)] = masks.allowed.view(np.int32).ravel()
        sent = self._upload.send(ends[-1])
        changes = None
        if changed.size:
            changes = Changes(sent[part(2)], sent[part(3)], count, sent[part(4)], sent[part(5)])
        return sent, sent[part(1)], changes

    def _split(self, rows: int, v: int, most: int) -> tuple[int, int]:
        """(programs of a row, tiles of a program): enough programs to fill the card."""
        tiles = -(-v // self._tile)
        parts = max(1, min(most, tiles, -(-4 * self._card.processors // rows)))
        each = -(-tiles // parts)
        return -(-tiles // each), each

    def _buffer(self, name: str, size: int, dtype: torch.dtype) -> torch.Tensor:
        """Memory on the card that is kept from draw to draw; zeros when it is new."""
        buffer = self._buffers.get(name)
        if buffer is None or buffer.numel() < size:
            room = 1 << max(8, (size - 1).bit_length())
            buffer = self._buffers[name] = torch.zeros(room, dtype=dtype, device=self._card.device)
        return buffer


def build_draws(card: Card, vocab_size: int) -> None:
    """Draws once in every way, so that no request waits for a compiler."""
    logits = DeviceLogits(
        torch.zeros((1, vocab_size), dtype=torch.float32, device=card.device),
        torch.zeros(1, dtype=torch.int32, device=card.device),
    )
    one, half, zero = (np.full(1, value, np.float32) for value in (1, 0.5, 0))
    first = np.zeros(1, np.int32)
    edits = Edits(first, first, one, one, zero, zero, np.zeros(1, np.bool_))
    masks = Masks(first, np.full((1, -(-vocab_size // 32)), -1, np.int32).view(np.uint32))
    rows = TritonRows(card)
    for temperature, top_p, top, changed in ((zero, one, None, None), (one, one, None, edits), (one, half, 1, None)):
        batch = DrawBatch(first - 1, temperature, first, top_p, zero, np.zeros(1, np.uint64), np.zeros(1, np.int64))
        batch.top, batch.edits, batch.masks = top, changed, None if changed is None else masks
        rows.draw(logits, batch).result()


def _aligned(words: int) -> int:
    """Whole 16 bytes: one build of a kernel fits all."""
    return -(-words // 4) * 4


@cache
def _build(v: int, tile: int, num_warps: int, pdl: bool) -> dict[str, Any]:
    return {"V": v, "TILE": tile, **options(num_warps, pdl=pdl)}


@cache
def _one_program(v: int, room: int, pdl: bool) -> dict[str, Any]:
    """Of kernels that hold the candidates of a row in registers."""
    return {"V": v, "ROOM": room, **options(16, pdl=pdl)}
