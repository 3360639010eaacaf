"""Typed reading of a JSON object or of GGUF metadata: a wrong type is an error that names file, field and value."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from queueproof.contract.errors import ModelError

MOST = 2**53  # the integers that JSON carries exactly


class Fields:
    """A mapping read from `source` (named in errors). `None` counts as absent, as it does in config.json."""

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        self._values, self.source = values, source

    def __contains__(self, name: str) -> bool:
        return self._values.get(name) is not None

    def items(self) -> Iterator[tuple[str, Any]]:
        """Fields that are not null."""
        return ((k, v) for k, v in self._values.items() if v is not None)

    def raw(self, name: str) -> Any:
        return self._values.get(name)

    def has_key(self, name: str) -> bool:
        """Whether the field is written at all, be it null."""
        return name in self._values

    def integer(self, name: str, default: int | None = None) -> int:
        value = self._need(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or abs(value) > MOST:
            raise self._wrong(name, value, "an integer")
        return value

    def count(self, name: str, most: int) -> int:
        """An integer from 1 to `most`: what a loop or a table will be as long as, before anything else bounds it."""
        value = self.integer(name)
        if not 1 <= value <= most:
            raise self._wrong(name, value, f"an integer from 1 to {most}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self._need(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= sys.float_info.max:
            raise self._wrong(name, value, "a finite number")
        return float(value)

    def flag(self, name: str, default: bool | None = None) -> bool:
        value = self._need(name, default)
        if not isinstance(value, bool):
            raise self._wrong(name, value, "true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        value = self._need(name, default)
        if not isinstance(value, str):
            raise self._wrong(name, value, "a string")
        return value

    def mapping(self, name: str) -> Fields:
        """A nested object; an absent one is empty."""
        value = self._values.get(name)
        if value is None:
            value = {}
        if not isinstance(value, Mapping):
            raise self._wrong(name, value, "an object")
        return Fields(value, f"{self.source}, {name}")

    def texts(self, name: str) -> list[str]:
        value = self._need(name, None)
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise self._wrong(name, value, "a list of strings")
        return value

    def ids(self, name: str) -> tuple[int, ...]:
        """Token ids: an integer or a list of them; none if absent."""
        value = self._values.get(name)
        if value is None:
            return ()
        ids = value if isinstance(value, list) else [value]
        if not all(isinstance(v, int) and not isinstance(v, bool) for v in ids):
            raise self._wrong(name, value, "a token id or a list of them")
        return tuple(ids)

    def _need(self, name: str, default: Any) -> Any:
        value = self._values.get(name)
        if value is None:
            value = default
        if value is None:
            raise ModelError(
                f"{self.source}: the field {name!r} is missing; get the file again from where it came from"
            )
        return value

    def _wrong(self, name: str, value: object, wanted: str) -> ModelError:
        shown = repr(value)
        if len(shown) > 80:
            shown = shown[:77] + "..."
        return ModelError(f"{self.source}: {name} is {shown}, expected {wanted}")


def read_json(path: Path) -> Fields:
    """The object in a JSON file. Raises ModelError if there is none."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path} does not exist; a model folder needs it") from None
    except OSError as e:
        raise ModelError(f"{path} cannot be read: {e}") from e
    except (ValueError, RecursionError) as e:
        raise ModelError(f"{path} is not valid JSON ({e}); get the file again") from e
    if not isinstance(value, dict):
        raise ModelError(f"{path} holds {type(value).__name__}, expected an object")
    return Fields(value, str(path))
