"""The texts of an engine's tokens."""

from __future__ import annotations

from typing import NamedTuple

from queueproof.server.protocol import ServedEngine

_MAX_KNOWN = 1 << 16


class Token(NamedTuple):
    """text: with replacement characters where the bytes are no UTF-8. special: not in the text of an answer."""

    text: str
    data: bytes
    special: bool


class Tokens:
    """The text of an engine's tokens, remembered."""

    def __init__(self, engine: ServedEngine) -> None:
        self._engine = engine
        self._known: dict[int, Token] = {}

    def __getitem__(self, token_id: int) -> Token:
        known = self._known.get(token_id)
        if known is None:
            data = self._engine.token_bytes(token_id)
            # A decoder may drop the space before a first word: only what decodes to nothing at all is special.
            special = bool(data.strip()) and self._engine.decode([token_id], skip_special_tokens=True) == ""
            known = Token(data.decode("utf-8", "replace"), data, special)
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            self._known[token_id] = known
        return known
