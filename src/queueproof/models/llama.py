"""Llama: SmolLM2, Llama 2 and 3 (`llama3` rotary scaling included), TinyLlama and others of that architecture."""

from __future__ import annotations

from typing import ClassVar

from queueproof.models.config import Family, Variant
from queueproof.models.decoder import Decoder
from queueproof.models.fields import Fields


class Llama(Decoder):
    """The plain decoder; `attention_bias` and `mlp_bias` add biases to every projection they name."""

    family: ClassVar[Family] = "llama"
    architectures: ClassVar[tuple[str, ...]] = ("LlamaForCausalLM",)
    gguf_architecture: ClassVar[str] = "llama"
    kv_heads_default_to_heads: ClassVar[bool] = True

    @classmethod
    def variant(cls, config: Fields, num_layers: int) -> Variant:
        attention_bias = config.flag("attention_bias", False)
        return Variant(
            windows=(None,) * num_layers,
            qkv_bias=attention_bias,
            o_bias=attention_bias,
            mlp_bias=config.flag("mlp_bias", False),
        )
