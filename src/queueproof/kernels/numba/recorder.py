"""Records what a model asks of `Ops` as instructions over buffers that live as long as the executor.

A buffer goes back to the pool when the model drops its last name for it, and a later operation writes over it: the order
of instructions is the order of the calls, with a barrier after each, so this is as safe as it is in eager code. A norm or
gate whose result goes into the product that follows has no barrier after it where rows are few (`program.OWN_ROWS`): what it
reads is kept until the product has its place.

After the attention of the last layer nothing goes into the cache any more, so all that follows is for the rows whose logits
are asked for: it is the beginning of the head. Of a prompt of 512 tokens, the last layer's products are computed for one.
"""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import pairwise
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from queueproof.contract.errors import InvalidParameter, UnsupportedModel
from queueproof.kernels.numba.attention import TILE_ROWS, padded, scratch_f32
from queueproof.kernels.numba.linear import SCRATCH_F32
from queueproof.kernels.numba.linear import scratch_f32 as linear_scratch
from queueproof.kernels.numba.memory import LINE, aligned
from queueproof.kernels.numba.microkernel import PANEL
from queueproof.kernels.numba.packed import PackedMatrix
from queueproof.kernels.numba.program import AHEAD, GATED, NEXT_WEIGHTS, OWN, OWN_ROWS, ROW, Op, StepWord
from queueproof.kernels.ops import F32, KVShape, Limits

LINE_F32 = LINE // 4
_RESULT = {Op.RMS_NORM: 7, Op.SILU_MUL: 4}  # the word that says where it goes
TOKENS, LOGIT_ROWS = int(StepWord.ROWS), int(StepWord.LOGIT_ROWS)


def address(a: NDArray[np.generic]) -> int:
    return int(a.ctypes.data)


class Buffer:
    """A recorded activation: `rows` is TOKENS or LOGIT_ROWS, `width` its f32 per row."""

    __slots__ = ("array", "other", "pool", "rows", "width")

    def __init__(self, array: F32, rows: int, width: int, pool: dict[tuple[int, int], list[F32]]) -> None:
        self.array, self.rows, self.width, self.pool = array, rows, width, pool
        self.other: Buffer | None = None  # of a residual stream: where its next sum goes

    def __del__(self) -> None:
        self.pool[self.rows, self.width].append(self.array)


class Rope:
    """cos and sin, f32 [positions, D / 2], contiguous."""

    def __init__(self, cos: F32, sin: F32) -> None:
        self.cos, self.sin = np.ascontiguousarray(cos, np.float32), np.ascontiguousarray(sin, np.float32)


def _bits(x: float) -> int:
    return int(np.float32(x).view(np.int32))


class Recorder:
    """`Ops` that writes instructions. Owns the KV cache: per layer keys u16 [block, kv_heads, D, page] and values u16 [block, kv_heads, page, Dp]."""

    def __init__(self, limits: Limits, kv: KVShape) -> None:
        self.limits, self.kv = limits, kv
        page, dp = limits.block_size, padded(kv.head_dim)
        per_block = kv.kv_heads * page
        self.keys = aligned(kv.layers * limits.num_blocks * per_block * kv.head_dim, np.uint16)
        self.values = aligned(kv.layers * limits.num_blocks * per_block * dp, np.uint16)
        self._layer_bytes = (2 * limits.num_blocks * per_block * kv.head_dim, 2 * limits.num_blocks * per_block * dp)
        self._pool: dict[tuple[int, int], list[F32]] = defaultdict(list)
        self._code: list[list[int]] = []
        self._kept: list[object] = []
        self._read: tuple[Buffer | None, ...] = ()  # by the last instruction
        self.scratch_f32 = SCRATCH_F32
        self.vocab_size = 1 << 31  # ids below it have a row in every table that is looked into

    # -- recording -----------------------------------------------------------------------------------------------

    def finish(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The recorded instructions, i64 [n, ROW] on a cache line: of all tokens, then those of logits rows."""
        n = len(self._code)
        code: NDArray[np.int64] = aligned(max(1, n) * ROW, np.int64).reshape(-1, ROW)  # type: ignore[assignment]
        for i, words in enumerate(self._code):
            code[i, : len(words)] = words
        weights, asked = [0, 0, 0], 0
        for i in reversed(range(n)):
            code[i, NEXT_WEIGHTS : NEXT_WEIGHTS + 3] = weights
            if self._code[i][0] == Op.LINEAR:
                weights = [int(code[i, word]) for word in (4, 9, 5)]
        for words in code[:n]:
            words[NEXT_WEIGHTS + 3] = asked = 0 if words[0] == Op.LINEAR else asked + AHEAD
        self._place_own(code)
        trunk = sum(words[1] == TOKENS for words in self._code)
        return code[:trunk], code[trunk:n]

    def _place_own(self, code: NDArray[np.int64]) -> None:
        """Gives each norm and gate that is followed by the product of its result a place in the threads' own scratch."""
        place, widest = -(-self.scratch_f32 // LINE_F32) * LINE_F32, 0
        for words, after in pairwise(code):
            if words[0] in _RESULT and after[0] == Op.LINEAR and words[_RESULT[Op(words[0])]] == after[2]:
                words[OWN] = after[OWN] = place
                widest = max(widest, int(after[3]))
        if widest:
            self.scratch_f32 = place + widest * OWN_ROWS

    def _emit(self, op: Op, rows: int, *words: int, reads: tuple[Buffer | None, ...] = ()) -> None:
        if rows == TOKENS and self._code and self._code[-1][1] == LOGIT_ROWS:
            raise UnsupportedModel(
                f"{op.name} for all tokens of a step, after the attention of the last layer or in the head; supported there: "
                "what needs no other tokens than those whose logits are asked for"
            )
        self._code.append([int(op), rows, *words])
        self._read = reads

    def _new(self, rows: int, width: int) -> Buffer:
        free = self._pool[rows, width]
        if free:
            return Buffer(free.pop(), rows, width, self._pool)
        n = self.limits.max_tokens if rows == TOKENS else self.limits.max_logit_rows
        array = aligned(n * width, np.float32).reshape(n, width)
        self._kept.append(array)
        return Buffer(array, rows, width, self._pool)  # type: ignore[arg-type]

    def _need(self, n_f32: int) -> None:
        self.scratch_f32 = max(self.scratch_f32, n_f32)

    def _match_rows(self, h: Buffer, delta: Buffer) -> None:
        """Leaves of h the rows that delta has. What it held for all tokens stays as it is, for the next call of `logits`."""
        if h.rows == TOKENS and delta.rows == LOGIT_ROWS:
            taken = self._take(h)
            self._kept.append(taken)  # its array is h's now
            h.array, h.other, h.rows = taken.array, None, LOGIT_ROWS

    def _take(self, h: Buffer) -> Buffer:
        out = self._new(LOGIT_ROWS, h.width)
        self._emit(Op.TAKE_ROWS, LOGIT_ROWS, address(h.array), h.width, address(out.array))
        return out

    def _mismatch(self, what: str, got: int, want: int) -> NoReturn:
        raise UnsupportedModel(f"{what} has width {got} where {want} is needed: the model's shapes do not fit together")

    # -- Ops ---------------------------------------------------------------------------------------------------------

    def embed(self, table: PackedMatrix) -> Buffer:
        out = self._new(TOKENS, table.k)
        self.vocab_size = min(self.vocab_size, table.n)
        self._kept.append(table)
        self._emit(Op.EMBED, TOKENS, address(table.data), table.k, address(out.array), table.kind)
        return out

    def add(self, h: Buffer, delta: Buffer) -> Buffer:
        if h.width != delta.width:
            self._mismatch("the residual stream's update", delta.width, h.width)
        self._match_rows(h, delta)
        self._emit(Op.ADD, h.rows, address(h.array), address(delta.array), h.width)
        return h

    def rms_norm(self, h: Buffer, weight: F32, eps: float, delta: Buffer | None = None) -> Buffer:
        if weight.size != h.width:
            self._mismatch("a norm's weight", weight.size, h.width)
        if delta is not None:
            self._match_rows(h, delta)
        out = self._new(h.rows, h.width)
        self._kept.append(weight)
        self._need(2 * h.width + 64)
        here, d, total = address(h.array), 0, 0
        if delta is not None:  # not in place: another thread may still read
            h.other = h.other or self._new(h.rows, h.width)
            h.array, h.other.array = h.other.array, h.array
            d, total = address(delta.array), address(h.array)
        words = (here, d, address(weight), _bits(eps), h.width, address(out.array), total)
        self._emit(Op.RMS_NORM, h.rows, *words, reads=(h.other, delta))
        return out

    def linear(self, x: Buffer, w: PackedMatrix) -> Buffer:
        if x.width != w.k:
            self._mismatch("a linear layer's input", x.width, w.k)
        out = self._new(x.rows, w.n)
        self._kept.append(w)
        bias = 0 if w.bias is None else address(w.bias)
        rows = max(self.limits.max_tokens, self.limits.max_logit_rows)
        self._need(linear_scratch(w.k, w.kind, rows))
        words = (address(x.array), w.k, address(w.data), w.n, address(out.array), bias, w.kind, w.panel_bytes, address(w.needs))
        self._emit(Op.LINEAR, x.rows, *words)
        return out

    def rope_and_cache(
        self,
        qkv: Buffer,
        rope: Rope,
        layer: int,
        heads: int,
        q_norm: F32 | None = None,
        k_norm: F32 | None = None,
        eps: float = 0.0,
    ) -> Buffer:
        kvh, d = self.kv.kv_heads, self.kv.head_dim
        if qkv.width != (heads + 2 * kvh) * d:
            self._mismatch("qkv", qkv.width, (heads + 2 * kvh) * d)
        if rope.cos.shape[0] < self.limits.max_model_len or rope.cos.shape[1] != d // 2:
            raise InvalidParameter(
                "max_model_len", self.limits.max_model_len, f"the rotary table has the shape {list(rope.cos.shape)}"
            )
        out = self._new(qkv.rows, heads * d)
        self._kept += [rope, q_norm, k_norm]
        self._need(64 + 2 * d)
        norms = [0 if n is None else address(n) for n in (q_norm, k_norm)]
        k, v = self._cache(layer)
        self._emit(Op.ROPE_AND_CACHE, qkv.rows, address(qkv.array), heads, kvh, d, padded(d), self.limits.block_size,
                   address(rope.cos), address(rope.sin), *norms, _bits(eps), k, v, address(out.array))  # fmt: skip
        return out

    def attention(self, q: Buffer, layer: int, heads: int, window: int | None = None) -> Buffer:
        kvh, d = self.kv.kv_heads, self.kv.head_dim
        if heads % kvh or heads // kvh > TILE_ROWS:
            raise UnsupportedModel(f"{heads} query heads on {kvh} key heads; supported: a multiple, at most {TILE_ROWS}")
        out = self._new(q.rows, heads * d)
        self._need(scratch_f32(d))
        k, v = self._cache(layer)
        words = (address(q.array), address(out.array), heads, kvh, d, self.limits.block_size, window or 0,
                 _bits(1.0 / math.sqrt(d)), k, v)  # fmt: skip
        self._emit(Op.ATTENTION, q.rows, *words)
        self._emit(Op.COMBINE, q.rows, *words)
        return self._take(out) if layer == self.kv.layers - 1 else out

    def gated_linear(self, x: Buffer, w: PackedMatrix) -> Buffer:
        gate_up = self.linear(x, w)
        out = self._new(gate_up.rows, gate_up.width // 2)
        gated = 0 if out.width % PANEL else address(out.array)
        self._code[-1] += [0] * (GATED - len(self._code[-1])) + [gated]
        words = (address(gate_up.array), out.width, address(out.array), *[0] * (GATED - 5), gated)
        self._emit(Op.SILU_MUL, gate_up.rows, *words, reads=(gate_up,))
        return out

    def take_logit_rows(self, h: Buffer) -> Buffer:
        return h if h.rows == LOGIT_ROWS else self._take(h)

    def _cache(self, layer: int) -> tuple[int, int]:
        k, v = self._layer_bytes
        return address(self.keys) + layer * k, address(self.values) + layer * v
