"""The oracle of `tensorcore/1` as a backend: of what a card of a family computes, everything but its `exp2`."""

from __future__ import annotations

from typing import Any

from queueproof.arithmetic.oracle.backend import Matrix, OracleBackend, OracleExecutor, OracleOps
from queueproof.arithmetic.oracle.numbers import F32, I32
from queueproof.arithmetic.oracle.rows import OracleRows
from queueproof.arithmetic.oracle.tensorcore import layers, sampling
from queueproof.arithmetic.oracle.tensorcore.attention import Unit, attention
from queueproof.arithmetic.oracle.tensorcore.numbers import Exp2, exp2
from queueproof.arithmetic.tensorcore1 import FAMILIES, NAME


class TensorcoreOps(OracleOps):
    def __init__(self, model: Any, limits: Any, unit: Unit) -> None:
        super().__init__(model, limits)
        self._unit = unit

    def norm(self, x: F32, weight: F32, eps: float) -> F32:
        return layers.norm(x, weight, eps)

    def linear(self, x: F32, w: Matrix) -> F32:
        product = layers.linear if self.logit_rows is None else layers.logits
        return product(x, w.weight, w.bias, self._unit.family, self._dtype)

    def attend(self, q: F32, k: F32, v: F32, positions: I32, window: int | None) -> F32:
        return attention(q, k, v, positions, window, self._unit)


class TensorcoreRows(OracleRows):
    def stats(self, logits: F32) -> tuple[I32, F32, F32]:
        return sampling.stats(logits)

    def sample(
        self, row: F32, temperature: float, top_k: int, top_p: float, min_p: float, seed: int, position: int
    ) -> int:
        return sampling.sample(row, temperature, top_k, top_p, min_p, seed, position)


class OracleTensorcoreBackend(OracleBackend):
    arithmetic = NAME

    def __init__(self, family: str = "sm90", exp2: Exp2 = exp2) -> None:
        """family: a name of `tensorcore1.FAMILIES`. exp2: the card's, of f32 values of any shape."""
        self.family = family
        self._family, self._exp2 = FAMILIES[family], exp2

    def rows(self, threads: int) -> TensorcoreRows:
        return TensorcoreRows()

    def executor(self, model: Any, limits: Any, threads: int) -> OracleExecutor:
        return OracleExecutor(model, limits, TensorcoreOps(model, limits, Unit(self._family, model.dtype, self._exp2)))
