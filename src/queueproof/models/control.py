"""Control tokens (`<|im_end|>`, `<s>`, …) and the rule that user text never becomes one.

The tokenizer that encodes text does not know the control tokens, so no text can turn into their ids. In a rendered
chat template they are recognised, which is where the user's text has to be told from the template's: before rendering,
a sentinel (a Unicode noncharacter that occurs nowhere in the input) goes after every character of the user's strings
with which a control token could begin, usually `<`. Whatever the template then cuts or joins, a control token matches
only where the template wrote its beginning. Afterwards the sentinels are removed, so the text is encoded unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from queueproof.contract.errors import InvalidParameter

NONCHARACTERS = tuple(chr(c) for c in range(0xFDD0, 0xFDF0))
TAG = re.compile(r"<[^<>\s]+>|\[/?[A-Z_]+\]")  # <think>, <tool_call>, [INST]: control by their form


@dataclass(frozen=True, slots=True)
class ControlToken:
    """special: marked so by the tokenizer; others are tags like `<think>`, which decoding shows.

    lstrip, rstrip: white space at that side belongs to the token. single_word: not inside a word.
    """

    id: int
    text: str
    special: bool
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False

    @property
    def pattern(self) -> str:
        core = re.escape(self.text)
        if self.single_word:
            core = rf"(?<!\w){core}(?!\w)"
        return (r"\s*" if self.lstrip else "") + core + (r"\s*" if self.rstrip else "")


class ControlTokens:
    """All control tokens of a tokenizer."""

    def __init__(self, tokens: Iterable[ControlToken]) -> None:
        # Longest first: where one is the beginning of another, the longer one is meant.
        self.tokens = tuple(sorted(tokens, key=lambda t: (-len(t.text), t.text)))
        alternatives = [f"(?P<t{i}>{t.pattern})" for i, t in enumerate(self.tokens)]
        self._split = re.compile("|".join(alternatives) or r"(?!)")
        self._first = re.compile(
            f"[{re.escape(''.join({t.text[0] for t in self.tokens}))}]" if self.tokens else r"(?!)"
        )
        self._tags = tuple(t.text for t in self.tokens if not t.special)

    def guard(self, text: str, sentinel: str, keep_tags: bool) -> str:
        """The text with a sentinel after every character that could begin a control token.

        keep_tags: not where a tag that is no special token stands (`</think>`).
        """

        def mark(match: re.Match[str]) -> str:
            if keep_tags and text.startswith(self._tags, match.start()):
                return match[0]
            return match[0] + sentinel

        return self._first.sub(mark, text)

    def split(self, text: str, sentinel: str) -> list[str | int]:
        """Pieces of text (sentinels removed, none empty) and ids of the control tokens between them."""
        pieces: list[str | int] = []
        at = 0
        for match in self._split.finditer(text):
            pieces += [text[at : match.start()], self.tokens[int((match.lastgroup or "")[1:])].id]
            at = match.end()
        pieces.append(text[at:])
        clean = (p.replace(sentinel, "") if isinstance(p, str) else p for p in pieces)
        return [p for p in clean if p != ""]


def choose_sentinel(values: Iterable[Any]) -> str:
    """A noncharacter that none of the strings in these JSON values holds."""
    used: set[str] = set()
    for value in values:
        used.update(*strings_of(value))
    for candidate in NONCHARACTERS:
        if candidate not in used:
            return candidate
    raise InvalidParameter("messages", "...", "the text uses every noncharacter from U+FDD0 to U+FDEF; remove one")


def strings_of(value: Any) -> Iterable[str]:
    """Every string in a JSON value, keys of objects included. Raises InvalidParameter for what is not JSON."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from strings_of(key)
            yield from strings_of(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from strings_of(item)
    elif not (value is None or isinstance(value, bool | int | float)):
        raise InvalidParameter(
            "messages", value, "only JSON values: strings, numbers, lists, objects, true, false, null"
        )
