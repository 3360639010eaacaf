"""Weights of a checkpoint into the packed matrices of a model, slice by slice: q, k, v as one matrix, gate and up too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain

import numpy as np

from queueproof.arithmetic.rope import rope_table
from queueproof.contract.errors import ModelError
from queueproof.kernels.ops import F32, QUANT_BLOCK, QUANT_SCALES, U8, BlockPacker, Matrix, Packer, Quantised, Vector
from queueproof.models import registry
from queueproof.models.config import ModelConfig
from queueproof.models.decoder import Decoder, DecoderWeights, Layer
from queueproof.models.weights.expected import EMBEDDING, HEAD, NORM, layer_prefix
from queueproof.models.weights.source import WeightSource

Progress = Callable[[str, int, int], None]  # what is being done, how far, of how much


def assemble(
    config: ModelConfig, weights: WeightSource, packer: Packer, max_len: int, progress: Progress | None = None
) -> Decoder:
    """The model, ready for an executor. The weights have been checked (weights/expected.py).

    max_len: positions 0 … max_len - 1 get rotary tables. Raises what rope_table and the packer raise.
    """
    pack = _Pack(weights, packer)
    total = config.num_layers + 2
    report = progress or _no_progress
    report("loading weights", 0, total)
    embedding = pack.matrix(EMBEDDING)
    layers = []
    for index in range(config.num_layers):
        report("loading weights", index + 1, total)
        layers.append(_layer(config, pack, index))
    report("loading weights", total - 1, total)
    head = embedding if config.tie_word_embeddings else pack.matrix(HEAD)
    rope = packer.rope(*rope_table(config.head_dim, config.rope_theta, max_len, config.rope_scaling))
    model = registry.BY_FAMILY[config.family]
    decoder = model(config, DecoderWeights(embedding, tuple(layers), pack.vector(NORM), head, rope))
    report("loading weights", total, total)
    return decoder


def _layer(c: ModelConfig, pack: _Pack, index: int) -> Layer:
    attention, mlp = layer_prefix(index) + "self_attn.", layer_prefix(index) + "mlp."
    qkv = [f"{attention}{name}_proj" for name in "qkv"]
    return Layer(
        input_norm=pack.vector(layer_prefix(index) + "input_layernorm.weight"),
        qkv=pack.projection(qkv, c.qkv_bias),
        o=pack.projection([attention + "o_proj"], c.o_bias),
        post_norm=pack.vector(layer_prefix(index) + "post_attention_layernorm.weight"),
        gate_up=pack.projection([mlp + "gate_proj", mlp + "up_proj"], c.mlp_bias),
        down=pack.projection([mlp + "down_proj"], c.mlp_bias),
        q_norm=pack.vector(attention + "q_norm.weight") if c.qk_norm else None,
        k_norm=pack.vector(attention + "k_norm.weight") if c.qk_norm else None,
        window=c.windows[index],
    )


class _Pack:
    """Hands tensors to a packer."""

    def __init__(self, weights: WeightSource, packer: Packer) -> None:
        self._weights, self._packer = weights, packer

    def vector(self, name: str) -> Vector:
        return self._packer.vector(self._weights.vector(name))

    def projection(self, names: list[str], bias: bool) -> Matrix:
        values = np.concatenate([self._weights.vector(f"{n}.bias") for n in names]) if bias else None
        return self.matrix(*(f"{n}.weight" for n in names), bias=values)

    def matrix(self, *names: str, bias: F32 | None = None) -> Matrix:
        """The rows of all of them, one after another, never more than a slice at a time."""
        rows = sum(self._weights.shape(name)[0] for name in names)
        k, packer = self._weights.shape(names[0])[1], self._packer
        if isinstance(packer, BlockPacker):
            kinds = {self._weights.kind(name) for name in names}
            kind = next((kind for kind in packer.kept if kinds == {kind}), None)
            if kind is not None:
                stored = chain.from_iterable(self._stored(name, kind) for name in names)
                return packer.blocks(rows, k, kind, stored, bias)
        slices = chain.from_iterable(self._weights.row_slices(name) for name in names)
        return packer.matrix(rows, k, slices, bias)

    def _stored(self, name: str, kind: Quantised) -> Iterator[U8]:
        """Raises ModelError for a scale that is no number: its products would have no defined rounding."""
        for rows in self._weights.raw_slices(name):
            blocks = rows.reshape(rows.shape[0], self._weights.shape(name)[1] // QUANT_BLOCK, -1)
            scales = np.ascontiguousarray(blocks[:, :, : 2 * QUANT_SCALES[kind]]).view("<f2")
            if not np.isfinite(scales).all():
                raise ModelError(f"{name} holds a {kind} scale that is infinite or NaN; get the file again")
            yield rows


def _no_progress(what: str, done: int, total: int) -> None:
    """Nobody asked to be told."""
