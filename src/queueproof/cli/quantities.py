"""Quantities as people write them on a command line: `5m`, `2000r`, `1%`."""

from __future__ import annotations

import re

from queueproof.audit.budget import Budget
from queueproof.contract.errors import InvalidParameter

_PART = re.compile(r"([0-9]{1,12}(?:\.[0-9]+)?)\s*(s|m|h|r|kt|Mt|t)")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_TOKENS = {"t": 1, "kt": 1_000, "Mt": 1_000_000}
_ALLOWED = "it must be a time (300s, 5m, 1h), requests (2000r), tokens (500kt, 1Mt), several with commas, or none"


def parse_budget(text: str) -> Budget:
    """`5m`, `300s,2000r`, `1Mt`, or `none`. What is not named has no limit. Raises InvalidParameter."""
    if text.strip() == "none":
        return Budget(seconds=None)
    seconds: float | None = None
    requests: int | None = None
    tokens: int | None = None
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        number, unit = (float(match[1]), match[2]) if match else (0.0, "")
        if not number:
            raise InvalidParameter("budget", text, _ALLOWED)
        if unit in _SECONDS and seconds is None:
            seconds = number * _SECONDS[unit]
        elif unit == "r" and requests is None:
            requests = int(number)
        elif unit in _TOKENS and tokens is None:
            tokens = int(number * _TOKENS[unit])
        else:
            raise InvalidParameter("budget", text, "it names one kind of limit twice")
    if requests == 0 or tokens == 0:
        raise InvalidParameter("budget", text, "it must be one request or token, at least")
    return Budget(seconds, requests, tokens)


def parse_share(text: str, name: str) -> float:
    """`1%` or `0.01`, between 0 and 1 and neither. Raises InvalidParameter, with the option's name."""
    allowed = "it must be a share such as 1% or 0.01"
    try:
        share = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        raise InvalidParameter(name, text, allowed) from None
    if not 0 < share < 1:
        raise InvalidParameter(name, text, allowed)
    return share
