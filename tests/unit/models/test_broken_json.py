"""Values that damage or malice puts into JSON files and GGUF metadata: a typed error, soon, whatever they are."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from queueproof.contract.errors import InvalidParameter, ModelError
from queueproof.kernels.registry import backend
from queueproof.models.chat import ChatTemplate
from queueproof.models.control import ControlTokens
from queueproof.models.loader import load_model
from tests.support.checkpoints import LLAMA3_ROPE, checkpoint, write_gguf, write_hf

NESTED = "[" * 100_000


def load(path: Path) -> None:
    load_model(path, backend("ieee/1", "cpu"))


def change(file: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    fields = json.loads(file.read_text())
    edit(fields)
    file.write_text(json.dumps(fields))


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("layers", [0, 2**31, 2**63, 10**400])
def test_layers_without_end(family: str, layers: int, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="num_hidden_layers"):
        load(write_hf(checkpoint(family, use_sliding_window=True).changed(num_hidden_layers=layers), tmp_path))


@pytest.mark.parametrize(
    "config",
    [
        {"rms_norm_eps": 10**400},
        {"max_position_embeddings": 10**9, "rope_scaling": {"rope_type": "linear", "factor": 1e9}},
        {"rope_scaling": LLAMA3_ROPE | {"original_max_position_embeddings": 10**400}},
        {"sliding_window": 10**30},
    ],
)
def test_huge_numbers(config: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ModelError):
        load(write_hf(checkpoint("mistral").changed(**config), tmp_path))


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"])
def test_nested_without_end(name: str, tmp_path: Path) -> None:
    folder = write_hf(checkpoint(), tmp_path)
    text = NESTED.encode()
    (folder / name).write_bytes(len(text).to_bytes(8, "little") + text if name.endswith("safetensors") else text)
    with pytest.raises(ModelError):
        load(folder)


def test_a_tensor_twice(tmp_path: Path) -> None:
    folder = write_hf(checkpoint(), tmp_path)
    file = folder / "model.safetensors"
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = data[8 : 8 + length]
    name, entry = next(iter(json.loads(header).items()))
    header = header[:-1] + f", {json.dumps(name)}: {json.dumps(entry)}}}".encode()
    file.write_bytes(len(header).to_bytes(8, "little") + header + data[8 + length :])
    with pytest.raises(ModelError, match="twice"):
        load(folder)


@pytest.mark.parametrize(
    "edit",
    [
        lambda t: t["model"]["vocab"].update(x=None),
        lambda t: t["model"]["vocab"].update(x=-1),
        lambda t: t["model"]["vocab"].update(x=1.5),
        lambda t: t["model"].update(vocab=[]),
        lambda t: t["model"].update(merges=[1]),
        lambda t: t["model"].update(merges=[["a"]]),
        lambda t: t["model"].update(unk_token=3),
        lambda t: t.update(model=3),
        lambda t: t.update(added_tokens=3),
        lambda t: t["added_tokens"][0].update(content=True),
        lambda t: t["added_tokens"][0].update(content=""),
        lambda t: t["added_tokens"][0].update(id=0.5),
        lambda t: t["added_tokens"][0].pop("special"),
        lambda t: t.update(decoder=[]),
        lambda t: t.update(decoder={}),
        lambda t: t.update(decoder={"type": ["ByteLevel"]}),
        lambda t: t.update(decoder={"type": "Sequence"}),
        lambda t: t.update(pre_tokenizer={"type": "Sequence", "pretokenizers": [1]}),
        lambda t: t.update(
            post_processor={
                "type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "a"}}, {"Sequence": {"id": "A"}}],
                "special_tokens": {"a": {"ids": [100_000]}},
            }
        ),
        lambda t: t.update(post_processor={"type": "TemplateProcessing", "single": [], "special_tokens": {}}),
    ],
)
def test_tokenizers(edit: Callable[[dict[str, Any]], object], tmp_path: Path) -> None:
    folder = write_hf(checkpoint(), tmp_path)
    change(folder / "tokenizer.json", edit)
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        load(folder)


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def with_metadata(file: Path, *pairs: bytes) -> None:
    data = file.read_bytes()
    count = int.from_bytes(data[16:24], "little") + len(pairs)
    file.write_bytes(data[:16] + count.to_bytes(8, "little") + b"".join(pairs) + data[24:])


def test_gguf_arrays_in_arrays(tmp_path: Path) -> None:
    file = write_gguf(checkpoint(), tmp_path / "m.gguf")
    with_metadata(file, text("x") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 100_000)
    with pytest.raises(ModelError):
        load(file)


def test_gguf_metadata_twice(tmp_path: Path) -> None:
    file = write_gguf(checkpoint(), tmp_path / "m.gguf")
    with_metadata(file, text("general.architecture") + struct.pack("<I", 8) + text("llama"))
    with pytest.raises(ModelError, match="twice"):
        load(file)


@pytest.mark.parametrize("field", ["block_count", "attention__key_length"])
def test_gguf_counts_without_end(field: str, tmp_path: Path) -> None:
    file = write_gguf(checkpoint(), tmp_path / "m.gguf")
    data = file.read_bytes()
    key = text(f"llama.{field.replace('__', '.')}") + struct.pack("<I", 4)
    at = data.index(key) + len(key)
    file.write_bytes(data[:at] + b"\xf0\xff\xff\xff" + data[at + 4 :])
    with pytest.raises(ModelError):
        load(file)


@pytest.mark.parametrize(
    "template",
    [
        "{{ 1 / 0 }}",
        "{% for i in range(10 ** 9) %}{% endfor %}",
        "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
    ],
)
def test_templates_that_fail(template: str) -> None:
    with pytest.raises(InvalidParameter, match="chat template cannot render"):
        ChatTemplate(template, {}, "here").render([{"role": "user", "content": "hi"}], ControlTokens([]))


def test_a_template_that_is_no_text(tmp_path: Path) -> None:
    folder = write_hf(checkpoint(), tmp_path)
    (folder / "chat_template.jinja").write_bytes(b"\xff\xfe{{")
    with pytest.raises(ModelError, match=r"chat_template\.jinja"):
        load(folder)
