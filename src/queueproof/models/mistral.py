"""Mistral 7B and its kin: Llama with a sliding window over the keys of every layer."""

from __future__ import annotations

from typing import ClassVar

from queueproof.contract.errors import UnsupportedModel
from queueproof.kernels.ops import Act, Ops
from queueproof.models.config import Family, Variant
from queueproof.models.decoder import Decoder, Layer
from queueproof.models.fields import Fields

HF_DEFAULT_WINDOW = 4096  # what transformers assumes where config.json has no `sliding_window` at all


class Mistral(Decoder):
    """`sliding_window`: null means every key is seen."""

    family: ClassVar[Family] = "mistral"
    architectures: ClassVar[tuple[str, ...]] = ("MistralForCausalLM",)
    gguf_architecture: ClassVar[str] = "llama"  # GGUF has no name of its own for it

    @classmethod
    def variant(cls, config: Fields, num_layers: int) -> Variant:
        if "layer_types" in config:
            raise UnsupportedModel(
                f"{config.source}: layer_types in a Mistral model (alternating attention); "
                "only one sliding_window for all layers is supported"
            )
        window: int | None = HF_DEFAULT_WINDOW
        if config.has_key("sliding_window"):
            window = config.integer("sliding_window") if "sliding_window" in config else None
        return Variant(windows=(window,) * num_layers)

    def attend(self, ops: Ops, index: int, layer: Layer, x: Act) -> Act:
        heads = self.config.num_heads
        qkv = ops.linear(x, layer.qkv)
        q = ops.rope_and_cache(qkv, self.weights.rope, index, heads)
        return ops.attention(q, index, heads, window=layer.window)
