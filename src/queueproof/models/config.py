"""What a model is, apart from its weights: one frozen object, read from a config.json or from GGUF metadata."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from queueproof.arithmetic.rope import RopeScaling
from queueproof.contract.errors import ModelError, UnsupportedModel
from queueproof.kernels.ops import Dtype

MOST_LAYERS = 1 << 12  # of any model that fits in a machine; a damaged file may say 2^32
MOST_HEAD_DIM = 1 << 12
MOST_POSITIONS = 1 << 24

Family = Literal["llama", "mistral", "qwen2", "qwen3"]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Everything about a model that the arithmetic or the engine depends on.

    windows: for each layer the number of keys it sees (sliding window), or None for all of them.
    dtype: the 16-bit type of its matrices, activations that enter them, keys and values.
    eos_ids: every token that ends an answer; empty if the model names none.
    Raises ModelError for numbers that contradict each other.
    """

    family: Family
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    max_position: int
    tie_word_embeddings: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool
    windows: tuple[int | None, ...]
    dtype: Dtype
    bos_id: int | None
    eos_ids: tuple[int, ...]
    pad_id: int | None

    def __post_init__(self) -> None:
        for name in (
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_layers",
            "num_heads",
            "num_kv_heads",
            "head_dim",
            "max_position",
        ):
            if getattr(self, name) < 1:
                raise ModelError(f"the model's {name} is {getattr(self, name)}; it must be at least 1")
        for name, most in (("head_dim", MOST_HEAD_DIM), ("max_position", MOST_POSITIONS)):
            if getattr(self, name) > most:
                raise ModelError(f"the model's {name} is {getattr(self, name)}; it must be at most {most}")
        if self.num_heads % self.num_kv_heads:
            raise ModelError(
                f"the model has {self.num_heads} query heads for {self.num_kv_heads} key/value heads; "
                "the first must be a multiple of the second"
            )
        if self.head_dim % 2:
            raise UnsupportedModel(f"head_dim={self.head_dim} is odd; rotary embeddings need an even one")
        if not self.rms_eps >= 0:
            raise ModelError(f"the model's rms_eps is {self.rms_eps}; it must be 0 or more")
        if not self.rope_theta > 0:
            raise ModelError(f"the model's rope_theta is {self.rope_theta}; it must be above 0")
        if len(self.windows) != self.num_layers:
            raise ModelError(f"the model has {self.num_layers} layers and {len(self.windows)} attention windows")
        for window in self.windows:
            if window is not None and window < 1:
                raise ModelError(f"a sliding window of {window} keys; it must be at least 1")
        for name, token in (("bos", self.bos_id), ("pad", self.pad_id), *(("eos", t) for t in self.eos_ids)):
            if token is not None and not 0 <= token < self.vocab_size:
                raise ModelError(f"the {name} token {token} is outside the vocabulary of {self.vocab_size}")

    @property
    def trunk_weights(self) -> int:
        """Values in the matrices of all layers: what each token is multiplied by."""
        q, kv = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        return self.num_layers * self.hidden_size * (2 * q + 2 * kv + 3 * self.intermediate_size)

    @property
    def head_weights(self) -> int:
        """Values of the matrix that gives the logits."""
        return self.hidden_size * self.vocab_size


@dataclass(frozen=True, slots=True)
class Variant:
    """What the members of the Llama family do differently, as read from one model's own fields."""

    windows: tuple[int | None, ...]
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
