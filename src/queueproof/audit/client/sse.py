"""Server-sent events, read after they all came: an event is the text of its `data` lines and when its last byte arrived.

While a stream runs nothing is done but to keep the bytes: a client that thinks about each token takes time from a server
on the same machine. The form is that of the HTML standard (any of its three line ends, comments, several `data` lines).
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

DONE = b"data: [DONE]"
_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"


class Event(NamedTuple):
    """data: lines joined by newlines. name: of an `event` line, empty where there was none. complete: a blank line ended
    it, as it should; the last of a stream may lack that."""

    at: float
    data: bytes
    name: bytes
    complete: bool


def events(pieces: Sequence[tuple[float, bytes]]) -> list[Event]:
    """The events of a stream's bytes. pieces: (time of arrival, bytes), in their order."""
    whole = b"".join([data for _, data in pieces])
    ends = list(accumulate(len(data) for _, data in pieces))  # of a piece: the bytes up to its last
    times = [at for at, _ in pieces]
    found: list[Event] = []
    lines: list[bytes] = []
    name = b""
    last = 0  # the byte after the last line of the event

    def close(complete: bool) -> None:
        nonlocal name
        if lines:
            at = times[min(bisect_left(ends, last), len(times) - 1)]
            found.append(Event(at, b"\n".join(lines) if len(lines) > 1 else lines[0], name, complete))
            lines.clear()
        name = b""

    start = len(_BOM) if whole.startswith(_BOM) else 0
    for line, end in _lines(whole, start):
        if not line:
            close(True)
        elif line.startswith(b"data:"):
            lines.append(line[6:] if line[5:6] == b" " else line[5:])
            last = end
        elif line.startswith(b"event:"):
            name = line[6:].strip()
        elif line.startswith(b"error:"):  # old versions of llama.cpp
            lines.append(b'{"error":' + line[6:] + b"}")
            last = end
    close(False)
    return found


def _lines(whole: bytes, start: int) -> list[tuple[bytes, int]]:
    """Lines, without what ends them, and where each ends. The last may have no end."""
    found = []
    if b"\r" not in whole:
        for line in whole[start:].split(b"\n"):
            start += len(line)
            found.append((line, start))
            start += 1
    else:
        for end in _LINE_END.finditer(whole, start):
            found.append((whole[start : end.start()], end.start()))
            start = end.end()
        found.append((whole[start:], len(whole)))
    if not found[-1][0]:  # what follows the last line end is no blank line
        found.pop()
    return found
