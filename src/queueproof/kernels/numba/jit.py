"""How every kernel here is compiled: no fast-math, no GIL, no Python errors inside, kept on disk.

The disk cache is keyed by a digest of all kernel sources (numba's own key sees only the file of the outermost
function, so a changed callee would be served stale code, that is: other bits), by numba's version and, by numba itself,
by the CPU type and its features.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import shutil
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import llvmlite
import numba
from numba.core import config as numba_config
from numba.core.caching import FunctionCache, IndexDataCacheFile
from platformdirs import user_cache_path

F = TypeVar("F", bound=Callable[..., Any])


def source_digest() -> str:
    """SHA-256 (16 hex digits) over the kernel sources, the arithmetic's constants and the compiler's versions."""
    here = Path(__file__).parent
    h = hashlib.sha256(f"{numba.__version__} {llvmlite.__version__}".encode())
    for path in [*sorted(here.glob("*.py")), here.parent / "ops.py", here.parents[1] / "arithmetic" / "ieee1.py"]:
        h.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return h.hexdigest()[:16]


CACHE_DIR: Path = user_cache_path("queueproof") / "kernels" / source_digest()
KEEP_SECONDS = 30 * 24 * 3600


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


# Where it is not, kernels are compiled in each process; numba's other places would not notice a changed callee.
KEPT: bool = _writable(CACHE_DIR)


def state() -> str:
    """What a first call will have to do, for people."""
    if not KEPT:
        return f"compiling kernels (about a minute; {CACHE_DIR} is not writable, so each process has to)"
    if not any(CACHE_DIR.glob("*/*.nbc")):  # numba makes the folders when it is imported
        return "compiling kernels (about a minute, once on this machine)"
    return "loading kernels"


def drop_old_code() -> None:
    """Removes what other versions compiled a month ago or more; they would compile again."""
    oldest = time.time() - KEEP_SECONDS
    for folder in CACHE_DIR.parent.glob("*"):
        with suppress(FileNotFoundError):  # another process drops it too
            if folder != CACHE_DIR and folder.is_dir() and folder.stat().st_mtime < oldest:
                shutil.rmtree(folder, ignore_errors=True)


class _Files(IndexDataCacheFile):
    """Machine code with its SHA-256 before it: a file that lost bytes must not be run."""

    def _save_data(self, name: str, data: object) -> None:
        dumped = self._dump(data)
        with self._open_for_write(self._data_path(name)) as file:
            file.write(hashlib.sha256(dumped).digest() + dumped)

    def _load_data(self, name: str) -> object:
        stored = Path(self._data_path(name)).read_bytes()
        if hashlib.sha256(stored[32:]).digest() != stored[:32]:
            raise ValueError(f"{name} is damaged")
        return pickle.loads(stored[32:])


class _Cache(FunctionCache):
    """numba's disk cache, except that what goes wrong on the disk costs a compilation and not the program."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        super().__init__(fn)
        names = self._impl.filename_base, self._impl.locator.get_source_stamp()
        self._cache_file = _Files(self._cache_path, *names)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except Exception as error:  # a damaged pickle raises anything
            self._complain("read", error)
            with suppress(OSError):
                self.flush()  # else nothing could be added to a damaged index
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        except (OSError, ValueError, EOFError, pickle.PickleError) as error:
            self._complain("written", error)

    def _complain(self, what: str, error: Exception) -> None:
        warnings.warn(f"compiled kernels in {CACHE_DIR} cannot be {what} ({error!r})", RuntimeWarning, stacklevel=2)


def _disk_cache(fn: Callable[..., Any]) -> _Cache | None:
    """None where CACHE_DIR cannot be written after all (a full disk); numba would then look for another place."""
    if not KEPT:
        return None
    try:
        cache = _Cache(fn)
    except RuntimeError:  # numba found no place at all
        return None
    return cache if CACHE_DIR in Path(cache.cache_path).parents else None


def kernel(fn: F) -> F:
    """Compiles on first call, or loads machine code that an earlier process compiled."""
    before = numba_config.CACHE_DIR
    numba_config.CACHE_DIR = str(CACHE_DIR)  # read once, while the decorator builds the cache's locator
    try:
        compiled = numba.njit(
            nogil=True, fastmath=False, error_model="numpy", boundscheck=False, no_cpython_wrapper=False
        )(fn)
        cache = _disk_cache(fn)
        if cache is not None:
            compiled._cache = cache  # what njit(cache=True) does
        return compiled
    finally:
        numba_config.CACHE_DIR = before


def inner(fn: F) -> F:
    """A function that kernels call; compiled into them, without a cache of its own."""
    return numba.njit(nogil=True, fastmath=False, error_model="numpy", boundscheck=False)(fn)
