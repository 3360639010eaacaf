"""The GPU suite itself, on a tiny model on the CPU: it finds nothing on `ieee/1`, something on NumPy's BLAS."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from benchmarks import gpu_bits
from queueproof.contract.errors import UsageError
from queueproof.kernels.registry import backend
from queueproof.models.weights.expected import check_tensors
from tests.support.gpu_checks import CHECKS
from tests.support.gpu_driver import Found
from tests.support.gpu_lab import TINY, Lab
from tests.support.gpu_model import (
    PRESETS,
    SMALL_BLOCK,
    SUITE,
    NoTokenizer,
    SyntheticWeights,
    load_synthetic,
    matrix_bytes,
    parse_model,
    preset,
    read_config,
    tiny_config,
)


def lab_of(arithmetic: str) -> Lab:
    return Lab(tiny_config(), arithmetic, "cpu", TINY, SMALL_BLOCK)


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    made = lab_of("ieee/1")
    yield made
    made.close()


@pytest.mark.parametrize("name", CHECKS)
def test_a_check_runs_and_finds_nothing_on_ieee1(lab: Lab, name: str) -> None:
    found = CHECKS[name](lab)
    assert not found.inconclusive, found.witness
    assert (found.different, found.examples) == (0, [])


def test_the_checks_find_numpys_blas() -> None:
    made = lab_of("vendor")
    found = [CHECKS[name](made) for name in ("rows_decode", "growing_neighbour", "engine_matrix")]
    made.close()
    assert sum(f.different for f in found) > 10
    assert any(f.examples for f in found)


def test_a_broken_row_is_counted_and_named() -> None:
    found = Found("x")
    a = np.arange(12, dtype=np.int32).reshape(3, 4)
    b = a.copy()
    b[1, 2] += 1
    found.rows("here", a, b)
    assert (found.compared, found.different, found.examples) == (3, 1, ["here: 1 of 3"])
    assert found.inconclusive  # no witness
    found.saw(steps=1)
    assert not found.inconclusive
    found.saw(preemptions=0)
    assert found.inconclusive


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_read_like_any_config(name: str) -> None:
    config = read_config(preset(name))
    # Bytes of the matrices, as published: 8.19, 0.6, 8.03 and 7.24 billion parameters (a little for norms).
    embedding = 0 if config.tie_word_embeddings else 2 * config.vocab_size * config.hidden_size
    billions = {"qwen3-8b": 8.19, "qwen3-0.6b": 0.596, "llama-3.1-8b": 8.03, "mistral-7b": 7.242}[name]
    assert (matrix_bytes(config) + embedding) / 2e9 == pytest.approx(billions, rel=1e-3)
    assert read_config(preset(name, 2)).num_layers == 2


def test_the_suite_has_a_window_that_cuts() -> None:
    config = read_config(parse_model("mistral-7b:2:700"))
    assert config.windows == (700, 700) and any(name == "mistral-7b:2:700" for name in SUITE)
    assert read_config(parse_model("qwen3-8b:3")).windows == (None,) * 3


@pytest.mark.parametrize("more", [{}, {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}])
def test_synthetic_weights_are_a_checkpoint(more: dict[str, Any]) -> None:
    config = read_config(tiny_config() | more)
    weights = SyntheticWeights(config, block_values=SMALL_BLOCK)
    check_tensors(config, weights, "synthetic")
    for name in weights.names():
        shape = weights.shape(name)
        if len(shape) == 1:
            values = weights.vector(name)
            assert values.shape == shape and values.dtype == np.float32
            assert not (values.view(np.uint32) & 0xFFFF).any(), "16-bit values, as checkpoints have"
            continue
        rows = np.concatenate(list(weights.row_slices(name)))
        assert rows.shape == shape and rows.dtype == np.uint16
        assert len(np.unique(rows, axis=0)) == len(rows)
        again = np.concatenate(list(SyntheticWeights(config, block_values=SMALL_BLOCK).row_slices(name)))
        assert (rows == again).all()
        values = (rows.astype(np.uint32) << 16).view(np.float32)
        assert abs(values.std() - 0.02) < 0.002
    other = SyntheticWeights(config, seed=1, block_values=SMALL_BLOCK)
    name = weights.names()[0]
    assert (next(other.row_slices(name)) != next(weights.row_slices(name))).any()


def test_a_synthetic_model_has_no_texts() -> None:
    model = load_synthetic(tiny_config(), backend("vendor"), 64, block_values=SMALL_BLOCK)
    assert isinstance(model.tokenizer, NoTokenizer) and model.max_len == 64
    with pytest.raises(UsageError, match="no texts"):
        model.tokenizer.encode("x")


def bits(*options: str) -> int:
    return gpu_bits.main(["--device", "cpu", "--model", "tiny", "--sizes", "tiny", *options])


def test_the_script_says_what_is_wrong(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    out = tmp_path / "bits.json"
    assert bits("--arithmetic", "ieee/1,vendor", "--only", "growing_neighbour,chunks", "--json", str(out)) == 0
    assert '"different": 0' in out.read_text() and '"gpu": null' in out.read_text()
    assert "0 of 410 comparisons differ where bits are promised" in capsys.readouterr().out
    assert bits("--arithmetic", "vendor", "--only", "graphs") == 1  # a control that finds nothing
    assert "no check found a difference" in capsys.readouterr().out
    assert bits("--arithmetic", "ieee/1", "--only", "chunks", "--budget", "0") == 1
    assert "not run: ieee/1 tiny chunks" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--only", "nonsense"], "'nonsense' is not one of rows_decode"),
        (["--model", "gpt-2"], "'gpt-2' is not one of qwen3-8b"),
        (["--model", "qwen3-8b:x"], "as NAME[:LAYERS[:WINDOW]]"),
        (["--sizes", "huge"], "invalid choice"),
    ],
)
def test_arguments_are_checked(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        gpu_bits.main(options)
    assert ended.value.code == 2 and message in capsys.readouterr().err
