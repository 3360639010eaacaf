"""The tensors of a GGUF file under Hugging Face's names.

Quantised rows go through the gguf package's NumPy dequantisation, a slice at a time. llama.cpp's converter reorders
the q and k rows (weights and biases) of the architecture "llama", and of no other read here; they are put back.
"""

from __future__ import annotations

import math
import re
from typing import Final

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

from queueproof.contract.errors import ModelError, UnsupportedModel
from queueproof.kernels.ops import F32, U8
from queueproof.models.weights.gguf_file import GgufFile, TensorInfo
from queueproof.models.weights.source import DtypeChoice, StoredTensor, StoredWeights

PLAIN: Final = ("F32", "F16", "BF16")
QUANTISED: Final = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
INTERLEAVED_ARCHITECTURES: Final = frozenset({"llama"})

ROPE_FACTORS: Final = "rope_freqs.weight"  # part of the configuration, not a weight
WHOLE: Final = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
IN_LAYER: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
LAYER_NAME: Final = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


def hf_name(name: str) -> str | None:
    """Hugging Face's name of a GGUF tensor, or None for one that the Llama family does not have."""
    if name in WHOLE:
        return WHOLE[name]
    match = LAYER_NAME.fullmatch(name)
    if match is None or match[2] not in IN_LAYER:
        return None
    return f"model.layers.{match[1]}.{IN_LAYER[match[2]]}.{match[3]}"


def open_gguf(gguf: GgufFile, head_dim: int, dtype: DtypeChoice) -> StoredWeights:
    """The weights of a GGUF file.

    Raises UnsupportedModel for a tensor type or a tensor that no code here reads, ModelError for one that the file
    does not hold in full.
    """
    interleaved = gguf.metadata.text("general.architecture") in INTERLEAVED_ARCHITECTURES
    tensors: dict[str, StoredTensor] = {}
    for name, info in gguf.tensors.items():
        if name == ROPE_FACTORS:
            continue
        target = hf_name(name)
        if target is None:
            raise UnsupportedModel(
                f"{gguf.file.path}: tensor {name!r} is not part of the Llama family as supported here; "
                "the file describes another kind of model"
            )
        reorder = interleaved and re.search(r"\.self_attn\.[qk]_proj\.", target) is not None
        tensors[target] = stored_tensor(gguf, info, head_dim if reorder else None)
    return StoredWeights(tensors, dtype)


def stored_tensor(gguf: GgufFile, info: TensorInfo, interleaved: int | None = None) -> StoredTensor:
    kind = _kind(gguf, info)
    block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(info.type)]
    k = info.shape[-1]
    if k % block:
        raise ModelError(
            f"{gguf.file.path}: rows of {k} values in tensor {info.name!r} are no multiple of {kind}'s {block}"
        )
    row_bytes = k // block * block_bytes
    end = info.start + math.prod(info.shape[:-1]) * row_bytes
    if end > gguf.file.size:
        raise ModelError(
            f"{gguf.file.path} is cut short: tensor {info.name!r} ends at byte {end}, the file at {gguf.file.size}; "
            "delete it and get it again"
        )
    if interleaved is not None and info.shape[0] % interleaved:
        raise ModelError(
            f"{gguf.file.path}: {info.shape[0]} rows of {info.name!r} are no multiple of the head size {interleaved}"
        )
    decode = None if kind in PLAIN else _Dequantise(info.type)
    return StoredTensor(gguf.file, info.start, kind, info.shape, row_bytes, decode, interleaved)


def _kind(gguf: GgufFile, info: TensorInfo) -> str:
    try:
        kind = str(GGMLQuantizationType(info.type).name)
    except ValueError:
        kind = f"number {info.type}"
    if kind not in (*PLAIN, *QUANTISED):
        raise UnsupportedModel(
            f"{gguf.file.path}: tensor {info.name!r} has the type {kind}; supported are {', '.join((*PLAIN, *QUANTISED))}"
        )
    return kind


class _Dequantise:
    """u8 [rows, row_bytes] -> f32 [rows, k], by the gguf package's own formulas."""

    def __init__(self, kind: int) -> None:
        self._kind = GGMLQuantizationType(kind)

    def __call__(self, raw: U8) -> F32:
        return np.asarray(dequantize(raw, self._kind), np.float32)
