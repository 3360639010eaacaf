"""Against transformers in f32, as an independent statement of what these models compute.

Needs what no extra of this project installs (the CPU build of torch will do):
`pip install torch==2.13.0 transformers==5.24.0 accelerate`.
The tests of SmolLM2 fetch the model if the cache does not have it (about 90 MB).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

from queueproof.arithmetic.bits import F32
from queueproof.kernels.registry import backend as backend_of
from queueproof.models.loader import LoadedModel, load_model
from queueproof.models.store import resolve
from tests.support.checkpoints import LLAMA3_ROPE, Checkpoint, checkpoint, logits, write_hf

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

pytestmark = [
    pytest.mark.optional,
    # torch and transformers warn about their own deprecations.
    pytest.mark.filterwarnings("ignore"),
]

# Activations that enter a matrix product are rounded to 8 bits of significand, several times a layer.
BF16_TOLERANCE = 2.0**-6
IDS = [(7 * i * i + 3) % 280 for i in range(96)]

VARIANTS: dict[str, dict[str, Any]] = {
    "llama-tied": {},
    "llama-untied": {"tied": False},
    "llama-bias": {"attention_bias": True},
    "llama-linear": {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "llama3": {"rope_theta": 500000.0, "rope_scaling": LLAMA3_ROPE},
    "mistral": {"family": "mistral", "tied": False},
    "mistral-no-window": {"family": "mistral", "sliding_window": None},
    "qwen2": {"family": "qwen2"},
    "qwen2-window": {
        "family": "qwen2",
        "tied": False,
        "use_sliding_window": True,
        "sliding_window": 24,
        "max_window_layers": 1,
    },
    "qwen3": {"family": "qwen3", "tied": False},
    "qwen3-tied": {"family": "qwen3"},
}


def hf_logits(model: Any, ids: list[int]) -> F32:
    with torch.no_grad():
        out: F32 = model(torch.tensor([ids])).logits[0].float().numpy()
    return out


def hf_model(folder: Path) -> Any:
    options = {"dtype": torch.float32, "attn_implementation": "eager"}
    return transformers.AutoModelForCausalLM.from_pretrained(folder, **options).eval()


def relative(a: F32, b: F32) -> float:
    """The error's root mean square, in units of the values'."""
    return float(np.sqrt(np.mean((a - b) ** 2) / np.mean(b**2)))


def ours(c: Checkpoint, folder: Path, arithmetic: str) -> F32:
    backend = backend_of(arithmetic)
    return logits(load_model(write_hf(c, folder), backend).forward, backend, IDS, threads=2)


@pytest.mark.parametrize("arithmetic", ["ieee/1", "vendor"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_agree_to_bf16_accuracy(variant: str, arithmetic: str, tmp_path: Path) -> None:
    c = checkpoint(**VARIANTS[variant])
    got = ours(c, tmp_path, arithmetic)
    assert relative(got, hf_logits(hf_model(tmp_path), IDS)) < BF16_TOLERANCE


MISTAKES: dict[str, dict[str, Any]] = {
    "llama-tied": {"rms_norm_eps": 0.1},
    "llama-linear": {"rope_scaling": None},
    "mistral": {"sliding_window": 25},
    "qwen2-window": {"max_window_layers": 0},
    "qwen3": {"rope_theta": 20000.0},
}


@pytest.mark.parametrize("variant", MISTAKES)
def test_a_mistake_would_show(variant: str, tmp_path: Path) -> None:
    """One field read wrongly is further off than the tolerance."""
    c = checkpoint(**VARIANTS[variant])
    got = ours(c.changed(**MISTAKES[variant]), tmp_path / "wrong", "ieee/1")
    assert relative(got, hf_logits(hf_model(write_hf(c, tmp_path / "right")), IDS)) > BF16_TOLERANCE


@pytest.fixture(scope="module")
def smollm2_path() -> Path:
    return resolve("smollm2-135m")


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> LoadedModel:
    return load_model(smollm2_path, backend_of("ieee/1"), max_len=2048)


@pytest.fixture(scope="module")
def hf_tokenizer(smollm2_path: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(smollm2_path.parent, gguf_file=smollm2_path.name)


TEXTS = [
    "Hello world",
    "  leading, trailing  and   inner spaces  ",
    "tabs\tand\nnew\r\nlines\n\n\n",
    "The year 1969, 3.14159, 1,000,000 and 0x1F",
    "def fib(n: int) -> int:\n    return n if n < 2 else fib(n - 1) + fib(n - 2)  # naïve",
    "Ελληνικά, русский, العربية, עברית, हिन्दी, 漢字かな, 한국어",
    "🙂👩‍👩‍👧‍👦🏳️‍🌈 e\u0301 \u200b \ufeff",
    "don't I'll we've THEY'RE it's",
    "https://example.org/path?query=1&other=two#three",
    "<b>html</b> & [brackets] {braces} | pipes \\ `ticks`",
]


@pytest.mark.parametrize("text", TEXTS)
def test_ids_are_those_of_transformers(text: str, smollm2: LoadedModel, hf_tokenizer: Any) -> None:
    expected = hf_tokenizer(text, add_special_tokens=False)["input_ids"]
    assert smollm2.tokenizer.encode(text) == expected
    assert smollm2.tokenizer.decode(expected) == text


def test_other_digits_stand_alone_too(smollm2: LoadedModel, hf_tokenizer: Any) -> None:
    """The file's pre-tokenizer, `smollm`, cuts at every Unicode digit first (the model's own tokenizer.json: Digits).

    transformers leaves that out when it converts a GGUF, which shows only at digits that merge with a space: there it
    differs from the model's own. With the missing step put back it gives our ids.
    """
    text = "½ and ² of ١٢٣"
    converted = hf_tokenizer.backend_tokenizer
    whole = tokenizers.Tokenizer.from_str(converted.to_str())
    steps = [tokenizers.pre_tokenizers.Digits(individual_digits=True), converted.pre_tokenizer]
    whole.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(steps)
    assert smollm2.tokenizer.encode(text) == whole.encode(text, add_special_tokens=False).ids
    assert smollm2.tokenizer.encode(text) != converted.encode(text, add_special_tokens=False).ids


def test_a_conversation_has_the_ids_of_transformers(smollm2: LoadedModel, hf_tokenizer: Any) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "\n What is 12 + 30? "},
        {"role": "assistant", "content": "42"},
        {"role": "user", "content": "Thanks!"},
    ]
    for conversation in (messages, messages[1:2]):
        expected = hf_tokenizer.apply_chat_template(conversation, add_generation_prompt=True)["input_ids"]
        assert smollm2.tokenizer.encode_chat(conversation) == expected


def test_the_argmax_agrees_with_f32_as_often_as_bf16_can(smollm2: LoadedModel, smollm2_path: Path) -> None:
    """Teacher-forced over 1536 tokens. vLLM in bfloat16 agreed with f32 on 1511 of 1536 tokens of its own answers."""
    text = (Path(__file__).parents[2] / "docs" / "arithmetic.md").read_text(encoding="utf-8")
    ids = smollm2.tokenizer.encode(text)[:1536]
    assert len(ids) == 1536
    options = {"gguf_file": smollm2_path.name, "dtype": torch.float32}
    reference = transformers.AutoModelForCausalLM.from_pretrained(smollm2_path.parent, **options).eval()
    expected = hf_logits(reference, ids).argmax(axis=1)
    got = logits(smollm2.forward, smollm2.backend, ids, threads=2).argmax(axis=1)
    agree = int((expected == got).sum())
    print(f"argmax agrees on {agree} of {len(ids)}")
    assert agree >= 1511
