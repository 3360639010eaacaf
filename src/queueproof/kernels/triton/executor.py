"""A model with its KV cache on a card. Steps that are often of one size run as CUDA graphs; the bits are those of eager runs."""

from __future__ import annotations

import gc
from dataclasses import dataclass

import numpy as np
import torch

from queueproof.contract.errors import EngineError
from queueproof.kernels.ops import I32, ForwardModel, Limits, StepBatch
from queueproof.kernels.step_check import check_step
from queueproof.kernels.triton.attention import Attention
from queueproof.kernels.triton.attention_plan import plan
from queueproof.kernels.triton.card import Card
from queueproof.kernels.triton.ops import KVCache, TritonOps
from queueproof.kernels.triton.packer import TORCH_DTYPES
from queueproof.kernels.triton.products import ROW_COUNTS, Products, padded_rows
from queueproof.kernels.triton.step_input import Staging, StepInput

MOST_MIXED_GRAPH_ROWS = 1024  # above, a step takes the card longer than its launches take the host


@dataclass(frozen=True, slots=True)
class DeviceLogits:
    """values: f32 [R, V] on the card. tokens: i32, where a draw leaves its tokens for the next step's `StepBatch.drawn`."""

    values: torch.Tensor
    tokens: torch.Tensor


class TritonExecutor:
    """Everything is enqueued on the current stream and in order, so a step reads what the one before it wrote.

    graphs: False runs every step eagerly (to compare). graph_replays: steps that a graph ran.
    """

    def __init__(self, model: ForwardModel, limits: Limits, card: Card, products: Products, graphs: bool = True) -> None:
        self.limits, self.graph_replays = limits, 0
        self._model, self._card = model, card
        shape = model.kv_shape
        pool = (shape.layers, limits.num_blocks, shape.kv_heads, limits.block_size, shape.head_dim)
        try:
            cache = KVCache(*(torch.zeros(pool, dtype=TORCH_DTYPES[model.dtype], device=card.device) for _ in range(2)))
        except torch.OutOfMemoryError as error:
            raise MemoryError(str(error).splitlines()[0]) from error
        self._most_rows = padded_rows(limits.max_tokens)
        self._tokens = torch.zeros(limits.max_logit_rows, dtype=torch.int32, device=card.device)
        self._attention = Attention(shape, limits, card)
        self._input = StepInput(limits, self._most_rows, *self._attention.most_items, card.device)
        self._row_index = Staging(padded_rows(limits.max_logit_rows), card.device)
        self._ops = TritonOps(model, cache, products, self._attention, card, self._tokens, self._most_rows)
        self._open = True
        self._step_rows = self._step_tokens = 0
        self._graph_logits: torch.Tensor | None = None
        self._hidden: torch.Tensor | None = None
        self._graphs: dict[tuple[int, bool], tuple[torch.cuda.CUDAGraph, torch.Tensor, torch.Tensor | None]] = {}
        if graphs and card.device.type == "cuda":
            self._capture_all()

    def forward(self, batch: StepBatch) -> None:
        if not self._open:
            raise EngineError("this executor is closed; make a new one")
        check_step(batch, self.limits, self._model.vocab_size)
        t = batch.token_ids.size
        rows = padded_rows(t)
        items = plan(batch.positions, batch.query_start)
        self._input.send(batch, rows, items)
        decode_only = not len(items.prefill_items)
        captured = self._graphs.get((rows, decode_only))
        if captured is not None:
            graph, self._hidden, self._graph_logits = captured
            graph.replay()
            self.graph_replays += 1
        else:
            self._hidden, self._graph_logits = self._run(rows, decode_only, with_head=False)
        self._step_tokens, self._step_rows = t, rows

    def logits(self, rows: I32) -> DeviceLogits:
        if self._hidden is None:
            raise EngineError("logits were asked for before the first forward pass, or after close")
        n = rows.size
        if not 0 < n <= self.limits.max_logit_rows:
            raise ValueError(f"{n} logits rows asked for; room for {self.limits.max_logit_rows}")
        if rows.min() < 0 or rows.max() >= self._step_tokens:
            raise ValueError(f"a row is outside 0 to {self._step_tokens - 1}: {rows.tolist()}")
        if self._graph_logits is not None and n == self._step_tokens and np.array_equal(rows, np.arange(n)):
            return DeviceLogits(self._graph_logits[:n], self._tokens)
        padded = padded_rows(n)
        words = self._row_index.next()
        words[:n] = rows
        words[n:padded] = 0
        self._row_index.send([(0, padded)])
        index = self._row_index.card[:padded]
        return DeviceLogits(self._head(self._hidden, lambda h: h.index_select(0, index))[:n], self._tokens)

    def close(self) -> None:
        """Frees the cache and the graphs."""
        if self._open:
            self._open = False
            if self._card.device.type == "cuda":
                torch.cuda.current_stream().synchronize()
            self._graphs.clear()
            del self._ops, self._input, self._attention
            self._hidden = self._graph_logits = None
            gc.collect()  # kernels hold no reference, Python's cycles may

    def _run(self, rows: int, decode_only: bool, with_head: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The trunk over what `_input` holds, and the head over all its rows."""
        self._ops.begin(self._input.numbers(rows), rows, decode_only)
        hidden = self._model.trunk(self._ops)
        return hidden, self._head(hidden, lambda h: h) if with_head else None

    def _head(self, hidden: torch.Tensor, take) -> torch.Tensor:
        self._ops.in_head(take)
        try:
            return self._model.head(self._ops, hidden)
        finally:
            self._ops.in_head(None)

    def _capture_all(self) -> None:
        """Graphs for steps of decode, with the head, and for small ones with prefill. The largest first: the pool fits all."""
        limits = self.limits
        most_decode = padded_rows(min(limits.max_logit_rows, limits.max_tokens))
        most_mixed = min(MOST_MIXED_GRAPH_ROWS, self._most_rows)
        sizes = [(rows, True) for rows in ROW_COUNTS if rows <= most_decode]
        sizes += [(rows, False) for rows in ROW_COUNTS if rows <= most_mixed]
        pool = torch.cuda.graph_pool_handle()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        self._input.clear()
        with torch.cuda.stream(stream):
            for rows, decode_only in sorted(sizes, reverse=True):
                self._run(rows, decode_only, with_head=decode_only)  # compiles, loads and chooses
                stream.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool=pool, stream=stream):
                    hidden, logits = self._run(rows, decode_only, with_head=decode_only)
                self._graphs[rows, decode_only] = (graph, hidden, logits)
        torch.cuda.current_stream().wait_stream(stream)
