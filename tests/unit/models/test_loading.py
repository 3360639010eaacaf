"""Models of every family from both kinds of file: the same weights must give the same bits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Quant

from queueproof.arithmetic.bits import round16_bits, widen
from queueproof.arithmetic.oracle.backend import OracleBackend
from queueproof.contract.errors import InvalidParameter, ModelError, UnsupportedModel
from queueproof.kernels.registry import backend as backend_of
from queueproof.models.config import ModelConfig
from queueproof.models.loader import LoadedModel, load_model
from queueproof.models.weights.gguf import open_gguf
from queueproof.models.weights.gguf_file import read_gguf
from queueproof.models.weights.safetensors import open_safetensors
from tests.support.checkpoints import LLAMA3_ROPE, checkpoint, logits, save_safetensors, write_gguf, write_hf

IDS = [(7 * i * i + 3) % 280 for i in range(40)]
VARIANTS: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama-untied": {"tied": False},
    "llama-bias": {"attention_bias": True},
    "llama3": {"rope_theta": 500000.0, "rope_scaling": LLAMA3_ROPE},
    "mistral": {"family": "mistral", "tied": False},
    "qwen2": {"family": "qwen2"},
    "qwen3": {"family": "qwen3", "tied": False},
}


def load(path: Path, **options: Any) -> LoadedModel:
    return load_model(path, OracleBackend(), **options)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_folder_and_a_gguf_of_the_same_weights_are_the_same_model(variant: str, tmp_path: Path) -> None:
    c = checkpoint(**VARIANTS[variant])
    a = load(write_hf(c, tmp_path / "hf"))
    b = load(write_gguf(c, tmp_path / "model.gguf"))
    assert a.config == b.config
    expected, got = (logits(m.forward, m.backend, IDS) for m in (a, b))
    assert np.isfinite(expected).all()
    assert np.array_equal(expected.view(np.uint32), got.view(np.uint32))
    assert a.tokenizer.encode("hello w 12") == b.tokenizer.encode("hello w 12")
    assert a.tokenizer.digest != a.digest != b.digest


@pytest.mark.parametrize("variant", ["llama3", "mistral", "qwen2", "qwen3"])
def test_kernels_and_oracle_agree_on_a_whole_model(variant: str, tmp_path: Path) -> None:
    path = write_hf(checkpoint(**VARIANTS[variant]), tmp_path / "hf")
    kernels = backend_of("ieee/1")
    fast = load_model(path, kernels)
    expected = logits(load(path).forward, OracleBackend(), IDS)
    got = logits(fast.forward, kernels, IDS, threads=2)
    assert np.array_equal(expected.view(np.uint32), got.view(np.uint32))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("quant", "most"), [(Quant.Q8_0, 1.1), (Quant.Q4_0, 0.6), (Quant.Q4_1, 0.7)])
def test_weights_kept_in_8_and_4_bits_give_the_bits_of_16(variant: str, quant: Quant, most: float, tmp_path: Path) -> None:
    path = write_gguf(checkpoint(**VARIANTS[variant]), tmp_path / "m.gguf", quant)
    kernels = backend_of("ieee/1")
    kept, sixteen = load_model(path, kernels), load(path)
    expected = logits(sixteen.forward, sixteen.backend, IDS)
    for threads in (1, 2):
        got = logits(kept.forward, kernels, IDS, threads=threads)
        assert np.array_equal(expected.view(np.uint32), got.view(np.uint32))
    assert kept.forward.bytes_per_weight <= most < sixteen.forward.bytes_per_weight


def test_as_float16_they_take_16_bits(tmp_path: Path) -> None:
    path = write_gguf(checkpoint(), tmp_path / "m.gguf", Quant.Q8_0)
    kernels = backend_of("ieee/1")
    fast, slow = load_model(path, kernels, dtype="float16"), load(path, dtype="float16")
    expected, got = logits(slow.forward, slow.backend, IDS), logits(fast.forward, kernels, IDS)
    assert np.array_equal(expected.view(np.uint32), got.view(np.uint32))
    assert fast.forward.bytes_per_weight >= 2


def test_a_scale_that_is_no_number_is_refused(tmp_path: Path) -> None:
    path = write_gguf(checkpoint(), tmp_path / "m.gguf", Quant.Q4_0)
    start = read_gguf(path).tensors["blk.1.ffn_down.weight"].start
    with path.open("r+b") as file:
        file.seek(start)
        file.write(np.float16(np.inf).tobytes())
    with pytest.raises(ModelError, match=r"layers\.1\.mlp\.down_proj\.weight holds a Q4_0 scale that is infinite or NaN"):
        load_model(path, backend_of("ieee/1"))


@pytest.mark.parametrize("variant", ["llama3", "mistral", "qwen2", "qwen3", "llama-bias"])
def test_every_option_moves_the_result(variant: str, tmp_path: Path) -> None:
    """The same files read without the option give other logits: nothing that is in the config is ignored."""
    c = checkpoint(**VARIANTS[variant])
    plain: dict[str, Any] = {
        "llama3": {"rope_scaling": None},
        "mistral": {"sliding_window": None},
        "qwen2": {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1},
        "qwen3": {"rms_norm_eps": 0.1},
        "llama-bias": {"rope_theta": 9999.0},
    }[variant]
    a = load(write_hf(c, tmp_path / "a"))
    b = load(write_hf(c.changed(**plain), tmp_path / "b"))
    ids = [(11 * i) % 280 for i in range(400)] if variant == "llama3" else IDS
    assert not np.array_equal(logits(a.forward, a.backend, ids)[-1], logits(b.forward, b.backend, ids)[-1])


def test_shards_are_one_model(tmp_path: Path) -> None:
    c = checkpoint(tied=False)
    whole, shards = load(write_hf(c, tmp_path / "1")), load(write_hf(c, tmp_path / "3", shards=3))
    a, b = (logits(m.forward, m.backend, IDS) for m in (whole, shards))
    assert np.array_equal(a.view(np.uint32), b.view(np.uint32))
    assert len(shards.files) == 5


@pytest.mark.parametrize("stored, dtype", [("bfloat16", "bfloat16"), ("float16", "float16"), ("float32", "bfloat16")])
def test_the_16_bit_type_follows_the_checkpoint(stored: str, dtype: str, tmp_path: Path) -> None:
    assert load(write_hf(checkpoint(), tmp_path / "hf", dtype=stored)).config.dtype == dtype


@pytest.mark.parametrize("quant, dtype", [(Quant.F32, "bfloat16"), (Quant.F16, "float16"), (Quant.Q8_0, "bfloat16")])
def test_the_16_bit_type_follows_the_gguf(quant: Quant, dtype: str, tmp_path: Path) -> None:
    assert load(write_gguf(checkpoint(), tmp_path / "m.gguf", quant)).config.dtype == dtype


def test_mixed_16_bit_types_become_bfloat16(tmp_path: Path) -> None:
    c = checkpoint()
    write_hf(c, tmp_path)
    save_safetensors(tmp_path / "model.safetensors", c.weights, lambda n: "float16" if "q_proj" in n else "bfloat16")
    assert open_safetensors(tmp_path, "auto").dtype == "bfloat16"


def test_float32_is_rounded_to_nearest_even(tmp_path: Path) -> None:
    c = checkpoint()
    values = np.random.default_rng(3).standard_normal((288, 64), np.float32)
    c.weights["model.embed_tokens.weight"] = values
    source = open_safetensors(write_hf(c, tmp_path, dtype="float32"), "auto")
    rows = np.concatenate(list(source.row_slices("model.embed_tokens.weight")))
    assert np.array_equal(rows, round16_bits(values, "bfloat16"))


def test_float16_refuses_what_it_cannot_hold(tmp_path: Path) -> None:
    c = checkpoint()
    c.weights["model.embed_tokens.weight"][5, 5] = 1e6
    write_hf(c, tmp_path)
    with pytest.raises(ModelError, match=r"embed_tokens.weight holds 999424, above float16's largest"):
        load(tmp_path, dtype="float16")


QUANTS = (Quant.F32, Quant.F16, Quant.BF16, Quant.Q8_0, Quant.Q4_0, Quant.Q4_1, Quant.Q5_0, Quant.Q5_1)


@pytest.mark.parametrize("quant", QUANTS, ids=lambda q: q.name)
def test_quantised_rows_are_those_of_the_gguf_package(quant: Quant, tmp_path: Path) -> None:
    c = checkpoint()
    gguf_file = read_gguf(write_gguf(c, tmp_path / "m.gguf", quant))
    source = open_gguf(gguf_file, 16, "auto")
    for name in ("model.embed_tokens.weight", "model.layers.1.self_attn.q_proj.weight"):
        expected = gguf.dequantize(gguf.quantize(c.weights[name], quant), quant)
        rows = np.concatenate(list(source.row_slices(name)))
        assert np.array_equal(rows, round16_bits(np.asarray(expected, np.float32), source.dtype)), name


@pytest.mark.parametrize("quant", [Quant.Q2_K, Quant.Q3_K, Quant.Q4_K, Quant.Q5_K, Quant.Q6_K], ids=lambda q: q.name)
def test_k_quants_are_those_of_the_gguf_package_in_slices(
    quant: Quant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package cannot make K-quants, so their blocks are random bytes (with finite scales)."""
    monkeypatch.setattr("queueproof.models.weights.source.SLICE_VALUES", 5 * 512)
    _, block_bytes = gguf.GGML_QUANT_SIZES[quant]
    raw = np.random.default_rng(1).integers(0, 64, (32, 2 * block_bytes), np.uint8)
    w = gguf.GGUFWriter(str(tmp_path / "k.gguf"), "qwen2")
    w.add_tensor("token_embd.weight", raw, raw_dtype=quant)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    source = open_gguf(read_gguf(tmp_path / "k.gguf"), 16, "auto")
    slices = list(source.row_slices("model.embed_tokens.weight"))
    assert len(slices) == 7 and source.shape("model.embed_tokens.weight") == (32, 512)
    assert np.array_equal(np.concatenate(slices), round16_bits(gguf.dequantize(raw, quant), "bfloat16"))


def test_permuted_rows_come_back_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queueproof.models.weights.source.SLICE_VALUES", 40 * 64)
    c = checkpoint(attention_bias=True)
    source = open_gguf(read_gguf(write_gguf(c, tmp_path / "m.gguf")), 16, "auto")
    name = "model.layers.0.self_attn.k_proj"
    slices = list(source.row_slices(f"{name}.weight"))
    assert [len(s) for s in slices] == [32]
    assert [len(s) for s in source.row_slices("model.layers.0.self_attn.q_proj.weight")] == [32, 32]
    assert np.array_equal(widen(slices[0], "bfloat16"), c.weights[f"{name}.weight"])
    assert np.array_equal(source.vector(f"{name}.bias"), c.weights[f"{name}.bias"])


def test_loading_reports_progress(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    load(write_hf(checkpoint(), tmp_path), progress=lambda *p: seen.append(p))
    assert seen[0] == ("loading weights", 0, 4) and seen[-1] == ("loading weights", 4, 4)
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)


def test_the_digest_depends_on_weights_and_configuration_alone(tmp_path: Path) -> None:
    c = checkpoint()
    a, b = load(write_hf(c, tmp_path / "a")), load(write_hf(c, tmp_path / "b"))
    assert a.digest == b.digest and len(a.digest) == 64
    other_eps = load(write_hf(c.changed(rms_norm_eps=1e-6), tmp_path / "c"))
    other_dtype = load(tmp_path / "a", dtype="float16")
    assert len({a.digest, other_eps.digest, other_dtype.digest}) == 3
    assert load(write_gguf(c, tmp_path / "x.gguf")).digest == load(write_gguf(c, tmp_path / "y.gguf")).digest


@pytest.mark.parametrize("max_len", [0, 513])
def test_max_len_is_bounded_by_the_model(max_len: int, tmp_path: Path) -> None:
    with pytest.raises(InvalidParameter, match="1 to 512 positions"):
        load(write_hf(checkpoint(), tmp_path), max_len=max_len)


def test_an_unknown_dtype_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameter, match="'auto', 'bfloat16' and 'float16'"):
        load(tmp_path, dtype="int8")


def test_a_tied_head_that_is_stored_too_must_be_the_embedding(tmp_path: Path) -> None:
    c = checkpoint()
    c.weights["lm_head.weight"] = c.weights["model.embed_tokens.weight"].copy()
    load(write_hf(c, tmp_path / "same"))
    c.weights["lm_head.weight"][0, 0] += 1
    with pytest.raises(ModelError, match=r"lm_head.weight differs from model.embed_tokens.weight"):
        load(write_hf(c, tmp_path / "other"))


def test_a_missing_an_extra_and_a_misshapen_tensor(tmp_path: Path) -> None:
    c = checkpoint()
    name = "model.layers.1.mlp.up_proj.weight"
    weight = c.weights.pop(name)
    with pytest.raises(ModelError, match=rf"the tensor '{name}' is missing"):
        load(write_hf(c, tmp_path / "a"))
    c.weights[name] = weight[:-1]
    with pytest.raises(ModelError, match=r"up_proj.weight has the shape \[95, 64\], the configuration says \[96, 64\]"):
        load(write_hf(c, tmp_path / "b"))
    c.weights[name] = weight
    c.weights["model.layers.2.mlp.up_proj.weight"] = weight
    with pytest.raises(ModelError, match=r"'model.layers.2.mlp.up_proj.weight' has no place"):
        load(write_hf(c, tmp_path / "c"))


def test_a_folder_of_gguf_files_says_what_to_name(tmp_path: Path) -> None:
    write_gguf(checkpoint(), tmp_path / "model.gguf")
    with pytest.raises(ModelError, match=r"name the file itself: .*model.gguf"):
        load(tmp_path)


def test_a_tokenizer_larger_than_the_model_is_refused(tmp_path: Path) -> None:
    folder = write_hf(checkpoint(), tmp_path)
    spec = json.loads((folder / "tokenizer.json").read_text())
    spec["model"]["vocab"]["extra"] = 5000
    (folder / "tokenizer.json").write_text(json.dumps(spec))
    with pytest.raises(ModelError, match="the tokenizer has 5001 ids, the model 288"):
        load(folder)


def test_gguf_fields_that_would_change_the_result_are_refused(tmp_path: Path) -> None:
    path = write_gguf(checkpoint(), tmp_path / "m.gguf", attn_logit_softcapping=30)
    with pytest.raises(UnsupportedModel, match="attn_logit_softcapping=30 is not supported"):
        load(path)
    with pytest.raises(UnsupportedModel, match="expert_count=8 is not supported; only 0 is"):
        load(write_gguf(checkpoint(), tmp_path / "moe.gguf", expert_count=8))


def test_the_configuration_object_refuses_contradictions(tmp_path: Path) -> None:
    good = load(write_hf(checkpoint(), tmp_path)).config
    fields = {name: getattr(good, name) for name in ModelConfig.__slots__}
    for change, message in [
        ({"num_kv_heads": 3}, "multiple"),
        ({"head_dim": 15}, "odd"),
        ({"num_layers": 0}, "at least 1"),
        ({"rms_eps": float("nan")}, "rms_eps"),
        ({"eos_ids": (999,)}, "outside the vocabulary"),
        ({"windows": (None,)}, "windows"),
    ]:
        with pytest.raises((ModelError, UnsupportedModel), match=message):
            ModelConfig(**(fields | change))  # type: ignore[arg-type]
