"""The forward pass that the whole Llama family shares (docs/arithmetic.md, section 5), written over kernels/ops.

A family's own file overrides `attend` where its attention differs, and says how its config is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from queueproof.kernels.ops import Act, Dtype, KVShape, Matrix, Ops, RopeTable, Vector
from queueproof.models.config import Family, ModelConfig, Variant
from queueproof.models.fields import Fields


@dataclass(frozen=True, slots=True)
class Layer:
    """Packed weights of one layer. `window` is its sliding window in keys, or None."""

    input_norm: Vector
    qkv: Matrix  # rows of q, then k, then v
    o: Matrix
    post_norm: Vector
    gate_up: Matrix  # rows of gate, then up
    down: Matrix
    q_norm: Vector | None
    k_norm: Vector | None
    window: int | None


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """All packed weights. With a tied head, `head` is the same object as `embedding`."""

    embedding: Matrix
    layers: tuple[Layer, ...]
    norm: Vector
    head: Matrix
    rope: RopeTable


class Decoder:
    """A ForwardModel of pre-norm layers: attention and gated MLP, each added to an f32 residual stream."""

    family: ClassVar[Family]
    architectures: ClassVar[tuple[str, ...]]  # names in config.json
    gguf_architecture: ClassVar[str]
    kv_heads_default_to_heads: ClassVar[bool] = False  # where config.json may leave num_key_value_heads out

    @classmethod
    def variant(cls, config: Fields, num_layers: int) -> Variant:
        """Reads what only this family has from its config.json. Raises UnsupportedModel or ModelError."""
        raise NotImplementedError

    def __init__(self, config: ModelConfig, weights: DecoderWeights) -> None:
        self.config, self.weights = config, weights
        self.dtype: Dtype = config.dtype
        self.vocab_size = config.vocab_size
        self.kv_shape = KVShape(config.num_layers, config.num_kv_heads, config.head_dim)

    @property
    def bytes_per_weight(self) -> float:
        """In memory, on average over the matrices that a step reads whole: those of the layers, and the head."""
        layers = [m for layer in self.weights.layers for m in (layer.qkv, layer.o, layer.gate_up, layer.down)]
        count = self.config.trunk_weights + self.config.head_weights
        return float(sum(m.nbytes for m in (*layers, self.weights.head)) / count)

    def trunk(self, ops: Ops) -> Act:
        """f32 [T, H]: the residual stream after the last layer."""
        eps = self.config.rms_eps
        h = ops.embed(self.weights.embedding)
        delta: Act | None = None
        for index, layer in enumerate(self.weights.layers):
            x = ops.rms_norm(h, layer.input_norm, eps, delta)
            x = self.attend(ops, index, layer, x)
            delta = ops.linear(x, layer.o)
            x = ops.rms_norm(h, layer.post_norm, eps, delta)
            x = ops.gated_linear(x, layer.gate_up)
            delta = ops.linear(x, layer.down)
        return ops.add(h, delta)

    def attend(self, ops: Ops, index: int, layer: Layer, x: Act) -> Act:
        """[T, heads * D], ready for the output projection."""
        heads = self.config.num_heads
        qkv = ops.linear(x, layer.qkv)
        q = ops.rope_and_cache(qkv, self.weights.rope, index, heads)
        return ops.attention(q, index, heads)

    def head(self, ops: Ops, h: Act) -> Act:
        """f32 [R, V]: logits of the rows that were asked for."""
        rows = ops.take_logit_rows(h)
        x = ops.rms_norm(rows, self.weights.norm, self.config.rms_eps)
        return ops.linear(x, self.weights.head)
