"""Qwen3 (dense): each head of q and k is RMS-normed before the rotation; no biases by default."""

from __future__ import annotations

from typing import ClassVar

from queueproof.kernels.ops import Act, Ops
from queueproof.models.config import Family, Variant
from queueproof.models.decoder import Decoder, Layer
from queueproof.models.fields import Fields
from queueproof.models.qwen2 import qwen_windows


class Qwen3(Decoder):
    family: ClassVar[Family] = "qwen3"
    architectures: ClassVar[tuple[str, ...]] = ("Qwen3ForCausalLM",)
    gguf_architecture: ClassVar[str] = "qwen3"

    @classmethod
    def variant(cls, config: Fields, num_layers: int) -> Variant:
        bias = config.flag("attention_bias", False)
        return Variant(windows=qwen_windows(config, num_layers), qkv_bias=bias, o_bias=bias, qk_norm=True)

    def attend(self, ops: Ops, index: int, layer: Layer, x: Act) -> Act:
        heads = self.config.num_heads
        qkv = ops.linear(x, layer.qkv)
        q = ops.rope_and_cache(
            qkv, self.weights.rope, index, heads, q_norm=layer.q_norm, k_norm=layer.k_norm, eps=self.config.rms_eps
        )
        return ops.attention(q, index, heads, window=layer.window)
