"""Stop strings: across tokens, cut exactly, and never shown in a stream before they are known not to be one."""

from __future__ import annotations

import random

import pytest

from queueproof.engine.stops import TextStream


class Pieces:
    """A decoder whose token i has the i-th piece."""

    def __init__(self, pieces: list[str], rest: str = "") -> None:
        self._pieces, self._rest = pieces, rest

    def push(self, token_id: int) -> str:
        return self._pieces[token_id]

    def finish(self) -> str:
        return self._rest


def run(
    pieces: list[str], stops: tuple[str, ...], include: bool = False, rest: str = ""
) -> tuple[str, str | None, list[str]]:
    """Text, the stop string found, and what a stream would have shown after each token."""
    stream = TextStream(Pieces(pieces, rest), stops, include)
    shown = []
    for i in range(len(pieces)):
        found = stream.push(i, may_stop=True)
        shown.append(stream.settled())
        if found is not None:
            return stream.text, found, shown
    found = stream.finish(may_stop=True)
    return stream.text, found, [*shown, stream.settled()]


@pytest.mark.parametrize(
    ("pieces", "stops", "text", "found"),
    [
        (["hello"], ("l",), "he", "l"),
        (["he", "l", "lo"], ("ll",), "he", "ll"),
        (["a", "b", "c", "d"], ("abcd",), "", "abcd"),
        (["xab", "cx"], ("abd", "bc"), "xa", "bc"),
        (["abc"], ("c", "abc"), "", "abc"),  # completed by the same character: the longest
        (["abc"], ("abc", "b"), "a", "b"),  # completed first
        (["ab"], ("abc", "xab"), "ab", None),
        (["aab"], ("ab",), "a", "ab"),
        (["a", "a", "b"], ("aab",), "", "aab"),
        (["", "a", "", "b", ""], ("ab",), "", "ab"),
        (["äö", "ü"], ("öü",), "ä", "öü"),
        (["no stop here"], (), "no stop here", None),
        (["stop"], ("stop",), "", "stop"),
    ],
)
def test_where_a_text_is_cut(pieces: list[str], stops: tuple[str, ...], text: str, found: str | None) -> None:
    assert run(pieces, stops)[:2] == (text, found)


def test_the_stop_string_may_be_kept() -> None:
    assert run(["one t", "wo three"], ("two",), include=True)[:2] == ("one two", "two")


def test_what_may_become_a_stop_string_is_held_back() -> None:
    assert run(["a<", "/", "s", "x"], ("</s>",))[2] == ["a", "a", "a", "a</sx", "a</sx"]
    assert run(["a<", "/"], ("</s>",))[2] == ["a", "a", "a</"]  # at the end nothing can follow
    assert run(["ab", "ab", "c"], ("ababc",))[2] == ["", "", ""]


def test_what_is_left_of_a_character_counts() -> None:
    assert run(["a"], (), rest="\ufffd")[:2] == ("a\ufffd", None)
    assert run(["a"], ("\ufffd",), rest="\ufffd")[:2] == ("a", "\ufffd")


def test_before_min_tokens_nothing_stops() -> None:
    stream = TextStream(Pieces(["ab", "a", "b"]), ("ab",), False)
    assert stream.push(0, may_stop=False) is None  # complete, but too early
    assert stream.push(1, may_stop=True) is None
    assert stream.push(2, may_stop=True) == "ab"
    assert stream.text == "ab"


def test_a_stop_string_may_begin_before_min_tokens() -> None:
    stream = TextStream(Pieces(["xa", "b"]), ("ab",), False)
    assert stream.push(0, may_stop=False) is None and stream.settled() == "x"
    assert stream.push(1, may_stop=True) == "ab" and stream.text == "x"


def test_finishing_twice() -> None:
    stream = TextStream(Pieces(["a"], "!"), (), False)
    stream.push(0, True)
    assert stream.finish(True) is None and stream.finish(True) is None and stream.text == "a!"


def test_borders_of_tokens_do_not_matter() -> None:
    rng = random.Random(0)
    cut = 0
    for _ in range(2000):
        text = "".join(rng.choices("ab", k=12))
        stops = tuple({"".join(rng.choices("ab", k=rng.randrange(1, 6))) for _ in range(rng.randrange(1, 4))})
        pieces, at = [], 0
        while at < len(text):
            size = rng.randrange(4)
            pieces.append(text[at : at + size])
            at += size
        by_piece, by_character = run(pieces, stops), run(list(text), stops)
        assert by_piece[:2] == by_character[:2]
        assert not any(stop in by_piece[0] for stop in stops)
        shown = by_piece[2]
        assert all(b.startswith(a) for a, b in zip(shown, shown[1:], strict=False)) and shown[-1] == by_piece[0]
        cut += by_piece[1] is not None
    assert 500 < cut < 2000
