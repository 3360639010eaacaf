"""Logits of our kernels and of PyTorch's own bfloat16 model, both against the same model in float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from queueproof.kernels.ops import Limits
from tests.support.gpu_cases import prompts
from tests.support.gpu_driver import Driver, make_backend
from tests.support.gpu_model import SyntheticWeights, load_synthetic, read_config


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Root mean square of the error over that of the float64 logits, and the share of positions with its argmax."""

    ours: float
    torch_bf16: float
    ours_argmax: float
    torch_argmax: float
    positions: int


def transformers_model(config: dict[str, Any], weights: SyntheticWeights, dtype: str, device: str) -> Any:
    """The library's own model of a config.json, with these weights, on a torch device."""
    import torch
    import transformers

    kind = transformers.AutoConfig.for_model(**{k: v for k, v in config.items() if k != "architectures"})
    kind._attn_implementation = "eager" if dtype == "float64" else "sdpa"
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(kind).to(getattr(torch, dtype))
    model = model.to_empty(device=device)
    model.tie_weights()  # which `to_empty` undid
    named = dict(model.named_parameters())
    with torch.no_grad():
        for name in weights.names():
            target = named[name]
            if len(weights.shape(name)) == 1:
                target.copy_(torch.from_numpy(weights.vector(name)))
                continue
            row = 0
            for rows in weights.row_slices(name):
                values = torch.from_numpy(rows.view(np.int16)).view(torch.bfloat16)
                target[row : row + len(rows)].copy_(values)
                row += len(rows)
    # Not a parameter, so `to_empty` left it empty; each type computes it as it does at its own start.
    rotary = model.model.rotary_emb
    model.model.rotary_emb = type(rotary)(kind).to(device)
    return model.eval()


def torch_logits(model: Any, ids: list[int], device: str) -> np.ndarray:
    """f64 [n, V]."""
    import torch

    with torch.inference_mode():
        out = model(torch.tensor([ids], device=device), use_cache=False).logits[0]
    values: np.ndarray = out.double().cpu().numpy()
    return values


def measure_accuracy(
    config: dict[str, Any], arithmetic: str, device: str, torch_device: str, tokens: int, block_values: int
) -> Accuracy:
    """device: of our backend; torch_device: of the two models beside it."""
    read = read_config(config)
    weights = SyntheticWeights(read, block_values=block_values)
    (ids,) = prompts("accuracy", [tokens], read.vocab_size)
    exact = torch_logits(transformers_model(config, weights, "float64", torch_device), ids, torch_device)
    half = torch_logits(transformers_model(config, weights, "bfloat16", torch_device), ids, torch_device)
    backend = make_backend(arithmetic, device)
    model = load_synthetic(config, backend, tokens, block_values=block_values)
    driver = Driver(model, backend, Limits(tokens, 1, min(tokens, 256), -(-tokens // 64) + 1, 64, tokens))
    with driver.sequences([ids]) as (sequence,):
        bits = driver.run([(sequence, tokens)], "all")
        ours = (bits if isinstance(bits, np.ndarray) else bits.cpu().numpy()).view(np.float32).astype(np.float64)
    driver.close()
    scale = np.sqrt((exact**2).mean())
    best = exact.argmax(1)
    return Accuracy(
        float(np.sqrt(((ours - exact) ** 2).mean()) / scale),
        float(np.sqrt(((half - exact) ** 2).mean()) / scale),
        float((ours.argmax(1) == best).mean()),
        float((half.argmax(1) == best).mean()),
        tokens,
    )
