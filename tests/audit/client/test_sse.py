"""Server-sent events: the three line ends, comments, several data lines, halves, and when each event came."""

import pytest

from queueproof.audit.client.sse import Event, events


def data_of(whole: bytes) -> list[bytes]:
    return [event.data for event in events([(0.0, whole)])]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_line_ends(end: bytes) -> None:
    lines = [
        b"data: one",
        b"",
        b": a comment",
        b"data:two",
        b"id: 7",
        b"",
        b"event: error",
        b"data: 3",
        b"data: 4",
        b"",
        b"",
    ]
    found = events([(0.0, end.join(lines))])
    assert found == [
        Event(0.0, b"one", b"", True),
        Event(0.0, b"two", b"", True),
        Event(0.0, b"3\n4", b"error", True),
    ]


def test_only_one_space_is_taken_and_a_colon_is_text() -> None:
    assert data_of(b"data:  a: b\n\ndata:\n\n") == [b" a: b", b""]


def test_a_mark_of_the_byte_order_is_no_text() -> None:
    assert data_of(b"\xef\xbb\xbfdata: x\n\n") == [b"x"]


def test_comments_alone_and_nothing_are_no_events() -> None:
    assert data_of(b": waiting\n\n: waiting\n\n") == data_of(b"") == []
    assert events([]) == []


def test_the_last_event_may_lack_its_end_and_says_so() -> None:
    assert events([(1.0, b"data: a\n\ndata: [DONE]")])[-1] == Event(1.0, b"[DONE]", b"", False)
    assert events([(1.0, b"data: a\n\nda")]) == [Event(1.0, b"a", b"", True)]


def test_an_event_came_when_its_last_byte_of_data_did() -> None:
    pieces = [(1.0, b"data: a"), (2.0, b"b\n\ndata: c\n"), (3.0, b"\n"), (4.0, b": x\n\ndata: d\n\ndata: e\n\n")]
    assert [(e.at, e.data) for e in events(pieces)] == [(2.0, b"ab"), (2.0, b"c"), (4.0, b"d"), (4.0, b"e")]


def test_any_cut_into_pieces_gives_the_same_events() -> None:
    whole = b': hello\r\n\r\ndata: {"a": 1}\r\n\r\nevent: x\r\ndata: 2\r\ndata: 3\r\n\r\ndata: [DONE]\r\n\r\n'
    for size in range(1, 9):
        pieces = [(float(i), whole[i : i + size]) for i in range(0, len(whole), size)]
        assert [e.data for e in events(pieces)] == data_of(whole)


def test_the_error_line_of_old_servers() -> None:
    assert data_of(b'error: {"message":"no"}\n\n') == [b'{"error": {"message":"no"}}']
