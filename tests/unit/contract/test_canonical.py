from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queueproof.contract.canonical import MAX_INTEGER, canonical_json, parse_json
from queueproof.contract.errors import ContractError

# RFC 8785, appendix B.
NUMBERS = [
    ("0000000000000000", "0"),
    ("8000000000000000", "0"),
    ("0000000000000001", "5e-324"),
    ("8000000000000001", "-5e-324"),
    ("7fefffffffffffff", "1.7976931348623157e+308"),
    ("ffefffffffffffff", "-1.7976931348623157e+308"),
    ("4340000000000000", "9007199254740992"),
    ("c340000000000000", "-9007199254740992"),
    ("4430000000000000", "295147905179352830000"),
    ("44b52d02c7e14af5", "9.999999999999997e+22"),
    ("44b52d02c7e14af6", "1e+23"),
    ("44b52d02c7e14af7", "1.0000000000000001e+23"),
    ("444b1ae4d6e2ef4e", "999999999999999700000"),
    ("444b1ae4d6e2ef4f", "999999999999999900000"),
    ("444b1ae4d6e2ef50", "1e+21"),
    ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"),
    ("3eb0c6f7a0b5ed8d", "0.000001"),
    ("41b3de4355555553", "333333333.3333332"),
    ("41b3de4355555554", "333333333.33333325"),
    ("41b3de4355555555", "333333333.3333333"),
    ("41b3de4355555556", "333333333.3333334"),
    ("41b3de4355555557", "333333333.33333343"),
    ("becbf647612f3696", "-0.0000033333333333333333"),
    ("43143ff3c1cb0959", "1424953923781206.2"),
]


@pytest.mark.parametrize(("bits", "text"), NUMBERS)
def test_numbers_of_the_rfc(bits: str, text: str) -> None:
    (value,) = struct.unpack(">d", bytes.fromhex(bits))
    assert canonical_json(value).decode() == text
    assert parse_json(text) == value


@pytest.mark.parametrize("bits", ["7fffffffffffffff", "7ff0000000000000", "fff0000000000000"])
def test_what_is_no_number_is_refused(bits: str) -> None:
    (value,) = struct.unpack(">d", bytes.fromhex(bits))
    with pytest.raises(ContractError, match="JSON has no number"):
        canonical_json([value])


def test_the_sample_of_the_rfc() -> None:
    """Sections 3.2.2 to 3.2.4: white space, literals, numbers, escapes, and the bytes in the end."""
    sample = r"""
     {
       "numbers": [333333333.33333329, 1E30, 4.50,
                   2e-3, 0.000000000000000000000000001],
       "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
       "literals": [null, true, false]
     }"""
    expected = bytes.fromhex(
        "7b 22 6c 69 74 65 72 61 6c 73 22 3a 5b 6e 75 6c 6c 2c 74 72 75 65 2c 66 61 6c 73 65 5d 2c 22 6e 75 6d 62 65 72"
        "73 22 3a 5b 33 33 33 33 33 33 33 33 33 2e 33 33 33 33 33 33 33 2c 31 65 2b 33 30 2c 34 2e 35 2c 30 2e 30 30 32"
        "2c 31 65 2d 32 37 5d 2c 22 73 74 72 69 6e 67 22 3a 22 e2 82 ac 24 5c 75 30 30 30 66 5c 6e 41 27 42 5c 22 5c 5c"
        "5c 5c 5c 22 2f 22 7d"
    )
    assert canonical_json(parse_json(sample)) == expected


def test_keys_are_sorted_by_utf_16_code_units() -> None:
    """Section 3.2.3: the emoji comes before U+FB33, by code points it would not."""
    names = ["\r", "1", "\x80", "\xf6", "\u20ac", "\U0001f600", "\ufb33"]
    shuffled = {name: i for i, name in sorted(enumerate(names), key=lambda pair: -pair[0] % 4)}
    assert list(parse_json(canonical_json(shuffled))) == names


def test_escapes_are_the_shortest_ones() -> None:
    every = "".join(map(chr, range(0x21))) + '"\\/\x7f\u2028'
    assert canonical_json(every).decode() == (
        r'"\u0000\u0001\u0002\u0003\u0004\u0005\u0006\u0007\b\t\n\u000b\f\r\u000e\u000f\u0010\u0011\u0012\u0013\u0014'
        r"\u0015\u0016\u0017\u0018\u0019\u001a\u001b\u001c\u001d\u001e\u001f " + '\\"\\\\/\x7f\u2028"'
    )


@pytest.mark.parametrize("value", ["\ud800", {"\udc00": 1}, ["\ud83d x"], {"a": {"b": ["x", 1, "\udfff"]}}])
def test_half_of_a_surrogate_pair_is_refused(value: Any) -> None:
    with pytest.raises(ContractError, match="half of a surrogate pair"):
        canonical_json(value)


@pytest.mark.parametrize("value", [1 << 53, -(1 << 53), [1, 1 << 64], [(1 << 64) - 1, "x"]])
def test_integers_that_a_double_does_not_hold_are_refused(value: Any) -> None:
    with pytest.raises(ContractError, match="beyond 2\\^53 - 1"):
        canonical_json(value)


@pytest.mark.parametrize("value", [b"x", {1: 2}, {None: 1}, {1, 2}, object, 1j])
def test_other_types_are_refused(value: Any) -> None:
    with pytest.raises(ContractError):
        canonical_json(value)


def test_nesting_without_end_is_an_error_and_no_crash() -> None:
    deep: list[Any] = []
    deep.append(deep)
    with pytest.raises(ContractError, match="nested too deeply"):
        canonical_json(deep)
    with pytest.raises(ContractError, match="not JSON"):
        parse_json("[" * 200_000 + "]" * 200_000)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1, "a": 1}', "'a' stands twice"),
        ('{"x": {"a": 1, "b": 2, "\\u0061": 3}}', "'a' stands twice"),
        ("[NaN]", "no number NaN"),
        ("-Infinity", "no number -Infinity"),
        ("1e999", "too large"),
        ("18446744073709551615", "beyond 2"),
        ("9007199254740993", "beyond 2"),
        ("9" * 5000, "JSON"),
        ("", "not JSON"),
        ("{'a': 1}", "not JSON"),
        ("\ufeff{}", "not JSON"),
        (b"\xff", "not JSON"),
    ],
)
def test_texts_that_readers_may_understand_differently_are_refused(text: str | bytes, message: str) -> None:
    with pytest.raises(ContractError, match=message):
        parse_json(text)


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-MAX_INTEGER, MAX_INTEGER)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
    max_leaves=20,
)


@given(VALUES)
def test_the_form_holds_the_value_and_is_the_only_one(value: Any) -> None:
    text = canonical_json(value)
    assert parse_json(text) == value
    assert canonical_json(parse_json(text)) == text
    pretty = json.dumps(value, indent=3)  # other white space, escapes and layout of numbers
    assert canonical_json(json.loads(pretty)) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_keep_every_bit_but_the_sign_of_zero(value: float) -> None:
    back = float(canonical_json(value))
    assert struct.pack(">d", back) == struct.pack(">d", value + 0.0)
