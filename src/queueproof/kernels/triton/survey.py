"""What a model will ask for, found by running its forward pass over operations that compute nothing."""

from __future__ import annotations

from typing import Any

import torch

from queueproof.contract.errors import UnsupportedModel
from queueproof.kernels.ops import ForwardModel
from queueproof.kernels.triton.linear import Weight
from queueproof.kernels.triton.packer import TORCH_DTYPES

Product = tuple[Weight, bool, torch.dtype]  # weights, whether gated, type of the result


class Survey:
    """hidden: length of a row of the residual stream. heads: of the queries. trunk, head: the matrix products."""

    def __init__(self, model: ForwardModel) -> None:
        self.hidden = 0
        self.trunk: list[Product] = []
        self.head: list[Product] = []
        self._heads: set[int] = set()
        self._h16 = TORCH_DTYPES[model.dtype]
        self._products = self.trunk
        h = model.trunk(self)
        self._products = self.head
        model.head(self, h)
        if len(self._heads) != 1:
            raise UnsupportedModel(
                f"layers with {sorted(self._heads)} query heads: tensorcore/1 here needs the same number in all layers"
            )
        (self.heads,) = self._heads

    def embed(self, table: Weight) -> None:
        self.hidden = table.k

    def add(self, h: Any, delta: Any) -> None:
        return None

    def rms_norm(self, h: Any, weight: Any, eps: float, delta: Any = None) -> None:
        return None

    def linear(self, x: Any, w: Weight) -> None:
        self._products.append((w, False, self._h16 if self._products is self.trunk else torch.float32))

    def gated_linear(self, x: Any, w: Weight) -> None:
        self._products.append((w, True, self._h16))

    def rope_and_cache(self, qkv: Any, rope: Any, layer: int, heads: int, *norms: Any, **more: Any) -> None:
        self._heads.add(heads)

    def attention(self, q: Any, layer: int, heads: int, window: int | None = None) -> None:
        self._heads.add(heads)

    def take_logit_rows(self, h: Any) -> None:
        return None
