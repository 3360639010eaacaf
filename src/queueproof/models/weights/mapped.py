"""A file mapped into memory for reading, whose pages can be given back once they have been used."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from queueproof.contract.errors import ModelError


class MappedFile:
    """Read-only. The map is closed when the last array over it is gone.

    Raises ModelError for a file that is missing, unreadable or empty.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            raise ModelError(f"{path} does not exist; get the model again, with all its files") from None
        except ValueError:
            raise ModelError(f"{path} is empty; delete it and get the model again") from None
        except OSError as e:
            raise ModelError(f"{path} cannot be read: {e}") from e
        self.size = len(self._map)
        self._bytes = np.frombuffer(self._map, np.uint8)

    def view(self, start: int, length: int) -> NDArray[np.uint8]:
        """u8 [length] over the file, not a copy. The caller keeps within `size`."""
        return self._bytes[start : start + length]

    def head(self, start: int, length: int) -> bytes:
        """A copy of at most `length` bytes."""
        return self._map[start : start + length]

    def buffer(self) -> memoryview:
        """The whole file, not a copy."""
        return memoryview(self._map)

    def release(self, start: int, length: int) -> None:
        """Takes the whole pages of a range out of this process's memory; reading them again is allowed."""
        if not hasattr(mmap, "MADV_DONTNEED"):  # a platform that gives pages back by itself only
            return
        first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        last = min(start + length, self.size) // mmap.PAGESIZE * mmap.PAGESIZE
        if last > first:
            self._map.madvise(mmap.MADV_DONTNEED, first, last - first)
