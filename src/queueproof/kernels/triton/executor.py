"""A model with its KV cache on a card. Steps of common sizes run as CUDA graphs; the bits are those of eager runs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from queueproof.contract.errors import EngineError
from queueproof.kernels.ops import I32, ForwardModel, Limits, StepBatch
from queueproof.kernels.step_check import check_rows, check_step
from queueproof.kernels.triton import elementwise
from queueproof.kernels.triton.attention import Attention
from queueproof.kernels.triton.card import Card
from queueproof.kernels.triton.device import DeviceLogits, Upload
from queueproof.kernels.triton.ops import KVCache, TritonOps
from queueproof.kernels.triton.packer import TORCH_DTYPES
from queueproof.kernels.triton.products import ROW_COUNTS, Products, Use, padded_rows
from queueproof.kernels.triton.rows import build_draws
from queueproof.kernels.triton.step_input import StepInput
from queueproof.kernels.triton.survey import Survey

MOST_MIXED_GRAPH_ROWS = 1024  # above, a step takes the card longer than its launches take the host

Take = Callable[[torch.Tensor], torch.Tensor]


class TritonExecutor:
    """Everything is enqueued on the current stream, in order, so a step reads what the one before it wrote.

    graphs: False runs every step eagerly. graph_replays: steps that were the replay of a graph.
    Raises MemoryError where the cache does not fit on the card.
    """

    def __init__(
        self, model: ForwardModel, limits: Limits, card: Card, products: Products, graphs: bool = True
    ) -> None:
        self.limits, self.graph_replays = limits, 0
        self._model, self._card = model, card
        survey = Survey(model)
        most_rows, most_logit_rows = padded_rows(limits.max_tokens), padded_rows(limits.max_logit_rows)
        if card.device.type == "cuda":  # the choice of a product is made once, and not in the middle of a graph
            products.prepare(Use(*p, _row_counts(most_rows)) for p in survey.trunk)
            products.prepare(Use(*p, _row_counts(most_logit_rows)) for p in survey.head)
        shape = model.kv_shape
        pool = (shape.layers, limits.num_blocks, shape.kv_heads, limits.block_size, shape.head_dim)
        try:
            cache = KVCache(*(torch.zeros(pool, dtype=TORCH_DTYPES[model.dtype], device=card.device) for _ in range(2)))
            # Both at one place, whatever the graph: read after the step, and by the next one.
            self._hidden = torch.zeros((most_rows, survey.hidden), dtype=torch.float32, device=card.device)
            self._tokens = torch.zeros(limits.max_logit_rows, dtype=torch.int32, device=card.device)
            self._attention = Attention(shape, survey.heads, limits, card)
            self._input = StepInput(limits, most_rows, *self._attention.most_items, card.device)
            self._row_index = Upload(card.device)
        except torch.OutOfMemoryError as error:
            raise MemoryError(str(error).splitlines()[0]) from error
        self._ops = TritonOps(model, cache, products, self._attention, card, self._hidden, self._tokens)
        self._open = True
        self._step_tokens = self._step_rows = 0
        self._graph_logits: torch.Tensor | None = None  # of all rows of the last step, if its graph computed them
        self._graphs: dict[tuple[int, bool], tuple[torch.cuda.CUDAGraph, torch.Tensor | None]] = {}
        if graphs and card.device.type == "cuda":
            self._capture_all(most_rows, most_logit_rows)
            build_draws(card, model.vocab_size)

    def forward(self, batch: StepBatch) -> None:
        if not self._open:
            raise EngineError("this executor is closed; make a new one")
        check_step(batch, self.limits, self._model.vocab_size)
        tokens = batch.token_ids.size
        rows = padded_rows(tokens)
        plan = self._attention.plan(batch)
        self._input.send(batch, rows, plan)
        decode_only = not len(plan.prefill_items)
        captured = self._graphs.get((rows, decode_only))
        if captured is None:
            self._graph_logits = self._run(rows, decode_only, with_head=False)
        else:
            graph, self._graph_logits = captured
            graph.replay()
            self.graph_replays += 1
        self._step_tokens, self._step_rows = tokens, rows

    def logits(self, rows: I32) -> DeviceLogits:
        if not self._step_tokens:
            raise EngineError("logits were asked for before the first forward pass, or after close")
        check_rows(rows, self.limits, self._step_tokens)
        n = rows.size
        if self._graph_logits is not None and n == self._step_tokens and np.array_equal(rows, np.arange(n)):
            return DeviceLogits(self._graph_logits[:n], self._tokens)
        padded = padded_rows(n)
        words = self._row_index.words(padded)
        words[:n] = rows
        words[n:] = 0
        index = self._row_index.send(padded)

        def take(h: torch.Tensor) -> torch.Tensor:
            taken = torch.empty((padded, h.shape[1]), dtype=h.dtype, device=h.device)
            elementwise.gather_rows(h, index, taken, self._card.pdl)
            return taken

        return DeviceLogits(self._head(self._step_rows, take)[:n], self._tokens)

    def close(self) -> None:
        """Frees the cache and the graphs, once what is under way has ended."""
        if self._open:
            self._open = False
            if self._card.device.type == "cuda":
                torch.cuda.synchronize(self._card.device)
            self._graphs.clear()
            self._step_tokens = 0
            self._graph_logits = None
            del self._ops, self._input, self._attention, self._hidden

    def _run(self, rows: int, decode_only: bool, with_head: bool) -> torch.Tensor | None:
        """Enqueues the trunk over what `_input` holds, and the head over all rows: its logits."""
        self._ops.begin(self._input.numbers(rows), rows, decode_only)
        self._model.trunk(self._ops)
        return self._head(rows, lambda h: h) if with_head else None

    def _head(self, rows: int, take: Take) -> torch.Tensor:
        self._ops.in_head(take)
        try:
            logits: torch.Tensor = self._model.head(self._ops, self._hidden[:rows])
        finally:
            self._ops.in_head(None)
        return logits

    def _capture_all(self, most_rows: int, most_logit_rows: int) -> None:
        """Graphs for steps of decode, with the head, and for small ones with prefill."""
        sizes = [(rows, True) for rows in ROW_COUNTS if rows <= min(most_logit_rows, most_rows)]
        sizes += [(rows, False) for rows in ROW_COUNTS if rows <= min(MOST_MIXED_GRAPH_ROWS, most_rows)]
        pool = torch.cuda.graph_pool_handle()
        stream = torch.cuda.Stream(self._card.device)
        stream.wait_stream(torch.cuda.current_stream(self._card.device))
        self._input.clear()
        with torch.cuda.stream(stream):
            for rows, decode_only in sorted(sizes, reverse=True):  # the pool is then large enough for all the others
                self._run(rows, decode_only, with_head=decode_only)  # compiles and loads, which a capture cannot
                stream.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool=pool, stream=stream):
                    logits = self._run(rows, decode_only, with_head=decode_only)
                self._graphs[rows, decode_only] = (graph, logits)
        torch.cuda.current_stream(self._card.device).wait_stream(stream)


def _row_counts(most: int) -> tuple[int, ...]:
    return (*(rows for rows in ROW_COUNTS if rows < most), most)
