"""Qwen2 and Qwen2.5: biases on q, k and v, and a sliding window on some layers where the config switches it on."""

from __future__ import annotations

from typing import ClassVar

from queueproof.contract.errors import ModelError, UnsupportedModel
from queueproof.kernels.ops import Act, Ops
from queueproof.models.config import Family, Variant
from queueproof.models.decoder import Decoder, Layer
from queueproof.models.fields import Fields

DEFAULT_WINDOW, DEFAULT_MAX_WINDOW_LAYERS = 4096, 28  # transformers' values for fields that are left out


def qwen_windows(config: Fields, num_layers: int) -> tuple[int | None, ...]:
    """The window of each layer: from `layer_types`, else the layers from `max_window_layers` on."""
    window: int | None = None
    if config.flag("use_sliding_window", False) and not (
        config.has_key("sliding_window") and "sliding_window" not in config
    ):
        window = config.integer("sliding_window", DEFAULT_WINDOW)
    if "layer_types" in config:
        kinds = config.texts("layer_types")
        if len(kinds) != num_layers:
            raise ModelError(f"{config.source}: {len(kinds)} layer_types for {num_layers} layers")
        unknown = sorted(set(kinds) - {"full_attention", "sliding_attention"})
        if unknown:
            raise UnsupportedModel(
                f"{config.source}: layer type {unknown[0]!r}; supported are full_attention and sliding_attention"
            )
        if window is None and "sliding_attention" in kinds:
            raise ModelError(f"{config.source}: layers with sliding_attention, but use_sliding_window is off")
        return tuple(window if kind == "sliding_attention" else None for kind in kinds)
    first = config.integer("max_window_layers", DEFAULT_MAX_WINDOW_LAYERS)
    return tuple(window if index >= first else None for index in range(num_layers))


class Qwen2(Decoder):
    family: ClassVar[Family] = "qwen2"
    architectures: ClassVar[tuple[str, ...]] = ("Qwen2ForCausalLM",)
    gguf_architecture: ClassVar[str] = "qwen2"

    @classmethod
    def variant(cls, config: Fields, num_layers: int) -> Variant:
        return Variant(windows=qwen_windows(config, num_layers), qkv_bias=True)

    def attend(self, ops: Ops, index: int, layer: Layer, x: Act) -> Act:
        heads = self.config.num_heads
        qkv = ops.linear(x, layer.qkv)
        q = ops.rope_and_cache(qkv, self.weights.rope, index, heads)
        return ops.attention(q, index, heads, window=layer.window)
