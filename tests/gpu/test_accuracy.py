"""Logits against float64: ours are no further off than those of PyTorch's own bfloat16 model."""

from __future__ import annotations

import pytest

from tests.support.gpu_accuracy import measure_accuracy
from tests.support.gpu_model import BLOCK, preset


@pytest.mark.filterwarnings("ignore")  # transformers warns about its own deprecations
@pytest.mark.parametrize("name", ["qwen3-0.6b", "llama-3.1-8b"])
def test_logits_are_as_accurate_as_torchs(name: str) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    layers = 8 if name == "qwen3-0.6b" else 2  # in float64 the larger takes four times the memory
    found = measure_accuracy(preset(name, layers), "tensorcore/1", "cuda", "cuda", 512, BLOCK)
    print(found)
    assert found.ours <= found.torch_bf16
    assert found.torch_bf16 < 0.05, "the two models are not the same"
