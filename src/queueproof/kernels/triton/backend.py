"""`tensorcore/1` on a CUDA card. See kernels/ops.py for the protocols."""

from __future__ import annotations

from collections.abc import Callable

import torch

from queueproof.kernels.ops import Defaults, Dtype, ForwardModel, KVShape, Limits
from queueproof.kernels.triton.card import Card, find_card
from queueproof.kernels.triton.executor import TritonExecutor
from queueproof.kernels.triton.packer import TritonPacker
from queueproof.kernels.triton.products import Products
from queueproof.kernels.triton.rows import TritonRows

WORKSPACE_BYTES = 4 << 30  # activations, graphs and libraries beside the cache
KV_SHARE = 0.9  # of the memory that is left after the weights


class TritonBackend:
    """Raises UnsupportedDevice without a usable card. card: None takes the first; graphs: see TritonExecutor."""

    arithmetic = "tensorcore/1"
    device = "cuda"
    asynchronous = True

    def __init__(self, card: Card | None = None, graphs: bool = True) -> None:
        self.card = find_card() if card is None else card
        self.family = self.card.family
        self.products = Products(self.card)
        self._graphs = graphs

    def defaults(self) -> Defaults:
        free = torch.cuda.mem_get_info(self.card.device)[0] if self.card.device.type == "cuda" else 1 << 30
        memory = max(free // 4, int(free * KV_SHARE) - WORKSPACE_BYTES)
        return Defaults(max_num_seqs=256, max_num_batched_tokens=8192, block_size=64, kv_cache_memory=memory)

    def packer(self, dtype: Dtype) -> TritonPacker:
        return TritonPacker(dtype, self.card.device)

    def rows(self, threads: int) -> TritonRows:
        return TritonRows(self.card)

    def kv_bytes_per_token(self, shape: KVShape) -> int:
        return 2 * shape.layers * shape.kv_heads * shape.head_dim * 2

    def executor(self, model: ForwardModel, limits: Limits, threads: int) -> TritonExecutor:
        return TritonExecutor(model, limits, self.card, self.products, self._graphs)

    def warm_up(self, progress: Callable[[str], None] | None = None) -> None:
        """Kernels are built at their first use, which the canary is."""
        if progress:
            progress("building kernels for the card")
