"""Which tensors a model must have, with their shapes, and the check that a checkpoint has these and no others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import zip_longest
from typing import Final

import numpy as np

from queueproof.contract.errors import ModelError
from queueproof.models.config import ModelConfig
from queueproof.models.weights.source import WeightSource

EMBEDDING: Final = "model.embed_tokens.weight"
NORM: Final = "model.norm.weight"
HEAD: Final = "lm_head.weight"
# Tables that old checkpoints carry; the rotary tables are computed (docs/arithmetic.md, section 4).
IGNORED: Final = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")


def layer_prefix(index: int) -> str:
    return f"model.layers.{index}."


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name to shape, matrices as [out, in]. A tied head is not among them."""
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (config.vocab_size, config.hidden_size)}
    for index in range(config.num_layers):
        shapes |= {layer_prefix(index) + name: shape for name, shape in _layer_shapes(config)}
    shapes[NORM] = (config.hidden_size,)
    if not config.tie_word_embeddings:
        shapes[HEAD] = (config.vocab_size, config.hidden_size)
    return shapes


def _layer_shapes(c: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    q, kv = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    projections = (
        ("self_attn.q_proj", q, c.hidden_size, c.qkv_bias),
        ("self_attn.k_proj", kv, c.hidden_size, c.qkv_bias),
        ("self_attn.v_proj", kv, c.hidden_size, c.qkv_bias),
        ("self_attn.o_proj", c.hidden_size, q, c.o_bias),
        ("mlp.gate_proj", c.intermediate_size, c.hidden_size, c.mlp_bias),
        ("mlp.up_proj", c.intermediate_size, c.hidden_size, c.mlp_bias),
        ("mlp.down_proj", c.hidden_size, c.intermediate_size, c.mlp_bias),
    )
    for name, n, k, bias in projections:
        yield f"{name}.weight", (n, k)
        if bias:
            yield f"{name}.bias", (n,)
    if c.qk_norm:
        yield "self_attn.q_norm.weight", (c.head_dim,)
        yield "self_attn.k_norm.weight", (c.head_dim,)
    yield "input_layernorm.weight", (c.hidden_size,)
    yield "post_attention_layernorm.weight", (c.hidden_size,)


def check_tensors(config: ModelConfig, weights: WeightSource, where: str) -> None:
    """Raises ModelError naming the first tensor that is missing, unexpected or of another shape."""
    expected = expected_shapes(config)
    present = {name for name in weights.names() if not IGNORED.fullmatch(name)}
    if config.tie_word_embeddings and HEAD in present:
        _check_tied(weights, where)
        present.remove(HEAD)
    missing = [name for name in expected if name not in present]
    if missing:
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise ModelError(
            f"{where}: the tensor {missing[0]!r}{more} is missing; get the model again, with all its files"
        )
    extra = sorted(present - expected.keys())
    if extra:
        more = f" (and {len(extra) - 1} more)" if len(extra) > 1 else ""
        raise ModelError(
            f"{where}: the tensor {extra[0]!r}{more} has no place in a {config.family} model with this configuration; "
            "configuration and weights do not belong together"
        )
    for name, shape in expected.items():
        if weights.shape(name) != shape:
            raise ModelError(
                f"{where}: {name} has the shape {list(weights.shape(name))}, the configuration says {list(shape)}; "
                "configuration and weights do not belong together"
            )


def _check_tied(weights: WeightSource, where: str) -> None:
    """A tied model may store its head as well, if it is the same matrix."""
    same = weights.shape(HEAD) == weights.shape(EMBEDDING) and all(
        a is not None and b is not None and np.array_equal(a, b)
        for a, b in zip_longest(weights.row_slices(HEAD), weights.row_slices(EMBEDDING))
    )
    if not same:
        raise ModelError(
            f"{where}: tie_word_embeddings is set, but {HEAD} differs from {EMBEDDING}; "
            "set it to false in config.json if the model has a head of its own"
        )
