from __future__ import annotations

import itertools

import pytest

from queueproof.contract.axes import Axis
from queueproof.contract.classes import DeterminismClass, arithmetic_class, parse_class
from queueproof.contract.errors import UnsupportedArithmetic, UnsupportedClass

BATCH = {Axis.NEIGHBOURS, Axis.ORDER}


def test_each_class_holds_the_axes_of_the_design() -> None:
    assert DeterminismClass.BEST_EFFORT.axes == set()
    assert DeterminismClass.BATCH.axes == BATCH
    assert DeterminismClass.REQUEST.axes == BATCH | {Axis.SCHEDULE, Axis.CACHE, Axis.PHASE}
    assert DeterminismClass.PORTABLE.axes == set(Axis)


@pytest.mark.parametrize(("weaker", "stronger"), list(itertools.combinations(DeterminismClass, 2)))
def test_declaration_order_is_strength(weaker: DeterminismClass, stronger: DeterminismClass) -> None:
    assert weaker.axes < stronger.axes
    assert stronger.satisfies(weaker) and stronger.satisfies(stronger)
    assert not weaker.satisfies(stronger)


def test_every_axis_has_a_meaning_of_one_sentence() -> None:
    for axis in Axis:
        assert axis.meaning.endswith(".") and axis.meaning.count(". ") == 0


def test_names_are_the_ones_on_the_wire() -> None:
    assert [c.value for c in DeterminismClass] == ["best-effort", "batch", "request", "portable"]
    assert parse_class("request") is DeterminismClass.REQUEST


@pytest.mark.parametrize("name", ["", "Request", "strict", "best_effort"])
def test_an_unknown_class_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(UnsupportedClass, match="best-effort, batch, request, portable"):
        parse_class(name)


def test_class_of_an_arithmetic() -> None:
    assert arithmetic_class("ieee/1") is DeterminismClass.PORTABLE
    assert arithmetic_class("tensorcore/1") is DeterminismClass.REQUEST
    assert arithmetic_class("vendor") is DeterminismClass.BEST_EFFORT
    with pytest.raises(UnsupportedArithmetic, match="ieee/2"):
        arithmetic_class("ieee/2")
