"""The header of a GGUF file: metadata and where each tensor lies.

The gguf package has a reader too, but it makes a NumPy array of every token of the vocabulary, which takes seconds;
this one takes a tenth of that, and checks the file's bounds. Format: github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from queueproof.contract.errors import ModelError, UnsupportedModel
from queueproof.models.fields import Fields
from queueproof.models.weights.mapped import MappedFile

MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)
DEFAULT_ALIGNMENT: Final = 32
STRING, ARRAY, BOOL = 8, 9, 7
SCALARS: Final = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
MAX_DIMS: Final = 4
MAX_NESTING: Final = 4  # of arrays in arrays


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """shape: outermost dimension first (the file has it the other way round). type: GGML's number. start: in the file."""

    name: str
    shape: tuple[int, ...]
    type: int
    start: int


@dataclass(frozen=True, slots=True)
class GgufFile:
    file: MappedFile
    metadata: Fields
    tensors: dict[str, TensorInfo]


def read_gguf(path: Path) -> GgufFile:
    """Raises ModelError for a file that is no GGUF or is cut short, UnsupportedModel for other versions and splits."""
    file = MappedFile(path)
    cursor = _Cursor(file)
    if file.head(0, 4) != MAGIC:
        raise ModelError(f"{path} is not a GGUF file: it begins with {file.head(0, 4)!r}; get it again")
    cursor.at = 4
    version = cursor.scalar("I")
    if version not in VERSIONS:
        raise UnsupportedModel(
            f"{path}: GGUF version {version} (of a big-endian file, if it is huge) is not supported; 2 and 3 are, "
            "little-endian"
        )
    tensor_count, pair_count = cursor.scalar("Q"), cursor.scalar("Q")
    values: dict[str, Any] = {}
    for _ in range(pair_count):
        key = cursor.string()
        if key in values:
            raise ModelError(f"{path} holds the metadata {key!r} twice; get the file again")
        values[key] = cursor.value(cursor.scalar("I"))
    metadata = Fields(values, str(path))
    if metadata.integer("split.count", 1) > 1:
        raise UnsupportedModel(f"{path} is one part of a split model; join the parts (llama-gguf-split --merge)")
    infos = [_tensor_info(cursor, path) for _ in range(tensor_count)]
    alignment = metadata.integer("general.alignment", DEFAULT_ALIGNMENT)
    if alignment < 1:
        raise ModelError(f"{path}: general.alignment is {alignment}; get the file again")
    data = -(-cursor.at // alignment) * alignment
    tensors = {name: TensorInfo(name, shape, kind, data + offset) for name, shape, kind, offset in infos}
    if len(tensors) != len(infos):
        raise ModelError(f"{path} holds two tensors of one name; get the file again")
    return GgufFile(file, metadata, tensors)


def _tensor_info(cursor: _Cursor, path: Path) -> tuple[str, tuple[int, ...], int, int]:
    name = cursor.string()
    dims = cursor.scalar("I")
    if not 1 <= dims <= MAX_DIMS:
        raise ModelError(f"{path}: tensor {name!r} has {dims} dimensions; get the file again")
    shape = tuple(cursor.scalar("Q") for _ in range(dims))[::-1]
    return name, shape, cursor.scalar("I"), cursor.scalar("Q")


class _Cursor:
    """Reads values one after another; running past the end is a ModelError."""

    def __init__(self, file: MappedFile) -> None:
        self._file, self._buffer, self.at = file, file.buffer(), 0

    def scalar(self, code: str) -> Any:
        size = struct.calcsize("<" + code)
        self._need(size)
        (value,) = struct.unpack_from("<" + code, self._buffer, self.at)
        self.at += size
        return value

    def string(self) -> str:
        length = self.scalar("Q")
        self._need(length)
        raw = bytes(self._buffer[self.at : self.at + length])
        self.at += length
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as e:
            raise ModelError(
                f"{self._file.path}: text at byte {self.at - length} is not UTF-8; get the file again"
            ) from e

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind in SCALARS:
            return self.scalar(SCALARS[kind])
        if kind == STRING:
            return self.string()
        if kind != ARRAY or depth > MAX_NESTING:
            raise ModelError(
                f"{self._file.path}: metadata of unknown type {kind} at byte {self.at}; get the file again"
            )
        item, count = self.scalar("I"), self.scalar("Q")
        if item in SCALARS:
            code = f"<{count}{SCALARS[item]}"
            size = count * struct.calcsize("<" + SCALARS[item])
            self._need(size)
            values = list(struct.unpack_from(code, self._buffer, self.at))
            self.at += size
            return values
        self._need(count)  # each item takes a byte at least: a corrupt count ends here, not in a long loop
        if item == STRING:
            return self._strings(count)
        return [self.value(item, depth + 1) for _ in range(count)]

    def _strings(self, count: int) -> list[str]:
        """`string` so many times, without its calls: vocabularies have 100,000 tokens and as many merges."""
        buffer, at, length_at = self._buffer, self.at, struct.Struct("<Q").unpack_from
        values = []
        try:
            for _ in range(count):
                end = at + 8 + length_at(buffer, at)[0]
                if end > len(buffer):
                    break
                values.append(str(buffer[at + 8 : end], "utf-8"))
                at = end
        except (struct.error, UnicodeDecodeError):
            pass  # `string` meets the same bytes again below, and says what is wrong
        self.at = at
        while len(values) < count:
            values.append(self.string())
        return values

    def _need(self, size: int) -> None:
        if self.at + size > self._file.size:
            raise ModelError(
                f"{self._file.path} is cut short: its header goes on after the end at {self._file.size} bytes; "
                "delete it and get it again"
            )
