"""Models of real shapes with random weights, through the path of a checkpoint: config.json, WeightSource, assemble, packer.

One block of random numbers on the host stands for all weights: a matrix is a stretch of it, from an offset of its own and
around its end as often as need be. The length of the block is prime, so no two rows of a matrix are the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np

from queueproof.arithmetic.bits import round16_bits
from queueproof.contract.errors import UsageError
from queueproof.kernels import canary
from queueproof.kernels.ops import F32, U8, U16, Backend, Dtype, ForwardModel
from queueproof.models.assemble import assemble
from queueproof.models.config import ModelConfig
from queueproof.models.fields import Fields
from queueproof.models.hf_config import HfConfigFiles, from_hf
from queueproof.models.weights.expected import check_tensors, expected_shapes

BLOCK = 33_554_393  # values; the largest prime below 2^25: 64 MiB
SMALL_BLOCK = 65_537  # a prime for models of a few layers of a few rows
SLICE = 1 << 22  # values of a matrix handed over at once

_QWEN3: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 151936,
    "rope_theta": 1000000.0,
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "initializer_range": 0.02,
    "use_cache": True,
    "torch_dtype": "bfloat16",
    "bos_token_id": 151643,
    "eos_token_id": 151645,
}
# What the published config.json of each says.
PRESETS: dict[str, dict[str, Any]] = {
    "qwen3-8b": _QWEN3
    | {
        "hidden_size": 4096,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 12288,
        "tie_word_embeddings": False,
    },
    "qwen3-0.6b": _QWEN3
    | {
        "hidden_size": 1024,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 3072,
        "tie_word_embeddings": True,
    },
    "llama-3.1-8b": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 128256,
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 14336,
        "rope_theta": 500000.0,
        "rope_scaling": {
            "factor": 8.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "initializer_range": 0.02,
        "tie_word_embeddings": False,
        "use_cache": True,
        "torch_dtype": "bfloat16",
        "bos_token_id": 128000,
        "eos_token_id": 128001,
    },
    "mistral-7b": {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "vocab_size": 32000,
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 14336,
        "sliding_window": 4096,
        "rope_theta": 10000.0,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "tie_word_embeddings": False,
        "use_cache": True,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
}
# Of the bits suite: real layer sizes, few layers of the large models, all of the small one; a window that cuts.
SUITE = ("qwen3-8b:3", "qwen3-0.6b", "mistral-7b:2:700")


def tiny_config() -> dict[str, Any]:
    """A Qwen3 of two small layers, wide enough that OpenBLAS adds up in another order for another number of rows on every CPU."""
    sizes = {"hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    more = {"head_dim": 16, "intermediate_size": 640, "vocab_size": 257, "max_position_embeddings": 512}
    return PRESETS["qwen3-0.6b"] | sizes | more | {"bos_token_id": 1, "eos_token_id": 2}


def preset(name: str, layers: int | None = None) -> dict[str, Any]:
    """The config.json of a model, with another number of layers if given."""
    return PRESETS[name] | ({} if layers is None else {"num_hidden_layers": layers})


def parse_model(text: str) -> dict[str, Any]:
    """NAME[:LAYERS[:WINDOW]]: a preset with fewer layers, and with another sliding window; or `tiny`. Raises ValueError."""
    name, *numbers = text.split(":")
    if name == "tiny" and not numbers:
        return tiny_config()
    if name not in PRESETS or len(numbers) > 2 or not all(n.isdigit() for n in numbers):
        raise ValueError(f"{text!r} is not one of {', '.join(PRESETS)}, as NAME[:LAYERS[:WINDOW]]")
    config = preset(name, int(numbers[0]) if numbers else None)
    return config | ({"sliding_window": int(numbers[1])} if len(numbers) == 2 else {})


def read_config(config: Mapping[str, Any], dtype: Dtype = "bfloat16") -> ModelConfig:
    """Through the reader of config.json."""
    return from_hf(HfConfigFiles(Fields(dict(config), "config.json"), None), dtype)


class SyntheticWeights:
    """A WeightSource. Matrices and biases: normal, standard deviation 0.02; norm weights: 1 and a tenth of a normal.

    block_values: prime, and no multiple of it is the width of a matrix.
    """

    def __init__(self, config: ModelConfig, seed: int = 0, block_values: int = BLOCK) -> None:
        self.dtype: Dtype = config.dtype
        self._shapes = expected_shapes(config)
        self._seed, self._length = seed, block_values
        values = np.random.default_rng(seed).standard_normal(block_values, np.float32)
        values *= np.float32(0.02)
        bits = round16_bits(values, self.dtype)
        widest = max(shape[-1] for shape in self._shapes.values())
        self._around = np.resize(bits, block_values + max(SLICE, widest))  # so that a slice never wraps

    def names(self) -> tuple[str, ...]:
        return tuple(self._shapes)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def _offset(self, name: str) -> int:
        return int.from_bytes(hashlib.sha256(f"{self._seed} {name}".encode()).digest()[:8], "little") % self._length

    def kind(self, name: str) -> str:
        return "F16" if self.dtype == "float16" else "BF16"

    def raw_slices(self, name: str) -> Iterator[U8]:
        return (rows.view(np.uint8) for rows in self.row_slices(name))

    def row_slices(self, name: str) -> Iterator[U16]:
        n, k = self._shapes[name]
        step, offset = max(1, SLICE // k), self._offset(name)
        for row in range(0, n, step):
            rows = min(step, n - row)
            start = (offset + row * k) % self._length
            yield self._around[start : start + rows * k].reshape(rows, k).copy()

    def vector(self, name: str) -> F32:
        (n,) = self._shapes[name]
        values = np.random.default_rng(self._offset(name)).standard_normal(n, np.float32)
        scaled = 1 + values * np.float32(0.1) if name.endswith("norm.weight") else values * np.float32(0.02)
        # 16-bit values, as checkpoints have: other engines keep them in 16 bits.
        bits = round16_bits(scaled, self.dtype)
        widened: F32 = bits.view(np.float16).astype(np.float32) if self.dtype == "float16" else _widened(bits)
        return widened


def _widened(bits: U16) -> F32:
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


class NoTokenizer:
    """The tokenizer of a model without texts: prompts are token ids, answers are not decoded."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise UsageError("a synthetic model has no texts: give prompts as token ids, and detokenize=False")

    encode = decode = stream = encode_chat = _refuse


@dataclass(frozen=True, slots=True)
class SyntheticModel:
    """A LoadedModel (engine/protocols.py) that came from no file."""

    config: ModelConfig
    forward: ForwardModel
    tokenizer: Any
    name: str
    backend: Backend
    max_len: int


def load_synthetic(
    config: Mapping[str, Any],
    backend: Backend,
    max_len: int,
    *,
    name: str = "synthetic",
    seed: int = 0,
    block_values: int = BLOCK,
    check: bool = True,
) -> SyntheticModel:
    """What models.loader.load_model does, from random weights. check: run the canary of the backend's arithmetic first."""
    read = read_config(config)
    weights = SyntheticWeights(read, seed, block_values)
    check_tensors(read, weights, name)
    if check:
        backend.warm_up()
        canary.require(backend.arithmetic, backend.device)
    forward = assemble(read, weights, backend.packer(read.dtype), max_len)
    return SyntheticModel(read, forward, NoTokenizer(), name, backend, max_len)


def without_end(model: SyntheticModel) -> SyntheticModel:
    """The same weights in a model that names no end token."""
    return replace(model, config=replace(model.config, eos_ids=()))


def matrix_bytes(config: ModelConfig) -> int:
    """Bytes of the matrices that every step reads: all but an embedding that is not the head as well."""
    shapes = expected_shapes(config)
    values = sum(s[0] * s[1] for s in shapes.values() if len(s) == 2)
    return 2 * (values if config.tie_word_embeddings else values - config.vocab_size * config.hidden_size)


def as_inputs(ids: Sequence[Sequence[int]]) -> list[dict[str, list[int]]]:
    """Prompts as LLM.generate takes them."""
    return [{"prompt_token_ids": list(i)} for i in ids]
