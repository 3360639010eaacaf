"""A small random model over the kernel door: every operation and option in two layers.

It stands in for the model files in tests of kernels, oracle and engine, and needs no file. One seed gives the same
weights to every backend.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from queueproof.arithmetic.bits import Dtype, round16_bits
from queueproof.arithmetic.rope import rope_table
from queueproof.kernels.ops import Act, Backend, KVShape, Limits, Matrix, Ops, Packer, StepBatch, Vector


@dataclass(frozen=True, slots=True)
class TinyConfig:
    seed: int = 0
    dtype: Dtype = "bfloat16"
    vocab_size: int = 97
    hidden: int = 48
    intermediate: int = 72
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    max_len: int = 2048
    bias: bool = False  # on q, k and v, as in Qwen2
    qk_norm: bool = False  # as in Qwen3
    window: int | None = None  # as in Mistral
    tied: bool = True
    eps: float = 1e-5
    theta: float = 1e4


@dataclass(frozen=True, slots=True)
class _Layer:
    input_norm: Vector
    qkv: Matrix
    out: Matrix
    post_norm: Vector
    gate_up: Matrix
    down: Matrix
    q_norm: Vector | None
    k_norm: Vector | None


class TinyModel:
    """A ForwardModel of Llama's shape."""

    def __init__(self, packer: Packer, config: TinyConfig) -> None:
        self.config = config
        self.dtype: Dtype = config.dtype
        self.vocab_size = config.vocab_size
        self.kv_shape = KVShape(config.layers, config.kv_heads, config.head_dim)
        self._rng = np.random.default_rng(config.seed)
        self._packer = packer
        self._embedding = self._matrix(config.vocab_size, config.hidden, spread=1.0)
        self._layers = [self._layer() for _ in range(config.layers)]
        self._norm = self._vector(config.hidden)
        self._head = self._embedding if config.tied else self._matrix(config.vocab_size, config.hidden, spread=1.0)
        self._rope = packer.rope(*rope_table(config.head_dim, config.theta, config.max_len))

    def _matrix(self, n: int, k: int, spread: float | None = None, bias: bool = False) -> Matrix:
        values = self._rng.standard_normal((n, k), np.float32) * np.float32(spread or 1 / np.sqrt(k))
        bits = round16_bits(values, self.dtype)
        offsets = self._rng.standard_normal(n, np.float32) if bias else None
        return self._packer.matrix(n, k, iter((bits[: n // 3], bits[n // 3 :])), offsets)

    def _vector(self, n: int) -> Vector:
        return self._packer.vector(1 + self._rng.standard_normal(n, np.float32) * np.float32(0.1))

    def _layer(self) -> _Layer:
        c = self.config
        return _Layer(
            input_norm=self._vector(c.hidden),
            qkv=self._matrix((c.heads + 2 * c.kv_heads) * c.head_dim, c.hidden, bias=c.bias),
            out=self._matrix(c.hidden, c.heads * c.head_dim),
            post_norm=self._vector(c.hidden),
            gate_up=self._matrix(2 * c.intermediate, c.hidden),
            down=self._matrix(c.hidden, c.intermediate),
            q_norm=self._vector(c.head_dim) if c.qk_norm else None,
            k_norm=self._vector(c.head_dim) if c.qk_norm else None,
        )

    def trunk(self, ops: Ops) -> Act:
        c = self.config
        h = ops.embed(self._embedding)
        delta = None
        for index, layer in enumerate(self._layers):
            x = ops.rms_norm(h, layer.input_norm, c.eps, delta)
            qkv = ops.linear(x, layer.qkv)
            q = ops.rope_and_cache(qkv, self._rope, index, c.heads, layer.q_norm, layer.k_norm, c.eps)
            x = ops.attention(q, index, c.heads, c.window)
            delta = ops.linear(x, layer.out)
            x = ops.rms_norm(h, layer.post_norm, c.eps, delta)
            x = ops.gated_linear(x, layer.gate_up)
            delta = ops.linear(x, layer.down)
        return ops.add(h, delta)

    def head(self, ops: Ops, h: Act) -> Act:
        rows = ops.take_logit_rows(h)
        return ops.linear(ops.rms_norm(rows, self._norm, self.config.eps), self._head)


def build(backend: Backend | Any, config: TinyConfig) -> TinyModel:
    """The model of a config, packed for a backend (any object with its methods)."""
    return TinyModel(backend.packer(config.dtype), config)


def limits(
    max_tokens: int = 512,
    max_seqs: int = 32,
    num_blocks: int = 96,
    block_size: int = 16,
    max_model_len: int = 1024,
    max_logit_rows: int | None = None,
) -> Limits:
    return Limits(max_tokens, max_seqs, max_logit_rows or max_tokens, num_blocks, block_size, max_model_len)


class Sequence:
    """Token ids of one sequence, the pool blocks they live in, and how many have been computed."""

    def __init__(self, ids: list[int], blocks: list[int]) -> None:
        self.ids, self.blocks, self.done = ids, blocks, 0


def step(parts: list[tuple[Sequence, int]], block_size: int) -> StepBatch:
    """The batch that computes the next n tokens of each (sequence, n), and counts them as done."""
    tokens: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    starts = [0]
    width = max(len(seq.blocks) for seq, _ in parts)
    tables = np.zeros((len(parts), width), np.int32)
    for row, (seq, n) in enumerate(parts):
        tables[row, : len(seq.blocks)] = seq.blocks
        for position in range(seq.done, seq.done + n):
            tokens.append(seq.ids[position])
            positions.append(position)
            slots.append(seq.blocks[position // block_size] * block_size + position % block_size)
        seq.done += n
        starts.append(len(tokens))
    return StepBatch(
        np.array(tokens, np.int32),
        np.array(positions, np.int32),
        np.array(slots, np.int64),
        np.array(starts, np.int32),
        tables,
    )
