"""The one form of a JSON value (RFC 8785, the JSON Canonicalization Scheme), so that a digest of it means something.

Keys in the order of their UTF-16 code units, no white space, numbers as ECMAScript prints doubles, strings in UTF-8 with
the fewest escapes. What JSON readers may understand differently is refused: NaN, infinities, integers that a double does
not hold, lone surrogates, repeated keys.
"""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any, NoReturn

from queueproof.contract.errors import ContractError

MAX_INTEGER = (1 << 53) - 1
"""Beyond it a double may stand for several integers (RFC 7493, section 2.2); such numbers are written as strings."""


# Its escapes are those that RFC 8785 (3.2.2.2) wants, and no others.
_standard = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def canonical_json(value: Any) -> bytes:
    """UTF-8 of the canonical form of dicts with str keys, lists, tuples, str, int, float, bool and None.

    Raises ContractError for any other type, and for values that the form cannot hold.
    """
    try:
        return _text(value).encode("utf-8")
    except UnicodeEncodeError as error:
        half = error.object[error.start : error.end]
        raise ContractError(f"canonical JSON holds Unicode text; {half!r} is half of a surrogate pair") from None
    except RecursionError:
        raise ContractError("the value is nested too deeply for canonical JSON") from None


def parse_json(text: str | bytes) -> Any:
    """What a JSON text holds, as `json.loads` gives it, if `canonical_json` can give it back.

    Raises ContractError: not JSON, not UTF-8, a repeated key, or a number that a double does not hold.
    """
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8")
        return json.loads(
            text,
            object_pairs_hook=_without_repeats,
            parse_int=_integer,
            parse_float=_float,
            parse_constant=_no_constant,
        )
    except ContractError:
        raise
    except (ValueError, RecursionError) as error:
        raise ContractError(f"this is not JSON: {error}") from None


def _text(value: Any) -> str:
    if value is None or value is True or value is False:
        return {None: "null", True: "true", False: "false"}[value]
    kind = type(value)
    if kind is str:
        return _standard(value)
    if kind is int:
        return _checked_integer(value)
    if kind is float:
        return _number(value)
    if kind is dict:
        return "{" + ",".join(f"{_standard(k)}:{_text(value[k])}" for k in sorted(value, key=_utf16)) + "}"
    if kind is list or kind is tuple:
        return _array(value)
    raise ContractError(f"canonical JSON has no {kind.__name__}: {value!r}")


def _array(values: list[Any] | tuple[Any, ...]) -> str:
    kinds = set(map(type, values))
    # Long lists of one kind, where the standard encoder is fast and writes the same.
    if kinds == {int}:
        _checked_integer(min(values))
        _checked_integer(max(values))
    if kinds in ({int}, {str}):
        return _standard(values)
    return "[" + ",".join(map(_text, values)) + "]"


def _utf16(key: Any) -> bytes:
    if type(key) is not str:
        raise ContractError(f"keys of JSON objects are strings, not {key!r}")
    return key.encode("utf-16-be", "surrogatepass")  # a lone surrogate is refused when all is encoded


def _checked_integer(value: int) -> str:
    if not -MAX_INTEGER <= value <= MAX_INTEGER:
        raise ContractError(f"the integer {value} is beyond 2^53 - 1, where JSON numbers are no longer exact")
    return repr(value)


def _number(value: float) -> str:
    """ECMAScript's Number::toString for radix 10: Python has the same shortest digits and lays them out differently."""
    if not math.isfinite(value):
        raise ContractError(f"JSON has no number {value!r}")
    if value == 0:
        return "0"
    _, digit_tuple, exponent = Decimal(repr(abs(value))).as_tuple()
    assert isinstance(exponent, int)
    digits = "".join(map(str, digit_tuple))
    point = len(digits) + exponent  # the value is 0.DIGITS x 10^point
    digits = digits.rstrip("0")
    count, sign = len(digits), "-" if value < 0 else ""
    if count <= point <= 21:
        return sign + digits + "0" * (point - count)
    if 0 < point <= 21:
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    fraction = f".{digits[1:]}" if count > 1 else ""
    return f"{sign}{digits[0]}{fraction}e{point - 1:+d}"


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ContractError(f"the key {repeated_key(pairs)!r} stands twice in one object")
    return found


def repeated_key(pairs: list[tuple[str, Any]]) -> str:
    """The first key that stands there for the second time. Pre: there is one."""
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            return key
        seen.add(key)
    raise ValueError("no key is repeated")


def _integer(literal: str) -> int | float:
    number = int(literal)
    if abs(number) <= MAX_INTEGER:
        return number
    value = _float(literal)
    if _number(value) != literal:
        raise ContractError(f"the number {literal} is beyond 2^53 - 1, where JSON numbers are no longer exact")
    return value


def _float(literal: str) -> float:
    value = float(literal)
    if not math.isfinite(value):
        raise ContractError(f"the number {literal} is too large for a double")
    return value


def _no_constant(literal: str) -> NoReturn:
    raise ContractError(f"JSON has no number {literal}")
