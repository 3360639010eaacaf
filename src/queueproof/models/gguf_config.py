"""GGUF metadata into a ModelConfig.

Every field of the architecture must be known: one that is not could change the result, so it is refused by name.
Stop tokens are the metadata's eos, eot and eom; names of tokens are not guessed at.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from queueproof.arithmetic.rope import RopeScaling, inverse_frequencies
from queueproof.contract.errors import ModelError, UnsupportedModel
from queueproof.kernels.ops import F32, Dtype
from queueproof.models import registry
from queueproof.models.config import MOST_HEAD_DIM, MOST_LAYERS, Family, ModelConfig
from queueproof.models.fields import Fields
from queueproof.models.weights.gguf import ROPE_FACTORS, stored_tensor
from queueproof.models.weights.gguf_file import GgufFile
from queueproof.models.weights.source import StoredWeights

DEFAULT_THETA: Final = 10000.0
READ: Final = frozenset(
    {
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "attention.layer_norm_rms_epsilon",
        "attention.sliding_window",
        "rope.dimension_count",
        "rope.freq_base",
        "rope.scaling.type",
        "rope.scaling.factor",
    }
)
# Written by converters, without effect on these models (the original length belongs to scalings that are refused).
WITHOUT_EFFECT: Final = frozenset({"vocab_size", "tensor_data_layout", "rope.scaling.original_context_length"})
# Accepted with this value only.
NEUTRAL: Final[dict[str, Any]] = {
    "expert_count": 0,
    "expert_used_count": 0,
    "attention.causal": True,
    "use_parallel_residual": False,
    "logit_scale": 1.0,
    "rope.scaling.finetuned": False,
    "rope.scaling.attn_factor": 1.0,
}
# Llama 3.1 to 3.3 as published; GGUF keeps only the resulting factor of each frequency.
LLAMA3_LOW, LLAMA3_HIGH, LLAMA3_ORIGINAL = 1.0, 4.0, 8192
FACTOR_TOLERANCE: Final = 1e-4  # the converter computes the factors in f32


def gguf_head_dim(gguf: GgufFile) -> int:
    f = _architecture_fields(gguf)
    heads = f.integer("attention.head_count")
    if heads < 1:
        raise ModelError(f"{f.source}: attention.head_count is {heads}; it must be at least 1")
    head_dim = f.integer("attention.key_length", f.integer("embedding_length") // heads)
    if not 1 <= head_dim <= MOST_HEAD_DIM:
        raise ModelError(f"{f.source}: the head size is {head_dim}; it must be from 1 to {MOST_HEAD_DIM}")
    return head_dim


def from_gguf(gguf: GgufFile, dtype: Dtype) -> ModelConfig:
    """The model that a file describes. Raises UnsupportedModel (named and with what is supported) and ModelError."""
    name = gguf.metadata.text("general.architecture")
    model = registry.for_gguf(name, gguf.metadata.source)
    f = _architecture_fields(gguf)
    _refuse_unknown(f)
    layers = f.count("block_count", MOST_LAYERS)
    head_dim = gguf_head_dim(gguf)
    for field in ("attention.value_length", "rope.dimension_count"):
        if f.integer(field, head_dim) != head_dim:
            raise UnsupportedModel(
                f"{f.source}: {field} differs from the head size {head_dim}; only equal is supported"
            )
    theta = _shortest(f.number("rope.freq_base", DEFAULT_THETA))
    family, window = _family_and_window(model.family, f)
    if "token_embd.weight" not in gguf.tensors:
        raise ModelError(f"{f.source}: the tensor 'token_embd.weight' is missing; get the file again")
    tokens = gguf.metadata
    return ModelConfig(
        family=family,
        vocab_size=gguf.tensors["token_embd.weight"].shape[0],
        hidden_size=f.integer("embedding_length"),
        intermediate_size=f.integer("feed_forward_length"),
        num_layers=layers,
        num_heads=f.integer("attention.head_count"),
        num_kv_heads=f.integer("attention.head_count_kv", f.integer("attention.head_count")),
        head_dim=head_dim,
        rms_eps=_shortest(f.number("attention.layer_norm_rms_epsilon")),
        rope_theta=theta,
        rope_scaling=_scaling(gguf, f, head_dim, theta),
        max_position=f.integer("context_length"),
        tie_word_embeddings="output.weight" not in gguf.tensors,
        qkv_bias="blk.0.attn_q.bias" in gguf.tensors,
        o_bias="blk.0.attn_output.bias" in gguf.tensors,
        mlp_bias="blk.0.ffn_gate.bias" in gguf.tensors,
        qk_norm=family == "qwen3",
        windows=(window,) * layers,
        dtype=dtype,
        bos_id=_token(tokens, "bos"),
        eos_ids=tuple(dict.fromkeys(t for kind in ("eos", "eot", "eom") if (t := _token(tokens, kind)) is not None)),
        pad_id=_token(tokens, "padding"),
    )


def _architecture_fields(gguf: GgufFile) -> Fields:
    prefix = gguf.metadata.text("general.architecture") + "."
    values = {key.removeprefix(prefix): v for key, v in gguf.metadata.items() if key.startswith(prefix)}
    return Fields(values, gguf.metadata.source)


def _refuse_unknown(f: Fields) -> None:
    for key, value in f.items():
        if key in READ or key in WITHOUT_EFFECT or (key in NEUTRAL and value == NEUTRAL[key]):
            continue
        shown = repr(value) if len(repr(value)) <= 60 else repr(value)[:57] + "..."
        only = f"only {NEUTRAL[key]!r} is" if key in NEUTRAL else "the models read here do not have it"
        raise UnsupportedModel(f"{f.source}: {key}={shown} is not supported; {only}")


def _family_and_window(family: Family, f: Fields) -> tuple[Family, int | None]:
    """GGUF stores Mistral as "llama"; a window in the metadata makes the difference. llama.cpp does not write one."""
    window = f.integer("attention.sliding_window", 0)
    if window == 0:
        return family, None
    if family != "llama":
        raise UnsupportedModel(
            f"{f.source}: attention.sliding_window={window} does not say which layers it is for; "
            "use the safetensors of this model"
        )
    return "mistral", window


def _scaling(gguf: GgufFile, f: Fields, head_dim: int, theta: float) -> RopeScaling | None:
    kind = f.text("rope.scaling.type", "none")
    if kind not in ("none", "linear"):
        raise UnsupportedModel(f"{f.source}: rope.scaling.type={kind!r} is not supported; none and linear are")
    factors = gguf.tensors.get(ROPE_FACTORS)
    if kind == "linear":
        if factors is not None:
            raise UnsupportedModel(f"{f.source}: {ROPE_FACTORS} together with linear scaling is not supported")
        return RopeScaling("linear", _shortest(f.number("rope.scaling.factor")))
    if factors is None:
        return None
    if factors.shape != (head_dim // 2,):
        raise ModelError(f"{f.source}: {ROPE_FACTORS} has the shape {list(factors.shape)}, expected [{head_dim // 2}]")
    stored = StoredWeights({ROPE_FACTORS: stored_tensor(gguf, factors)}, "auto").vector(ROPE_FACTORS)
    return _llama3_scaling(stored, head_dim, theta, f.source)


def _llama3_scaling(factors: F32, head_dim: int, theta: float, source: str) -> RopeScaling:
    """The `llama3` parameters whose factors these are, so that GGUF and config.json give one table."""
    guess = RopeScaling("llama3", round(float(factors.max()), 3), LLAMA3_LOW, LLAMA3_HIGH, LLAMA3_ORIGINAL)
    plain, scaled = inverse_frequencies(head_dim, theta, None), inverse_frequencies(head_dim, theta, guess)
    if factors.shape != plain.shape or not np.allclose(plain / scaled, factors, rtol=FACTOR_TOLERANCE, atol=0):
        raise UnsupportedModel(
            f"{source}: the factors of {ROPE_FACTORS} are not those of Llama 3.1's scaling "
            f"(low_freq_factor {LLAMA3_LOW}, high_freq_factor {LLAMA3_HIGH}, "
            f"original_max_position_embeddings {LLAMA3_ORIGINAL}); use the safetensors of this model"
        )
    return guess


def _token(metadata: Fields, kind: str) -> int | None:
    key = f"tokenizer.ggml.{kind}_token_id"
    return metadata.integer(key) if key in metadata else None


def _shortest(value: float) -> float:
    """The shortest decimal that is this f32: GGUF keeps f32 of what config.json has in decimal (1e-05)."""
    return float(str(np.float32(value)))
