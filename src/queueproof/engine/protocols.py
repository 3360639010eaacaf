"""What the engine needs of a loaded model. `models.loader.LoadedModel` has this shape; tests bring a small fake."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from queueproof.kernels.ops import Backend, ForwardModel


class StreamDecoder(Protocol):
    """Text of a growing list of token ids. The pieces together are the text of the whole list."""

    def push(self, token_id: int) -> str:
        """The text that this token completes; empty while a character is not complete."""
        ...

    def finish(self) -> str:
        """What is left of an incomplete character, as replacement characters."""
        ...


class Tokenizer(Protocol):
    @property
    def digest(self) -> str:
        """SHA-256, hex, of the vocabulary and its rules."""
        ...

    @property
    def vocab_size(self) -> int:
        """One more than its largest token id; the model may have more."""
        ...

    def encode(self, text: str, add_bos: bool | None = None) -> list[int]:
        """Token ids of plain text. add_bos: None puts before it what the model expects before a prompt, False nothing."""
        ...

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str: ...

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for, those of a special token being its text; none for an id that is none."""
        ...

    def is_control(self, token_id: int) -> bool:
        """Whether it is no piece of text: an end token, a role of the chat template, a tag."""
        ...

    def stream(self, skip_special_tokens: bool = True) -> StreamDecoder: ...

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> list[int]:
        """Token ids of a conversation through the model's chat template. Raises a UsageError if it has none."""
        ...


class ModelConfig(Protocol):
    @property
    def vocab_size(self) -> int: ...

    @property
    def eos_ids(self) -> tuple[int, ...]: ...


class LoadedModel(Protocol):
    """Weights packed for one backend. Any number of engines may share it."""

    @property
    def config(self) -> ModelConfig: ...

    @property
    def forward(self) -> ForwardModel: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def name(self) -> str: ...

    @property
    def digest(self) -> str:
        """SHA-256, hex, of the weights and what else answers depend on. May read all weights the first time."""
        ...

    @property
    def max_len(self) -> int:
        """Positions that the model was loaded for: prompt and answer together."""
        ...

    @property
    def backend(self) -> Backend: ...
