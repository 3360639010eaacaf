"""The bytes that each token stands for."""

from __future__ import annotations

import re
from typing import Any, Final

from queueproof.contract.errors import UnsupportedModel
from queueproof.models.tokenizer_spec import TokenizerSpec

BYTE_TOKEN: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")
SPACE: Final = "▁"  # SentencePiece's mark of a space
SENTENCEPIECE_DECODERS: Final = frozenset({"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"})


def byte_level_alphabet() -> dict[str, int]:
    """GPT-2's one printable character for each byte: itself where printable, else the next from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(others)}


class Vocabulary:
    """Token ids to bytes, for the two ways in which the supported tokenizers write bytes as text.

    strip_first_space: the decoder removes the space that the tokenizer put before the first word.
    Raises UnsupportedModel for a decoder of another kind.
    """

    def __init__(self, spec: TokenizerSpec) -> None:
        self._tokens = spec.tokens
        self._added = spec.added  # added tokens are written as they are, whatever the decoder
        self._special = {t.id for t in spec.control if t.special}
        self.size = max(self._tokens, default=-1) + 1
        kinds = _decoder_kinds(spec.plain.get("decoder"))
        self._byte_level = kinds == {"ByteLevel"}
        if not self._byte_level and not (kinds and kinds <= SENTENCEPIECE_DECODERS):
            raise UnsupportedModel(
                f"{spec.source}: a decoder of {sorted(kinds) or 'no kind'} is not supported; "
                "ByteLevel and SentencePiece's (Replace, ByteFallback, Fuse, Strip, Metaspace) are"
            )
        self.strip_first_space = bool(kinds & {"Strip", "Metaspace"})
        self._alphabet = byte_level_alphabet()

    def is_special(self, token_id: int) -> bool:
        return token_id in self._special

    def text(self, token_id: int) -> str | None:
        """How the vocabulary writes the token, or None for an id that it does not have."""
        return self._tokens.get(token_id)

    def token_bytes(self, token_id: int, skip_special: bool = False) -> bytes:
        token = self._tokens.get(token_id)
        if token is None or (skip_special and token_id in self._special):
            return b""
        if token_id in self._added:
            return token.encode()
        if self._byte_level:
            try:
                return bytes(self._alphabet[c] for c in token)
            except KeyError:  # not written in the alphabet: the text itself, as the tokenizers library has it
                return token.encode()
        match = BYTE_TOKEN.fullmatch(token)
        return bytes([int(match[1], 16)]) if match else token.replace(SPACE, " ").encode()


def _decoder_kinds(decoder: Any) -> set[str]:
    if decoder is None:
        return set()
    parts = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    return {part["type"] for part in parts}
