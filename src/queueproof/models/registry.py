"""Architecture names to the classes that implement them."""

from __future__ import annotations

from queueproof.contract.errors import UnsupportedModel
from queueproof.models.config import Family
from queueproof.models.decoder import Decoder
from queueproof.models.llama import Llama
from queueproof.models.mistral import Mistral
from queueproof.models.qwen2 import Qwen2
from queueproof.models.qwen3 import Qwen3

MODELS: tuple[type[Decoder], ...] = (Llama, Mistral, Qwen2, Qwen3)

BY_FAMILY: dict[Family, type[Decoder]] = {m.family: m for m in MODELS}
BY_ARCHITECTURE: dict[str, type[Decoder]] = {name: m for m in MODELS for name in m.architectures}
# Mistral is stored as "llama": the first class listed for a GGUF name reads it, and may find a sliding window.
BY_GGUF: dict[str, type[Decoder]] = {m.gguf_architecture: m for m in reversed(MODELS)}


def for_architecture(name: str, source: str) -> type[Decoder]:
    """The class of an architecture named in config.json. Raises UnsupportedModel."""
    if name not in BY_ARCHITECTURE:
        raise UnsupportedModel(
            f"{source}: architecture {name!r} is not supported; supported are {', '.join(BY_ARCHITECTURE)}"
        )
    return BY_ARCHITECTURE[name]


def for_gguf(name: str, source: str) -> type[Decoder]:
    """The class of a `general.architecture` of GGUF. Raises UnsupportedModel."""
    if name not in BY_GGUF:
        raise UnsupportedModel(
            f"{source}: architecture {name!r} is not supported; supported in GGUF are {', '.join(sorted(BY_GGUF))}"
        )
    return BY_GGUF[name]
