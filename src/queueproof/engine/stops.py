"""The text of an answer as it grows, and the stop strings in it.

A stop string counts at the character that completes it: of several, the one completed first wins, then the longest.
So the borders of tokens do not matter.
"""

from __future__ import annotations

from queueproof.engine.protocols import StreamDecoder


class TextStream:
    """Post: `text` never holds a stop string that ended in it, and is cut before (include_stop: after) the one found."""

    def __init__(self, decoder: StreamDecoder, stops: tuple[str, ...], include_stop: bool) -> None:
        self._decoder, self._stops, self._include_stop = decoder, stops, include_stop
        self._longest = max(map(len, stops), default=0)
        self._ended = False
        self.text = ""

    def push(self, token_id: int, may_stop: bool) -> str | None:
        """Adds a token's text. The stop string that it completes, if there is one and `may_stop`."""
        return self._add(self._decoder.push(token_id), may_stop)

    def finish(self, may_stop: bool) -> str | None:
        """No more tokens: adds what is left of an incomplete character. Does nothing after a stop string or twice."""
        if self._ended:
            return None
        found = self._add(self._decoder.finish(), may_stop)
        self._ended = True
        return found

    def settled(self) -> str:
        """What no later token can take back: the text without an end that may be the beginning of a stop string."""
        if self._ended:
            return self.text
        text = self.text
        for held in range(min(self._longest - 1, len(text)), 0, -1):
            end = text[-held:]
            if any(len(stop) > held and stop.startswith(end) for stop in self._stops):
                return text[:-held]
        return text

    def _add(self, piece: str, may_stop: bool) -> str | None:
        before = len(self.text)
        self.text += piece
        if not (piece and may_stop and self._stops):
            return None
        found: tuple[int, int, str] | None = None
        for stop in self._stops:
            start = self.text.find(stop, max(0, before - len(stop) + 1))
            if start >= 0:
                match = (start + len(stop), start, stop)
                found = match if found is None else min(found, match)
        if found is None:
            return None
        end, start, stop = found
        self.text = self.text[: end if self._include_stop else start]
        self._ended = True
        return stop
