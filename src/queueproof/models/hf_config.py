"""config.json and generation_config.json of a Hugging Face folder into a ModelConfig.

Both spellings of the rotary fields are read: `rope_theta` with `rope_scaling`, and `rope_parameters` (transformers 5).
Fields that the model code does not read are left alone; those that would change the result and are not implemented
are refused by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from queueproof.arithmetic.rope import RopeScaling
from queueproof.contract.errors import InvalidParameter, UnsupportedModel
from queueproof.kernels.ops import Dtype
from queueproof.models import registry
from queueproof.models.config import MOST_LAYERS, ModelConfig
from queueproof.models.fields import Fields, read_json

DEFAULT_THETA = 10000.0  # of configs older than the field

# Fields that change the result where they differ from the value given here (null is always accepted).
NEUTRAL: dict[str, Any] = {
    "quantization_config": None,
    "compression_config": None,
    "partial_rotary_factor": 1.0,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "logit_scale": 1.0,
    "logits_scaling": 1.0,
    "embedding_multiplier": 1.0,
    "residual_multiplier": 1.0,
    "attention_multiplier": None,
    "query_pre_attn_scalar": None,
    "attention_sink": None,
    "clip_qkv": None,
    "rope_interleaved": False,
    "num_local_experts": 0,
    "num_experts": 0,
    "n_routed_experts": 0,
    "num_nextn_predict_layers": 0,
    "use_parallel_residual": False,
    "is_encoder_decoder": False,
    "no_rope_layers": None,
    "hidden_act": "silu",
    "hidden_activation": "silu",
}


@dataclass(frozen=True, slots=True)
class HfConfigFiles:
    config: Fields
    generation: Fields | None


def read_files(folder: Path) -> HfConfigFiles:
    """Raises ModelError if config.json is missing or either file is not a JSON object."""
    generation = folder / "generation_config.json"
    return HfConfigFiles(read_json(folder / "config.json"), read_json(generation) if generation.is_file() else None)


def from_hf(files: HfConfigFiles, dtype: Dtype) -> ModelConfig:
    """The model that a folder describes. Raises UnsupportedModel (named and with what is supported) and ModelError."""
    config = files.config
    names = config.texts("architectures")
    if len(names) != 1:
        raise UnsupportedModel(f"{config.source}: architectures is {names}; exactly one is supported")
    model = registry.for_architecture(names[0], config.source)
    _refuse_unsupported(config)
    layers = config.count("num_hidden_layers", MOST_LAYERS)
    heads = config.integer("num_attention_heads")
    hidden = config.integer("hidden_size")
    max_position = config.integer("max_position_embeddings")
    variant = model.variant(config, layers)
    theta, scaling = _rope(config, max_position)
    generation = files.generation or Fields({}, config.source)
    bos = config.ids("bos_token_id") or generation.ids("bos_token_id")
    pad = config.ids("pad_token_id") or generation.ids("pad_token_id")
    return ModelConfig(
        family=model.family,
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=config.integer("intermediate_size"),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=config.integer("num_key_value_heads", heads if model.kv_heads_default_to_heads else None),
        head_dim=config.integer("head_dim", hidden // heads if heads > 0 else None),
        rms_eps=config.number("rms_norm_eps"),
        rope_theta=theta,
        rope_scaling=scaling,
        max_position=max_position,
        tie_word_embeddings=config.flag("tie_word_embeddings", False),
        qkv_bias=variant.qkv_bias,
        o_bias=variant.o_bias,
        mlp_bias=variant.mlp_bias,
        qk_norm=variant.qk_norm,
        windows=variant.windows,
        dtype=dtype,
        bos_id=bos[0] if bos else None,
        # Generation stops where generation_config.json says; config.json speaks for models without one.
        eos_ids=generation.ids("eos_token_id") or config.ids("eos_token_id"),
        # transformers writes -1 where a model has no padding token
        pad_id=pad[0] if pad and pad[0] >= 0 else None,
    )


def _refuse_unsupported(config: Fields) -> None:
    for name, neutral in NEUTRAL.items():
        value = config.raw(name)
        if value is not None and value != neutral:
            wanted = "leaving it out" if neutral is None else repr(neutral)
            raise UnsupportedModel(
                f"{config.source}: {name}={_short(value)} is not supported, only {wanted}; "
                "use a model without it (for quantised weights: the 16-bit checkpoint or a GGUF)"
            )


def _rope(config: Fields, max_position: int) -> tuple[float, RopeScaling | None]:
    """(theta, scaling) from either spelling. `rope_parameters` wins, as in transformers 5."""
    name = "rope_parameters" if "rope_parameters" in config else "rope_scaling"
    rope = config.mapping(name)
    theta = rope.number("rope_theta", config.number("rope_theta", DEFAULT_THETA))
    if rope.number("partial_rotary_factor", 1.0) != 1.0:
        raise UnsupportedModel(f"{rope.source}: partial_rotary_factor is not supported, only whole heads are rotated")
    for layer_type in ("full_attention", "sliding_attention"):
        if layer_type in rope:
            raise UnsupportedModel(f"{rope.source}: rotary parameters per layer type are not supported")
    kind = rope.text("rope_type", rope.text("type", "default"))
    if kind == "default":
        return theta, None
    try:
        if kind == "linear":
            return theta, RopeScaling("linear", rope.number("factor"))
        if kind == "llama3":
            original = rope.integer("original_max_position_embeddings", max_position)
            low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
            return theta, RopeScaling("llama3", rope.number("factor"), low, high, original)
    except InvalidParameter as e:
        raise UnsupportedModel(f"{rope.source}: {e}") from e
    raise UnsupportedModel(f"{rope.source}: rope type {kind!r} is not supported; default, linear and llama3 are")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
