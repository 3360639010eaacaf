"""Tiny random models as files: a Hugging Face folder or a GGUF with the same weights and the same tokenizer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import tokenizers
from gguf import GGMLQuantizationType as Quant
from safetensors.numpy import save_file

from queueproof.arithmetic.bits import F32, round16, round16_bits
from queueproof.kernels.ops import Backend
from queueproof.models.vocabulary import byte_level_alphabet
from tests.support.tiny import Sequence, limits, step

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("h e", "l l", "he ll", "hell o", "Ġ w", "1 2", "i m", "Ċ Ċ", "< |")
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
VOCAB = 288
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
ARCHITECTURES = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}
GGUF_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def tokens() -> list[str]:
    alphabet = list(byte_level_alphabet())
    return [*CONTROL, *alphabet, *(m.replace(" ", "") for m in MERGES)]


@dataclass(frozen=True)
class Checkpoint:
    """config: of config.json. weights: f32 under Hugging Face's names, 16-bit values if made by `checkpoint`."""

    family: str
    config: dict[str, Any]
    weights: dict[str, F32]
    generation: dict[str, Any] | None = None
    template: str | None = field(default=TEMPLATE)

    def changed(self, **config: Any) -> Checkpoint:
        return replace(self, config=self.config | config)


def checkpoint(family: str = "llama", tied: bool = True, seed: int = 0, **config: Any) -> Checkpoint:
    """A model of 2 layers with 16-bit weights. `config` goes into config.json."""
    hidden, inter = config.get("hidden_size", 64), config.get("intermediate_size", 96)
    layers, heads, kv, dim = 2, 4, 2, 16
    base: dict[str, Any] = {
        "architectures": [ARCHITECTURES[family] + "ForCausalLM"],
        "model_type": family,
        "vocab_size": VOCAB,
        "hidden_size": hidden,
        "intermediate_size": inter,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "head_dim": dim,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 512,
        "tie_word_embeddings": tied,
        "bos_token_id": 0,
        "eos_token_id": 2,
    }
    if family == "mistral":
        base["sliding_window"] = 24
    base |= config
    rng = np.random.default_rng(seed)

    def matrix(n: int, k: int, scale: float | None = None) -> F32:
        return round16(rng.standard_normal((n, k), np.float32) * np.float32(scale or k**-0.5), "bfloat16")

    def vector(n: int, middle: float) -> F32:
        return round16(middle + 0.1 * rng.standard_normal(n, np.float32), "bfloat16")

    weights = {"model.embed_tokens.weight": matrix(VOCAB, hidden, 1.0)}
    shapes = {
        "self_attn.q_proj": (heads * dim, hidden),
        "self_attn.k_proj": (kv * dim, hidden),
        "self_attn.v_proj": (kv * dim, hidden),
        "self_attn.o_proj": (hidden, heads * dim),
        "mlp.gate_proj": (inter, hidden),
        "mlp.up_proj": (inter, hidden),
        "mlp.down_proj": (hidden, inter),
    }
    qkv_bias = family == "qwen2" or bool(config.get("attention_bias"))
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        for name, (n, k) in shapes.items():
            weights[f"{prefix}{name}.weight"] = matrix(n, k)
            if qkv_bias and name[-6] in "qkv" and "self_attn" in name:
                weights[f"{prefix}{name}.bias"] = vector(n, 0.0)
            if config.get("attention_bias") and name.endswith("o_proj"):
                weights[f"{prefix}{name}.bias"] = vector(n, 0.0)
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{prefix}{name}.weight"] = vector(hidden, 1.0)
        if family == "qwen3":
            for name in ("self_attn.q_norm", "self_attn.k_norm"):
                weights[f"{prefix}{name}.weight"] = vector(dim, 1.0)
    weights["model.norm.weight"] = vector(hidden, 1.0)
    if not tied:
        weights["lm_head.weight"] = matrix(VOCAB, hidden, 1.0)
    return Checkpoint(family, base, weights)


def write_hf(c: Checkpoint, folder: Path, dtype: str = "bfloat16", shards: int = 1) -> Path:
    """dtype: of every tensor, or a function of its name in `stored`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(c.config))
    if c.generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(c.generation))
    names = list(c.weights)
    files = (
        ["model.safetensors"]
        if shards == 1
        else [f"model-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)]
    )
    parts = {file: names[i::shards] for i, file in enumerate(files)}
    for file, part in parts.items():
        save_safetensors(folder / file, {n: c.weights[n] for n in part}, lambda _: dtype)
    if shards > 1:
        weight_map = {name: file for file, part in parts.items() for name in part}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    write_tokenizer(folder)
    if c.template is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": c.template}))
    return folder


def save_safetensors(path: Path, weights: Mapping[str, F32], dtype: Callable[[str], str]) -> None:
    """Through the library where NumPy has the types; bfloat16 it has not, so that header is written here."""
    kinds = {name: dtype(name) for name in weights}
    if "bfloat16" not in kinds.values():
        save_file({name: values.astype(kinds[name]) for name, values in weights.items()}, str(path))
        return
    header, data = {}, b""
    for name, values in weights.items():
        bfloat16 = kinds[name] == "bfloat16"
        part = (round16_bits(values, "bfloat16") if bfloat16 else values.astype(kinds[name])).tobytes()
        kind = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}[kinds[name]]
        header[name] = {"dtype": kind, "shape": list(values.shape), "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def write_tokenizer(folder: Path) -> None:
    """What SmolLM2's tokenizer.json is made of, with a vocabulary of bytes and a few merges."""
    merges = [tuple(m.split(" ")) for m in MERGES]
    model = tokenizers.models.BPE({t: i for i, t in enumerate(tokens())}, merges)
    tokenizer = tokenizers.Tokenizer(model)
    digits, byte_level = tokenizers.pre_tokenizers.Digits(True), tokenizers.pre_tokenizers.ByteLevel(False)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([digits, byte_level])
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens([tokenizers.AddedToken(t, normalized=False) for t in CONTROL])
    tokenizer.save(str(folder / "tokenizer.json"))


def write_gguf(c: Checkpoint, path: Path, quant: Quant = Quant.BF16, **metadata: Any) -> Path:
    """As llama.cpp's converter writes it: q and k rows of the architecture llama reordered, vectors in f32.

    metadata: more integers, under the architecture's prefix (dots as double underscores).
    """
    arch = "llama" if c.family == "mistral" else c.family
    w = gguf.GGUFWriter(str(path), arch)
    config = c.config
    w.add_block_count(config["num_hidden_layers"])
    w.add_context_length(config["max_position_embeddings"])
    w.add_embedding_length(config["hidden_size"])
    w.add_feed_forward_length(config["intermediate_size"])
    w.add_head_count(config["num_attention_heads"])
    w.add_head_count_kv(config["num_key_value_heads"])
    w.add_key_length(config["head_dim"])
    w.add_value_length(config["head_dim"])
    w.add_rope_dimension_count(config["head_dim"])
    w.add_rope_freq_base(config["rope_theta"])
    w.add_layer_norm_rms_eps(config["rms_norm_eps"])
    if c.family == "mistral" and config["sliding_window"]:
        w.add_sliding_window(config["sliding_window"])
    for key, value in metadata.items():
        w.add_uint32(f"{arch}.{key.replace('__', '.')}", value)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("smollm")
    w.add_token_list(tokens())
    w.add_token_types([3 if t in CONTROL else 1 for t in tokens()])
    w.add_token_merges(list(MERGES))
    w.add_bos_token_id(0)
    w.add_eos_token_id(2)
    w.add_add_bos_token(False)
    if c.template is not None:
        w.add_chat_template(c.template)
    if config.get("rope_scaling") == LLAMA3_ROPE:
        w.add_tensor("rope_freqs.weight", llama3_factors(config["head_dim"], config["rope_theta"]))
    for name, values in c.weights.items():
        stored = _interleaved(values, config["head_dim"]) if arch == "llama" and _is_qk(name) else values
        if values.ndim == 1:
            w.add_tensor(gguf_name(name), np.ascontiguousarray(stored))
        else:
            w.add_tensor(gguf_name(name), gguf.quantize(np.ascontiguousarray(stored), quant), raw_dtype=quant)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path


def gguf_name(name: str) -> str:
    whole = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in whole:
        return whole[name]
    _, _, layer, *middle, last = name.split(".")
    return f"blk.{layer}.{GGUF_NAMES['.'.join(middle)]}.{last}"


def _is_qk(name: str) -> bool:
    return "q_proj" in name or "k_proj" in name


def _interleaved(rows: F32, dim: int) -> F32:
    """The converter's permute: (head, 2, D/2) becomes (head, D/2, 2)."""
    heads = rows.shape[0] // dim
    return rows.reshape(heads, 2, dim // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def llama3_factors(dim: int, theta: float) -> F32:
    """The converter's rope_freqs: how much each frequency is divided by."""
    factors = []
    for frequency in 1.0 / theta ** (np.arange(0, dim, 2, dtype=np.float32) / dim):
        wavelength = 2 * np.pi / frequency
        if wavelength < 8192 / 4:
            factors.append(1.0)
        elif wavelength > 8192:
            factors.append(8.0)
        else:
            smooth = (8192 / wavelength - 1) / 3
            factors.append(1 / ((1 - smooth) / 8.0 + smooth))
    return np.array(factors, np.float32)


def logits(forward: Any, backend: Backend | Any, ids: list[int], threads: int = 1) -> F32:
    """f32 [len(ids), V]: the logits of every position, in one prefill."""
    block, rows = 16, 256
    blocks = list(range(-(-len(ids) // block)))
    room = limits(len(ids), 1, len(blocks), block, len(blocks) * block, max_logit_rows=rows)
    executor = backend.executor(forward, room, threads)
    executor.forward(step([(Sequence(ids, blocks), len(ids))], block))
    parts = np.split(np.arange(len(ids), dtype=np.int32), range(rows, len(ids), rows))
    out = np.concatenate([executor.logits(part).copy() for part in parts])
    executor.close()
    return out
