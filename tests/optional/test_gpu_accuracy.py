"""The accuracy check of the GPU suite, on the CPU: the models that it compares are one, and `ieee/1` passes it.

Needs what no extra of this project installs (the CPU build of torch will do), as test_transformers.py says.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.gpu_accuracy import measure_accuracy, transformers_model
from tests.support.gpu_model import PRESETS, SMALL_BLOCK, SyntheticWeights, read_config, tiny_config

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

pytestmark = [
    pytest.mark.optional,
    pytest.mark.filterwarnings("ignore"),
]  # transformers warns about its own deprecations

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "rope_scaling": PRESETS["llama-3.1-8b"]["rope_scaling"] | {"original_max_position_embeddings": 64},
    "tie_word_embeddings": False,
}


@pytest.mark.parametrize("more", [{}, LLAMA], ids=["qwen3", "llama"])
def test_transformers_gets_the_same_weights(more: dict[str, Any]) -> None:
    config = tiny_config() | more
    weights = SyntheticWeights(read_config(config), block_values=SMALL_BLOCK)
    parameters = dict(transformers_model(config, weights, "float64", "cpu").named_parameters())
    assert set(parameters) == set(weights.names())
    for name in weights.names():
        if len(weights.shape(name)) == 1:
            expected = torch.from_numpy(weights.vector(name)).double()
        else:
            rows = np.concatenate(list(weights.row_slices(name)))
            expected = torch.from_numpy((rows.astype(np.uint32) << 16).view(np.float32)).double()
        assert (parameters[name] == expected).all()


@pytest.mark.parametrize("more", [{}, LLAMA], ids=["qwen3", "llama"])
def test_ieee1_is_no_worse_than_torchs_bfloat16_model(more: dict[str, Any]) -> None:
    found = measure_accuracy(tiny_config() | more, "ieee/1", "cpu", "cpu", 96, SMALL_BLOCK)
    assert 0 < found.ours <= found.torch_bf16 < 0.02
