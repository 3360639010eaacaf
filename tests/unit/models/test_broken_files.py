"""Files that are cut short or corrupt: an error that names the file and what to do, never a crash or another model."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from queueproof.arithmetic.oracle.backend import OracleBackend
from queueproof.contract.errors import ModelError, QueueproofError, UnsupportedModel
from queueproof.models.loader import load_model
from tests.support.checkpoints import checkpoint, write_gguf, write_hf


@pytest.fixture(scope="module")
def whole_gguf(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_gguf(checkpoint(), tmp_path_factory.mktemp("gguf") / "m.gguf").read_bytes()


def load_bytes(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    load_model(path, OracleBackend())


@pytest.mark.parametrize("part", [1e-5, 0.01, 0.03, 0.06, 0.5, 0.99, 1 - 1e-5])
def test_a_gguf_cut_short(part: float, whole_gguf: bytes, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"m\.gguf .*(cut short|not a GGUF)"):
        load_bytes(whole_gguf[: max(1, int(len(whole_gguf) * part))], tmp_path)


def test_a_gguf_cut_anywhere_in_its_header(whole_gguf: bytes, tmp_path: Path) -> None:
    for length in range(4, 8000, 97):
        with pytest.raises(ModelError, match="cut short"):
            load_bytes(whole_gguf[:length], tmp_path)


def test_no_gguf_at_all(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is empty"):
        load_bytes(b"", tmp_path)
    with pytest.raises(ModelError, match=r"not a GGUF file: it begins with b'PK"):
        load_bytes(b"PK\x03\x04" + bytes(100), tmp_path)


@pytest.mark.parametrize("version", [1, 4, 3 << 24])
def test_another_version(version: int, whole_gguf: bytes, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=f"GGUF version {version}"):
        load_bytes(whole_gguf[:4] + version.to_bytes(4, "little") + whole_gguf[8:], tmp_path)


def test_corrupt_headers_end_in_a_typed_error_or_load(whole_gguf: bytes, tmp_path: Path) -> None:
    """One random byte of the header changed, many times over. A change in a name or a number may be harmless."""
    rng = random.Random(5)
    failed = 0
    for _ in range(150):
        data = bytearray(whole_gguf)
        data[rng.randrange(4, 9000)] ^= 1 << rng.randrange(8)
        try:
            load_bytes(bytes(data), tmp_path)
        except QueueproofError as e:
            failed += 1
            assert str(e)
    assert failed > 20


def test_safetensors_cut_short(tmp_path: Path) -> None:
    path = write_hf(checkpoint(), tmp_path) / "model.safetensors"
    data = path.read_bytes()
    for length in (1, 8, 100, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(ModelError, match=r"model.safetensors is (cut short|not a safetensors)"):
            load_model(tmp_path, OracleBackend())
    path.write_bytes(data + b"\0")
    with pytest.raises(ModelError, match="bytes left over"):
        load_model(tmp_path, OracleBackend())


@pytest.mark.parametrize(
    "entry, message",
    [
        ({"dtype": "I8", "shape": [4], "data_offsets": [0, 4]}, "type I8; supported are F32, F16, BF16"),
        ({"dtype": "F32", "shape": [4], "data_offsets": [0, 4]}, "does not fill its 4 bytes"),
        ({"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}, "malformed"),
        ({"dtype": "F32", "shape": [1]}, "malformed"),
        ("x", "malformed"),
    ],
)
def test_safetensors_with_a_bad_entry(entry: object, message: str, tmp_path: Path) -> None:
    write_hf(checkpoint(), tmp_path)
    header = json.dumps({"x": entry}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    with pytest.raises((ModelError, UnsupportedModel), match=message):
        load_model(tmp_path, OracleBackend())


def test_a_missing_shard_and_a_wrong_index(tmp_path: Path) -> None:
    write_hf(checkpoint(), tmp_path, shards=2)
    index = tmp_path / "model.safetensors.index.json"
    good = index.read_text()
    wrong = json.loads(good)
    wrong["weight_map"]["no.such.tensor"] = "model-00001-of-00002.safetensors"
    index.write_text(json.dumps(wrong))
    with pytest.raises(ModelError, match=r"lacks the tensor 'no.such.tensor'"):
        load_model(tmp_path, OracleBackend())
    wrong["weight_map"]["no.such.tensor"] = "../model.safetensors"
    index.write_text(json.dumps(wrong))
    with pytest.raises(ModelError, match="is not the name of a file in the folder"):
        load_model(tmp_path, OracleBackend())
    index.write_text(good)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelError, match=r"model-00002-of-00002.safetensors does not exist"):
        load_model(tmp_path, OracleBackend())


def test_weights_in_another_format(tmp_path: Path) -> None:
    write_hf(checkpoint(), tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(UnsupportedModel, match=r"holds pytorch_model.bin, but neither"):
        load_model(tmp_path, OracleBackend())
    (tmp_path / "pytorch_model.bin").unlink()
    with pytest.raises(ModelError, match="holds no weights"):
        load_model(tmp_path, OracleBackend())


@pytest.mark.parametrize("text", ["{}", '{"model": {"type": "BPE"}}', "[]", '{"model": 3}'])
def test_a_broken_tokenizer(text: str, tmp_path: Path) -> None:
    (write_hf(checkpoint(), tmp_path) / "tokenizer.json").write_text(text)
    with pytest.raises((ModelError, UnsupportedModel), match=r"tokenizer.json"):
        load_model(tmp_path, OracleBackend())


def test_a_folder_with_a_sentencepiece_file_only(tmp_path: Path) -> None:
    (write_hf(checkpoint(), tmp_path) / "tokenizer.json").rename(tmp_path / "tokenizer.model")
    with pytest.raises(UnsupportedModel, match=r"only tokenizer.model"):
        load_model(tmp_path, OracleBackend())
