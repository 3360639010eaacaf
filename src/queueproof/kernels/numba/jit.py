"""How every kernel here is compiled: no fast-math, no GIL, no Python errors inside, kept on disk.

The disk cache is keyed by a digest of all kernel sources (numba's own key sees only the file of the outermost
function, so a changed callee would be served stale code, that is: other bits), by numba's version and, by numba itself,
by the CPU type and its features.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import llvmlite
import numba
from numba.core import config as numba_config
from platformdirs import user_cache_path

F = TypeVar("F", bound=Callable[..., Any])


def source_digest() -> str:
    """SHA-256 (16 hex digits) over the kernel sources, the arithmetic's constants and the compiler's versions."""
    here = Path(__file__).parent
    h = hashlib.sha256(f"{numba.__version__} {llvmlite.__version__}".encode())
    for path in [*sorted(here.glob("*.py")), here.parents[1] / "arithmetic" / "ieee1.py"]:
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
    if not any(CACHE_DIR.iterdir()):
        return "compiling kernels (about a minute, once on this machine)"
    return "loading kernels"


def drop_old_code() -> None:
    """Removes what other versions compiled a month ago or more; they would compile again."""
    oldest = time.time() - KEEP_SECONDS
    for folder in CACHE_DIR.parent.glob("*"):
        if folder != CACHE_DIR and folder.is_dir() and folder.stat().st_mtime < oldest:
            shutil.rmtree(folder, ignore_errors=True)


def kernel(fn: F) -> F:
    """Compiles on first call, or loads machine code that an earlier process compiled."""
    before = numba_config.CACHE_DIR
    numba_config.CACHE_DIR = str(CACHE_DIR)  # read once, while the decorator builds the cache's locator
    try:
        return numba.njit(
            cache=KEPT, nogil=True, fastmath=False, error_model="numpy", boundscheck=False, no_cpython_wrapper=False
        )(fn)
    finally:
        numba_config.CACHE_DIR = before


def inner(fn: F) -> F:
    """A function that kernels call; compiled into them, without a cache of its own."""
    return numba.njit(nogil=True, fastmath=False, error_model="numpy", boundscheck=False)(fn)
