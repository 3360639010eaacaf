"""config.json: both spellings of the rotary fields, and a typed error for whatever would change the result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from queueproof.arithmetic.rope import RopeScaling
from queueproof.contract.errors import ModelError, QueueproofError, UnsupportedModel
from queueproof.models.config import ModelConfig
from queueproof.models.hf_config import from_hf, read_files
from tests.support.checkpoints import LLAMA3_ROPE, checkpoint


def parse(
    tmp_path: Path, family: str = "llama", generation: dict[str, Any] | None = None, **config: Any
) -> ModelConfig:
    base = checkpoint(family).config | config
    (tmp_path / "config.json").write_text(json.dumps({k: v for k, v in base.items() if v != "absent"}))
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    return from_hf(read_files(tmp_path), "bfloat16")


LLAMA3 = RopeScaling("llama3", 8.0, 1.0, 4.0, 8192)


@pytest.mark.parametrize(
    "config, theta, scaling",
    [
        ({"rope_theta": 5e5}, 5e5, None),
        ({"rope_theta": "absent"}, 1e4, None),
        ({"rope_theta": "absent", "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, 1e6, None),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, 1e4, RopeScaling("linear", 2.0)),
        ({"rope_scaling": LLAMA3_ROPE}, 1e4, LLAMA3),
        ({"rope_theta": "absent", "rope_parameters": LLAMA3_ROPE | {"rope_theta": 5e5}}, 5e5, LLAMA3),
        ({"rope_scaling": {"rope_type": "default"}}, 1e4, None),
    ],
)
def test_rotary_fields(config: dict[str, Any], theta: float, scaling: RopeScaling | None, tmp_path: Path) -> None:
    parsed = parse(tmp_path, **config)
    assert (parsed.rope_theta, parsed.rope_scaling) == (theta, scaling)


@pytest.mark.parametrize(
    "family, config, windows",
    [
        ("llama", {}, (None, None)),
        ("mistral", {"sliding_window": 24}, (24, 24)),
        ("mistral", {"sliding_window": None}, (None, None)),
        ("mistral", {"sliding_window": "absent"}, (4096, 4096)),
        ("qwen2", {"sliding_window": 24, "max_window_layers": 1}, (None, None)),
        ("qwen2", {"sliding_window": 24, "max_window_layers": 1, "use_sliding_window": True}, (None, 24)),
        ("qwen2", {"sliding_window": None, "max_window_layers": 0, "use_sliding_window": True}, (None, None)),
        (
            "qwen3",
            {
                "sliding_window": 24,
                "use_sliding_window": True,
                "layer_types": ["sliding_attention", "full_attention"],
            },
            (24, None),
        ),
    ],
)
def test_sliding_windows(family: str, config: dict[str, Any], windows: tuple[int | None, ...], tmp_path: Path) -> None:
    assert parse(tmp_path, family, **config).windows == windows


def test_head_size_and_heads_have_their_defaults(tmp_path: Path) -> None:
    config = parse(tmp_path, head_dim="absent", num_key_value_heads="absent")
    assert (config.head_dim, config.num_kv_heads) == (16, 4)


def test_the_generation_config_says_where_answers_end(tmp_path: Path) -> None:
    assert parse(tmp_path, eos_token_id=[2, 0]).eos_ids == (2, 0)
    assert parse(tmp_path, generation={"eos_token_id": [1, 2]}).eos_ids == (1, 2)
    assert parse(tmp_path, generation={}, eos_token_id="absent").eos_ids == ()


UNSUPPORTED: list[tuple[dict[str, Any], str]] = [
    ({"architectures": ["GemmaForCausalLM"]}, "'GemmaForCausalLM' is not supported; supported are LlamaForCausalLM"),
    ({"architectures": ["MixtralForCausalLM"]}, "MixtralForCausalLM"),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "'yarn' is not supported; default, linear and llama3"),
    ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "dynamic"),
    ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
    ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "per layer type"),
    ({"rope_scaling": LLAMA3_ROPE | {"high_freq_factor": 1.0}}, "high_freq_factor"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
    ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
    ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
    ({"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
    ({"hidden_act": "gelu"}, "hidden_act='gelu' is not supported, only 'silu'"),
    ({"num_local_experts": 8}, "num_local_experts=8"),
    ({"head_dim": 15}, "odd"),
]


@pytest.mark.parametrize("config, message", UNSUPPORTED, ids=lambda v: v if isinstance(v, str) else "")
def test_unsupported(config: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        parse(tmp_path, **config)


def test_unsupported_in_one_family(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="layer_types in a Mistral"):
        parse(tmp_path, "mistral", layer_types=["full_attention"] * 2)
    with pytest.raises(UnsupportedModel, match="chunked_attention"):
        parse(tmp_path, "qwen2", layer_types=["chunked_attention"] * 2)


MALFORMED: list[tuple[dict[str, Any], str]] = [
    ({"hidden_size": "absent"}, "'hidden_size' is missing"),
    ({"hidden_size": "64"}, "hidden_size is '64', expected an integer"),
    ({"hidden_size": True}, "expected an integer"),
    ({"rms_norm_eps": "absent"}, "'rms_norm_eps' is missing"),
    ({"rms_norm_eps": -1.0}, "rms_eps"),
    ({"tie_word_embeddings": "yes"}, "true or false"),
    ({"architectures": "LlamaForCausalLM"}, "expected a list of strings"),
    ({"eos_token_id": "2"}, "a token id or a list"),
    ({"eos_token_id": 1000}, "outside the vocabulary"),
    ({"num_key_value_heads": 3}, "multiple"),
    ({"rope_theta": 0}, "rope_theta"),
    ({"rope_scaling": [1]}, "expected an object"),
]


@pytest.mark.parametrize("config, message", MALFORMED, ids=lambda v: v if isinstance(v, str) else "")
def test_malformed(config: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=message):
        parse(tmp_path, **config)


@pytest.mark.parametrize("text", ["", "{", "[]", "\xff"])
def test_a_file_that_is_no_object(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ModelError, match="config.json"):
        read_files(tmp_path)


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(QueueproofError, match="config.json does not exist"):
        read_files(tmp_path)
