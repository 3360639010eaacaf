"""Queueproof: LLM inference whose answer depends on the request alone.

The public names are imported when they are first used, so `import queueproof` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from queueproof.version import __version__ as __version__

if TYPE_CHECKING:
    from queueproof.contract.classes import DeterminismClass
    from queueproof.contract.errors import QueueproofError
    from queueproof.engine.async_engine import AsyncEngine
    from queueproof.engine.config import EngineConfig
    from queueproof.engine.engine import Engine
    from queueproof.engine.llm import LLM
    from queueproof.engine.outputs import CompletionOutput, Logprob, RequestOutput
    from queueproof.engine.sampling_params import SamplingParams

_HOME = {
    "AsyncEngine": "queueproof.engine.async_engine",
    "CompletionOutput": "queueproof.engine.outputs",
    "DeterminismClass": "queueproof.contract.classes",
    "Engine": "queueproof.engine.engine",
    "EngineConfig": "queueproof.engine.config",
    "LLM": "queueproof.engine.llm",
    "Logprob": "queueproof.engine.outputs",
    "QueueproofError": "queueproof.contract.errors",
    "RequestOutput": "queueproof.engine.outputs",
    "SamplingParams": "queueproof.engine.sampling_params",
}

__all__ = [
    "LLM",
    "AsyncEngine",
    "CompletionOutput",
    "DeterminismClass",
    "Engine",
    "EngineConfig",
    "Logprob",
    "QueueproofError",
    "RequestOutput",
    "SamplingParams",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'queueproof' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
