"""Files of runs: plain or gzip, one JSON value or one a line. Errors name the file, the line and what was found."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from queueproof.contract.errors import ContractError, UsageError

Progress = Callable[[int, int], None]  # bytes read so far, of how many


class Record(NamedTuple):
    """A JSON value. where: file and line, or place in a list."""

    where: str
    value: Any


def no_progress(done: int, total: int) -> None:
    """For those who need none."""


def is_zip(path: Path) -> bool:
    """Raises UsageError if it cannot be read."""
    with _open(path) as file:
        return file.read(4) == b"PK\x03\x04"


def records(path: Path, progress: Progress = no_progress) -> Iterator[Record]:
    """The values of a file: of one with a value a line, of a list its items, else the one value.

    NaN and Infinity are numbers, as Python's writers have it. Raises UsageError, ContractError.
    """
    with _open(path) as raw, _text(raw) as file:
        total = path.stat().st_size
        try:
            first = file.readline()
            while first and not first.strip():
                first = file.readline()
            if not first:
                return
            value = _value(first)
            if value is _BROKEN or isinstance(value, list):
                yield from _whole(path, first + file.read())
            else:
                yield Record(f"{path.name}, line 1", value)
                yield from _lines(path, file, raw, total, progress)
        except UnicodeDecodeError as error:
            raise ContractError(
                f"{path} is not text in UTF-8: {error.reason} at byte {error.start} of a block"
            ) from None
        except (OSError, EOFError, gzip.BadGzipFile) as error:
            raise UsageError(f"{path} cannot be read: {error}") from None


_BROKEN = object()


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return _BROKEN


def _lines(path: Path, file: IO[str], raw: IO[bytes], total: int, progress: Progress) -> Iterator[Record]:
    for number, line in enumerate(file, 2):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            cut = "" if line.endswith("\n") else " The file ends in this line: it may have been cut."
            raise ContractError(f"{path}, line {number} is not JSON ({error}): {line.strip():.80}{cut}") from None
        if number % 64 == 0:
            progress(raw.tell(), total)
        yield Record(f"{path.name}, line {number}", value)


def _whole(path: Path, text: str) -> Iterator[Record]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ContractError(f"{path} is neither JSON nor JSON lines ({error}): {text.strip():.80}") from None
    if isinstance(value, list):
        yield from (Record(f"{path.name}, item {i}", item) for i, item in enumerate(value, 1))
    else:
        yield Record(path.name, value)


def _open(path: Path) -> IO[bytes]:
    try:
        return path.open("rb")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None


def _text(raw: IO[bytes]) -> io.TextIOWrapper:
    zipped = raw.read(2) == b"\x1f\x8b"
    raw.seek(0)
    return io.TextIOWrapper(gzip.GzipFile(fileobj=raw) if zipped else raw, encoding="utf-8-sig")
