"""Frozen dataclasses to plain JSON values, back, and to a JSON schema, all from one reading of their type hints.

Fields may be str, int, float, bool, a StrEnum, a dataclass, `tuple[T, ...]` of those, or any of them `| None`.
A trailing underscore of a field name (`class_`) is not part of its key. Reading is strict: an unknown key,
a missing key or a value of another type is a ContractError that says where.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import types
import typing
from enum import StrEnum
from typing import Any, TypeVar

from queueproof.contract.errors import ContractError

T = TypeVar("T")
_SCALARS: dict[type, str] = {str: "string", bool: "boolean", int: "integer", float: "number"}


def to_plain(value: Any) -> Any:
    """Dicts, lists and scalars that `json.dumps` writes. Fields that are None are left out."""
    if type(value) in _SCALARS:  # most values are, in lists of thousands
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        pairs = ((f.name.rstrip("_"), getattr(value, f.name)) for f in dataclasses.fields(value))
        return {key: to_plain(item) for key, item in pairs if item is not None}
    if isinstance(value, tuple):
        return [to_plain(item) for item in value]
    return value.value if isinstance(value, StrEnum) else value


def from_plain(kind: type[T], plain: object, where: str = "document") -> T:
    """A `kind` (a dataclass) from what `json.loads` gave. Raises ContractError."""
    return typing.cast(T, _read(kind, plain, where))


def to_text(value: Any) -> str:
    """A document as pretty JSON in field order, with a final newline."""
    return encodable_json(to_plain(value), indent=2) + "\n"


def encodable_json(plain: Any, indent: int | None = None) -> str:
    """JSON that can be written as UTF-8 whatever its texts hold: with a lone surrogate in one, all is ASCII."""
    text = json.dumps(plain, indent=indent, ensure_ascii=False, allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(plain, indent=indent, allow_nan=False)
    return text


def from_text(kind: type[T], text: str, what: str, version: str) -> T:
    """A document, a dataclass whose field `schema` is `version`, from its JSON. what: its name in messages.

    Raises ContractError: not JSON, another schema, unknown or missing keys, wrong types.
    """
    try:
        plain = json.loads(text)
    except ValueError as error:
        raise ContractError(f"the {what} is not JSON: {error}") from None
    if isinstance(plain, dict) and plain.get("schema") != version:
        # First of all checks: another version may well have other keys.
        raise ContractError(f"{what} of schema {plain.get('schema')!r}; this reader knows {version!r}")
    return from_plain(kind, plain)


def schema_of(kind: type, definitions: dict[str, Any]) -> dict[str, Any]:
    """The JSON schema of a field type; dataclasses and enums are added to `definitions` and referred to."""
    inner, optional = _without_none(kind)
    if optional:
        return schema_of(inner, definitions)  # an absent key stands for None
    if typing.get_origin(kind) is tuple:
        return {"type": "array", "items": schema_of(typing.get_args(kind)[0], definitions)}
    if kind in _SCALARS:
        return {"type": _SCALARS[kind]}
    if kind.__name__ not in definitions:
        if issubclass(kind, StrEnum):
            definitions[kind.__name__] = {"type": "string", "enum": [member.value for member in kind]}
        else:
            definitions[kind.__name__] = _object_schema(kind, definitions)
    return {"$ref": f"#/$defs/{kind.__name__}"}


def document_schema(kind: type, title: str, version: str) -> dict[str, Any]:
    """The JSON schema (2020-12) of a document: a dataclass whose field `schema` is always `version`."""
    definitions: dict[str, Any] = {}
    schema_of(kind, definitions)
    top = definitions.pop(kind.__name__)
    top["properties"]["schema"] = {"const": version}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title, **top, "$defs": definitions}


def schema_text(schema: dict[str, Any]) -> str:
    """A schema as a file in docs/ holds it."""
    return json.dumps(schema, indent=2) + "\n"


def _object_schema(kind: type, definitions: dict[str, Any]) -> dict[str, Any]:
    hints = _hints(kind)
    return {
        "type": "object",
        "description": (kind.__doc__ or "").split("\n")[0],
        "additionalProperties": False,
        "required": [name.rstrip("_") for name, hint in hints.items() if not _without_none(hint)[1]],
        "properties": {name.rstrip("_"): schema_of(hint, definitions) for name, hint in hints.items()},
    }


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _without_none(hint: Any) -> tuple[Any, bool]:
    """`T | None` as (T, True), anything else as (hint, False)."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        rest = [arm for arm in typing.get_args(hint) if arm is not type(None)]
        return rest[0], True
    return hint, False


def _read(hint: Any, plain: object, where: str) -> Any:
    hint, _ = _without_none(hint)
    if typing.get_origin(hint) is tuple:
        if not isinstance(plain, list):
            raise ContractError(f"{where} must be a list, not {plain!r}")
        kind = typing.get_args(hint)[0]
        if kind in _SCALARS and kind is not float and set(map(type, plain)) <= {kind}:
            return tuple(plain)  # lists of thousands
        return tuple(_read(kind, item, f"{where}[{i}]") for i, item in enumerate(plain))
    if hint in _SCALARS:
        return _read_scalar(hint, plain, where)
    if issubclass(hint, StrEnum):
        try:
            return hint(plain)
        except ValueError:
            raise ContractError(f"{where} is {plain!r}; it must be one of: {', '.join(hint)}") from None
    return _read_object(hint, plain, where)


def _read_scalar(hint: type, plain: object, where: str) -> Any:
    if hint is float and type(plain) is int:
        return float(plain)  # JSON has one number type: 1.0 may arrive as 1
    if type(plain) is not hint or (isinstance(plain, float) and not math.isfinite(plain)):
        raise ContractError(f"{where} must be a {_SCALARS[hint]}, not {plain!r}")
    return plain


def _read_object(hint: Any, plain: object, where: str) -> Any:
    if not isinstance(plain, dict):
        raise ContractError(f"{where} must be an object, not {plain!r}")
    hints = _hints(hint)
    by_key = {name.rstrip("_"): name for name in hints}
    unknown = sorted(str(key) for key in plain if key not in by_key)
    if unknown:
        raise ContractError(f"{where} has unknown keys: {', '.join(unknown)}; known are: {', '.join(by_key)}")
    missing = [key for key, name in by_key.items() if key not in plain and not _without_none(hints[name])[1]]
    if missing:
        raise ContractError(f"{where} lacks: {', '.join(missing)}")
    values = {by_key[key]: _read(hints[by_key[key]], value, f"{where}.{key}") for key, value in plain.items()}
    return hint(**values)
