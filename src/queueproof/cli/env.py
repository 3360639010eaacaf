"""The environment variables that Queueproof reads. No other module of the package reads one.

| variable | meaning |
|---|---|
| QUEUEPROOF_MODEL | the model that commands use when none is given |
| QUEUEPROOF_CACHE | the folder in which fetched models are kept |
| QUEUEPROOF_THREADS | threads for the kernels |
| QUEUEPROOF_API_KEY | the key that servers are asked with, and that `serve` asks for |
| QUEUEPROOF_TRACEBACK | 1: internal errors show their traceback |

The libraries underneath have variables of their own, such as HF_TOKEN for gated models and OPENBLAS_NUM_THREADS.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from queueproof.contract.errors import InvalidParameter

DEFAULT_MODEL = "smollm2-135m"


@dataclass(frozen=True, slots=True)
class Settings:
    """What the environment says. Empty variables count as unset."""

    model: str = DEFAULT_MODEL
    cache: Path | None = None
    threads: int | None = None
    traceback: bool = False
    api_key: str | None = field(default=None, repr=False)


def settings(environment: Mapping[str, str] | None = None) -> Settings:
    """Reads the environment. Raises InvalidParameter for a value that cannot be used."""
    env = os.environ if environment is None else environment
    cache = env.get("QUEUEPROOF_CACHE")
    return Settings(
        model=env.get("QUEUEPROOF_MODEL") or DEFAULT_MODEL,
        cache=Path(cache).expanduser() if cache else None,
        threads=_threads(env.get("QUEUEPROOF_THREADS")),
        traceback=env.get("QUEUEPROOF_TRACEBACK", "") not in ("", "0"),
        api_key=env.get("QUEUEPROOF_API_KEY") or None,
    )


def api_key(variable: str | None) -> str | None:
    """The key for a server: of the variable that an option names, else of QUEUEPROOF_API_KEY.

    Raises InvalidParameter if the variable named is not set: a server asked without its key answers something else.
    """
    if variable is None:
        return settings().api_key
    key = os.environ.get(variable)
    if not key:
        raise InvalidParameter("api-key-env", variable, "that environment variable is not set")
    return key


def inherited() -> dict[str, str]:
    """The whole environment, for a process that a command starts."""
    return dict(os.environ)


def _threads(text: str | None) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise InvalidParameter("QUEUEPROOF_THREADS", text, "it must be an integer from 1")
    return int(text)
