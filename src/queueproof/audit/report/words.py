"""Numbers and untrusted text in words: shares that round to the careful side, and characters that would deceive a reader."""

from __future__ import annotations

import math
import re
import unicodedata

# What moves other text about, hides, or is no character: said by its code. Line ends and tabs are left to the page.
_DECEPTIVE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff0-\ufffb\ud800-\udfff]"
)


def code(character: str) -> str:
    """How a character that is not shown as itself is written: `U+202E`."""
    return f"U+{ord(character):04X}"


def visible(text: str) -> str:
    """The text with control, format and lone surrogate characters written as `[U+202E]`. It can always be encoded."""
    return _DECEPTIVE.sub(lambda found: f"[{code(found[0])}]", text)


def escaped(text: str, keep: str = "") -> str:
    """Where text is quoted: what is not printable as Python writes it, but the characters to `keep`."""
    return "".join(c if c.isprintable() or c in keep else ascii(c)[1:-1] for c in text)


def pieces(text: str) -> list[tuple[str, bool]]:
    """The text in order, in pieces that can be shown as they are (False) and codes of characters that cannot (True)."""
    found, end = [], 0
    for match in _DECEPTIVE.finditer(text):
        if match.start() > end:
            found.append((text[end : match.start()], False))
        found.append((code(match[0]), True))
        end = match.end()
    return [*found, (text[end:], False)] if end < len(text) else found


def combining(character: str) -> bool:
    """Whether it is drawn onto the character before it, so that a text must not be cut in front of it."""
    return unicodedata.combining(character) != 0 or character in "\u200d\ufe0e\ufe0f"


def number(value: int) -> str:
    """With thousands apart: `12,345`."""
    return f"{value:,}"


def percent(share: float, up: bool | None = None) -> str:
    """A share of 0 to 1 as `12.5%`: two digits that count, at least. up: which way a bound is rounded, so as to hold."""
    value = 100 * share
    if value in (0.0, 100.0):
        return f"{value:.0f}%"
    digits = 1 if value >= 1 else min(12, 1 - math.floor(math.log10(value)))
    scaled = value * 10**digits
    whole = round(scaled) if up is None else math.ceil(scaled - 1e-9) if up else math.floor(scaled + 1e-9)
    return f"{whole / 10**digits:.{digits}f}".removesuffix(".0") + "%"


def seconds(value: float) -> str:
    """`350 ms`, `12.4 s` or `5 min 3 s`."""
    if value < 1:
        return f"{1000 * value:.3g} ms"
    if value < 100:
        return f"{value:.3g} s"
    return f"{value // 60:.0f} min {value % 60:.0f} s"


def listed(names: list[str], last: str = "and") -> str:
    """`a, b and c`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {last} {names[-1]}" if names else ""
