"""A Hugging Face folder of safetensors: `model.safetensors`, or shards named by `model.safetensors.index.json`.

The header is read here because the safetensors package gives NumPy no bfloat16 and no way to release pages.
Format: u64 little-endian length n, n bytes of JSON {name: {dtype, shape, data_offsets}}, then the data.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from queueproof.contract.errors import ModelError, UnsupportedModel
from queueproof.models.fields import read_json
from queueproof.models.weights.mapped import MappedFile
from queueproof.models.weights.source import DtypeChoice, StoredTensor, StoredWeights

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
MAX_HEADER = 100_000_000  # the format's own limit
AGAIN = "delete it and get it again"


def open_safetensors(folder: Path, dtype: DtypeChoice) -> StoredWeights:
    """The weights of a folder.

    Raises ModelError for a missing, truncated or malformed file, UnsupportedModel for a tensor type other than
    F32, F16 and BF16 and for folders that hold weights in another format.
    """
    tensors: dict[str, StoredTensor] = {}
    for file, wanted in weight_files(folder).items():
        found = read_header(MappedFile(file))
        if wanted is not None:
            missing = sorted(wanted - found.keys())
            if missing:
                raise ModelError(f"{file} lacks the tensor {missing[0]!r} that {INDEX} says it holds; {AGAIN}")
            found = {name: found[name] for name in found if name in wanted}
        tensors |= found
    return StoredWeights(tensors, dtype)


def weight_files(folder: Path) -> dict[Path, set[str] | None]:
    """The files to read, each with the tensors it is to give (None: all of them)."""
    if (folder / SINGLE).is_file():
        return {folder / SINGLE: None}
    if (folder / INDEX).is_file():
        weight_map = read_json(folder / INDEX).mapping("weight_map")
        files: dict[Path, set[str] | None] = {}
        for name, file in weight_map.items():
            if not isinstance(file, str) or Path(file).name != file:
                raise ModelError(f"{folder / INDEX}: {file!r} is not the name of a file in the folder")
            names = files.setdefault(folder / file, set())
            assert names is not None
            names.add(name)
        if not files:
            raise ModelError(f"{folder / INDEX} names no tensors; {AGAIN}")
        return dict(sorted(files.items()))
    others = sorted(p.name for pattern in ("*.safetensors", "*.bin", "*.pt", "*.pth") for p in folder.glob(pattern))
    if others:
        raise UnsupportedModel(
            f"{folder} holds {others[0]}, but neither {SINGLE} nor {INDEX}; "
            "only these and GGUF are read: convert it (transformers' save_pretrained writes safetensors)"
        )
    raise ModelError(
        f"{folder} holds no weights: neither {SINGLE} nor {INDEX}; get the model again, with all its files"
    )


def read_header(file: MappedFile) -> dict[str, StoredTensor]:
    """The tensors of one file, checked against its size."""
    start, header = _parse_header(file)
    tensors: dict[str, StoredTensor] = {}
    end_of_data = start
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        kind, shape, begin, end = _entry(file, name, entry)
        if kind not in ITEM_BYTES:
            raise UnsupportedModel(
                f"{file.path}: tensor {name!r} has type {kind}; supported are {', '.join(ITEM_BYTES)}: "
                "use the 16-bit checkpoint"
            )
        if end - begin != math.prod(shape) * ITEM_BYTES[kind] or begin < 0:
            raise ModelError(
                f"{file.path}: tensor {name!r} of shape {shape} does not fill its {end - begin} bytes; {AGAIN}"
            )
        end_of_data = max(end_of_data, start + end)
        row_bytes = (shape[-1] if shape else 1) * ITEM_BYTES[kind]
        tensors[name] = StoredTensor(file, start + begin, kind, shape, row_bytes)
    if end_of_data != file.size:
        state = "is cut short" if file.size < end_of_data else "has bytes left over"
        raise ModelError(f"{file.path} {state}: its header describes {end_of_data} bytes, it has {file.size}; {AGAIN}")
    return tensors


def _parse_header(file: MappedFile) -> tuple[int, dict[str, Any]]:
    length = int.from_bytes(file.head(0, 8), "little")
    if file.size < 8 or not 2 <= length <= MAX_HEADER:
        raise ModelError(f"{file.path} is not a safetensors file (its header would have {length} bytes); {AGAIN}")
    if 8 + length > file.size:
        raise ModelError(f"{file.path} is cut short: a header of {length} bytes in a file of {file.size}; {AGAIN}")
    try:
        header = json.loads(file.head(8, length), object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as e:
        raise ModelError(f"{file.path} is not a safetensors file (header: {e}); {AGAIN}") from e
    if not isinstance(header, dict):
        raise ModelError(f"{file.path} is not a safetensors file (its header is no object); {AGAIN}")
    return 8 + length, header


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _entry(file: MappedFile, name: str, entry: Any) -> tuple[str, tuple[int, ...], int, int]:
    try:
        kind, shape, (begin, end) = str(entry["dtype"]), tuple(entry["shape"]), entry["data_offsets"]
        if not all(type(v) is int and v >= 0 for v in (*shape, begin, end)):
            raise ValueError("a size that is no count")
    except (KeyError, TypeError, ValueError) as e:
        raise ModelError(f"{file.path}: the header's entry of {name!r} is malformed ({e!r}); {AGAIN}") from e
    return kind, shape, begin, end
