"""The error tree: what callers may rely on."""

from __future__ import annotations

import re

import pytest

from queueproof.contract import errors
from queueproof.contract.errors import InvalidParameter, QueueproofError, UnsupportedArithmetic, UsageError


def tree(root: type[QueueproofError]) -> list[type[QueueproofError]]:
    return [root, *(leaf for child in root.__subclasses__() for leaf in tree(child))]


def test_the_tree_at_the_top_of_the_file_is_the_tree() -> None:
    drawn = set(re.findall(r"[├└]── (\w+)", errors.__doc__ or "")) | {"QueueproofError"}
    assert drawn == {e.__name__ for e in tree(QueueproofError) if e.__module__ == errors.__name__}


def test_codes_are_distinct() -> None:
    codes = [e.code for e in tree(QueueproofError)]
    assert len(codes) == len(set(codes))


def test_an_invalid_parameter_names_itself_its_value_and_what_is_allowed() -> None:
    error = InvalidParameter("temperature", -1.0, "a finite number of at least 0")
    assert str(error) == "temperature=-1.0 is not supported: a finite number of at least 0"
    assert isinstance(error, UsageError) and isinstance(error, ValueError)


def test_an_unsupported_arithmetic_names_those_there_are() -> None:
    error = UnsupportedArithmetic("ieee/9", "cpu", [("ieee/1", "cpu"), ("vendor", "cpu")])
    with pytest.raises(UsageError, match="'ieee/9' on 'cpu'; there are: ieee/1 on cpu, vendor on cpu"):
        raise error
