"""The operations of a forward pass as kernel launches (docs/arithmetic-tensorcore.md, section 3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from queueproof.kernels.ops import ForwardModel
from queueproof.kernels.triton import elementwise
from queueproof.kernels.triton.attention import Attention
from queueproof.kernels.triton.card import Card
from queueproof.kernels.triton.linear import Weight
from queueproof.kernels.triton.packer import TORCH_DTYPES, Rope
from queueproof.kernels.triton.products import Products
from queueproof.kernels.triton.step_input import Numbers


@dataclass(frozen=True, slots=True)
class KVCache:
    """keys, values: h16 [layers, num_blocks, kv_heads, block_size, D]."""

    keys: torch.Tensor
    values: torch.Tensor


class TritonOps:
    """One step at a time: `begin` says over which numbers, then the model calls the rest.

    Every call only enqueues. Rows of results past the step's tokens hold anything.
    """

    def __init__(
        self,
        model: ForwardModel,
        cache: KVCache,
        products: Products,
        attention: Attention,
        card: Card,
        hidden: torch.Tensor,
        last_tokens: torch.Tensor,
    ) -> None:
        """hidden: f32 [rows, H], where the residual stream is kept. last_tokens: i32, of the last draw."""
        self._h16 = TORCH_DTYPES[model.dtype]
        self._cache, self._products, self._attention, self._card = cache, products, attention, card
        self._hidden, self._last_tokens = hidden, last_tokens
        self._kv_heads, self._head_dim = model.kv_shape.kv_heads, model.kv_shape.head_dim
        self._layers = [(cache.keys[i], cache.values[i]) for i in range(model.kv_shape.layers)]
        self._take: Callable[[torch.Tensor], torch.Tensor] | None = None

    def begin(self, numbers: Numbers, rows: int, decode_only: bool) -> None:
        """decode_only: no sequence of the step is in prefill."""
        self._numbers, self._rows, self._decode_only = numbers, rows, decode_only

    def in_head(self, take: Callable[[torch.Tensor], torch.Tensor] | None) -> None:
        """take: gives the rows of the residual stream that the head is for. None: back in the trunk."""
        self._take = take

    def embed(self, table: Weight) -> torch.Tensor:
        n, h = self._numbers, self._hidden[: self._rows]
        elementwise.embed(table.data, n.token_ids, n.drawn, self._last_tokens, h, self._card.pdl)
        return h

    def add(self, h: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
        elementwise.add(h, delta, self._card.pdl)
        return h

    def rms_norm(
        self, h: torch.Tensor, weight: torch.Tensor, eps: float, delta: torch.Tensor | None = None
    ) -> torch.Tensor:
        out = self._empty(h.shape[0], h.shape[1])
        elementwise.rms_norm(h, weight, eps, delta, out, self._card.pdl)
        return out

    def linear(self, x: torch.Tensor, w: Weight) -> torch.Tensor:
        dtype = self._h16 if self._take is None else torch.float32
        out = torch.empty((x.shape[0], w.n), dtype=dtype, device=self._card.device)
        self._products.linear(x, w, out)
        return out

    def gated_linear(self, x: torch.Tensor, w: Weight) -> torch.Tensor:
        out = self._empty(x.shape[0], w.n // 2)
        self._products.gated(x, w, out)
        return out

    def rope_and_cache(
        self,
        qkv: torch.Tensor,
        rope: Rope,
        layer: int,
        heads: int,
        q_norm: torch.Tensor | None = None,
        k_norm: torch.Tensor | None = None,
        eps: float = 0.0,
    ) -> torch.Tensor:
        n = self._numbers
        keys, values = self._layers[layer]
        q = self._empty(self._rows, heads * self._head_dim)
        elementwise.rope_and_cache(
            qkv, rope.cos, rope.sin, n.positions, n.slots, keys, values, q, q_norm, k_norm, eps, self._card.pdl
        )
        return q

    def attention(self, q: torch.Tensor, layer: int, heads: int, window: int | None = None) -> torch.Tensor:
        keys, values = self._layers[layer]
        out = self._empty(self._rows, q.shape[1])
        self._attention.run(q, keys, values, out, self._numbers, window, self._decode_only)
        return out

    def take_logit_rows(self, h: torch.Tensor) -> torch.Tensor:
        if self._take is None:
            raise RuntimeError("take_logit_rows outside of Executor.logits")
        return self._take(h)

    def _empty(self, rows: int, columns: int) -> torch.Tensor:
        return torch.empty((rows, columns), dtype=self._h16, device=self._card.device)
