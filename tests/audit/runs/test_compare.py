"""Where two samples' answers part, by the best that both files have."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from queueproof.audit.ask import Answer
from queueproof.audit.runs.compare import Compared, compare, moved
from queueproof.audit.runs.model import Option, Sample, Score
from queueproof.audit.runs.readers.values import Logprobs, answer
from queueproof.audit.runs.record import Change, Unit


def sample(*answers: Answer | str, options: Sequence[Option] = (), failed: str | None = None) -> Sample:
    read = tuple(answer(a) if isinstance(a, str) else a for a in answers)
    return Sample("here", "", "1", answers=read, options=tuple(options), failed=failed)


def found(a: Sample, b: Sample) -> Compared:
    compared = compare(a, b)
    assert compared is not None
    return compared


def tokens(text: str, logprobs: Sequence[float | None], **more: Any) -> Answer:
    words = tuple(text)
    return answer(text, Logprobs(words, tuple(logprobs), **more))


def test_text_by_character_and_word() -> None:
    it = found(sample("the cat sat"), sample("the cow sat"))
    assert (it.change, it.unit, it.position, it.word, it.split) == (Change.ANSWER, Unit.TEXT, 5, 1, 5)
    assert found(sample("the cat sat"), sample("the bat sat")).word == 1
    assert found(sample("a"), sample("a b")).word == 0  # it goes on where the first ends
    assert found(sample(""), sample("x")).word == 0
    assert found(sample("same"), sample("same")).change is Change.NONE


def test_tokens_and_logprobs_exactly() -> None:
    a, b = tokens("abc", [-1.0, -2.0, -3.0], margins=(0.5, 0.25, 0.125)), tokens("abd", [-1.0, -2.0, -3.0])
    it = found(sample(a), sample(b))
    assert (it.unit, it.position, it.margin, it.logprob_position) == (Unit.TOKENS, 2, 0.125, None)
    nearly = tokens("abc", [-1.0, math.nextafter(-2.0, 0), -3.0])
    it = found(sample(a), sample(nearly))
    assert (it.change, it.logprob_position) == (Change.LOGPROBS, 1) and it.max_logprob_difference > 0
    assert it.position is None and it.word is None


def test_ids_before_tokens() -> None:
    a, b = answer("ab", ids=[1, 2]), answer("ab", ids=[3])
    it = found(sample(a), sample(b))
    assert (it.change, it.unit, it.position) == (Change.ANSWER, Unit.IDS, 0)


def test_reasons_to_end_count_where_both_say_one() -> None:
    stop, length, silent = (answer("a", finish_reason=reason) for reason in ("stop", "length", None))
    assert found(sample(stop), sample(length)).change is Change.ANSWER
    assert found(sample(stop), sample(silent)).change is Change.NONE


def test_turns() -> None:
    it = found(sample("one", "two", "three"), sample("one", "toe", "tree"))
    assert (it.turn, it.position) == (1, 1)
    it = found(sample("one"), sample("one", "more"))
    assert (it.change, it.turn, it.a, it.b) == (Change.ANSWER, 1, "", "more")
    logprob = found(sample(tokens("a", [-1.0]), tokens("b", [-1.0])), sample(tokens("a", [-2.0]), tokens("b", [-1.0])))
    assert (logprob.change, logprob.turn, logprob.max_logprob_difference) == (Change.LOGPROBS, 0, 1.0)


def test_failures_are_not_compared() -> None:
    assert compare(sample("a"), sample(failed="HTTP 500")) is None
    assert compare(sample(failed="cut"), sample(failed="cut")) is None
    assert compare(sample("a"), sample()) is None


def options(*logprobs: float | None, greedy: bool | None = None) -> Sample:
    return sample(options=[Option(f"option {i}", p, greedy) for i, p in enumerate(logprobs)])


def test_options() -> None:
    it = found(options(-1.0, -2.0), options(-3.0, -2.0))
    assert (it.change, it.unit, it.position, it.margin) == (Change.ANSWER, Unit.OPTIONS, 0, 1.0)
    assert it.a.startswith("> option 0") and "> option 1" in it.b
    it = found(options(-1.0, -2.0), options(-1.0, -2.5))
    assert (it.change, it.logprob_position, it.max_logprob_difference) == (Change.LOGPROBS, 1, 0.5)
    assert found(options(-1.0, None), options(-1.0, None)).change is Change.NONE
    assert found(options(-1.0, -2.0), options(-1.0)).change is Change.ANSWER
    assert found(options(-1.0, greedy=True), options(-1.0, greedy=False)).change is Change.ANSWER


def test_scores_that_moved() -> None:
    def score(value: float | None, text: str = "") -> Score:
        return Score("m", value, text)

    assert not moved(score(math.nan), score(math.nan)) and moved(score(math.nan), score(1.0))
    assert not moved(score(1.0, "C"), score(1.0, "1")) and moved(score(1.0), score(0.0))
    assert moved(score(None, "[1]"), score(None, "[2]")) and not moved(score(None, "x"), score(None, "x"))
    assert moved(score(None, "1"), score(1.0, "1"))


logprob = st.none() | st.floats(-50, 0)
written = st.lists(st.tuples(st.text(max_size=3), logprob), max_size=6)


@st.composite
def answers(draw: st.DrawFn) -> Answer:
    parts = draw(written)
    text = "".join(token for token, _ in parts)
    kind = draw(st.sampled_from(["text", "tokens", "ids"]))
    if kind == "text":
        return answer(text)
    ids = tuple(map(len, text)) if kind == "ids" and text else None
    return answer(text, Logprobs(tuple(t for t, _ in parts), tuple(p for _, p in parts)), ids=ids)


@given(st.lists(answers(), min_size=1, max_size=3), st.lists(answers(), min_size=1, max_size=3))
def test_both_ways_find_the_same(a: list[Answer], b: list[Answer]) -> None:
    there, back = found(sample(*a), sample(*b)), found(sample(*b), sample(*a))
    assert (there.change, there.unit, there.position, there.split, there.logprob_position) == (
        back.change,
        back.unit,
        back.position,
        back.split,
        back.logprob_position,
    )
    assert there.a[: there.split] == there.b[: there.split]
    if [x.text for x in a] != [x.text for x in b]:
        assert there.change is Change.ANSWER


@given(st.lists(answers(), min_size=1, max_size=3))
def test_a_sample_is_itself(a: list[Answer]) -> None:
    it = found(sample(*a), sample(*a))
    assert it.change is Change.NONE and it.max_logprob_difference == 0
