"""Log-probabilities in the shapes of OpenAI's two APIs and of vLLM."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from queueproof.server.protocol import Logprob
from queueproof.server.tokens import Tokens

LOWEST = -9999.0
"""What stands for minus infinity, which JSON cannot say: OpenAI's number for tokens that are out of the question."""


def finite(logprob: float) -> float:
    return max(logprob, LOWEST)


def best(position: Mapping[int, Logprob], count: int) -> list[tuple[int, Logprob]]:
    """The `count` most likely tokens of a position, the best first."""
    found = [item for item in position.items() if item[1].rank <= count]
    return sorted(found, key=lambda item: (item[1].rank, item[0]))


def chat_content(
    tokens: Tokens, ids: Sequence[int], positions: Sequence[Mapping[int, Logprob]], count: int, as_ids: bool
) -> list[dict[str, Any]]:
    """`logprobs.content` of a chat answer: one entry for each token, with the `count` best of its position."""

    def entry(token_id: int, logprob: Logprob) -> dict[str, Any]:
        token = tokens[token_id]
        text = f"token_id:{token_id}" if as_ids else token.text
        return {"token": text, "logprob": finite(logprob.logprob), "bytes": list(token.data)}

    return [
        entry(chosen, position[chosen])
        | {"top_logprobs": [entry(other, logprob) for other, logprob in best(position, count)]}
        for chosen, position in zip(ids, positions, strict=True)
    ]


class CompletionLogprobs:
    """`logprobs` of a completion, built piece by piece. Offsets count characters from the beginning of the text."""

    def __init__(self, tokens: Tokens, count: int, as_ids: bool, skip_special: bool) -> None:
        self._tokens, self._count, self._as_ids, self._skip = tokens, count, as_ids, skip_special
        self._offset = 0
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._first = True

    def part(
        self, ids: Iterable[int], positions: Iterable[Mapping[int, Logprob] | None], text: str, starts_text: bool
    ) -> dict[str, Any]:
        """The next tokens. The first token of a prompt has no log-probability.

        text: of the part, which may lack the space before its first word. starts_text: whether a part that is decoded
        by itself begins here: the prompt, or the answer.
        """
        if starts_text:
            self._offset += len(self._utf8.decode(b"", final=True))
            self._utf8.reset()
            self._first = True
        made: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for token_id, position in zip(ids, positions, strict=True):
            made["tokens"].append(self._name(token_id))
            made["text_offset"].append(self._offset)
            self._advance(token_id, text)
            made["token_logprobs"].append(None if position is None else finite(position[token_id].logprob))
            made["top_logprobs"].append(None if position is None else self._top(token_id, position))
        return made

    def _name(self, token_id: int) -> str:
        return f"token_id:{token_id}" if self._as_ids else self._tokens[token_id].text

    def _top(self, chosen: int, position: Mapping[int, Logprob]) -> dict[str, float]:
        """Of tokens with one text the most likely stays. The chosen one is always there."""
        found: dict[str, float] = {}
        for token_id, logprob in [*best(position, self._count), (chosen, position[chosen])]:
            found.setdefault(self._name(token_id), finite(logprob.logprob))
        return found

    def _advance(self, token_id: int, text: str) -> None:
        token = self._tokens[token_id]
        if token.special and self._skip:
            return
        data = token.data
        if self._first and data:
            self._first = False
            if data.startswith(b" ") and not text.startswith(" "):
                data = data[1:]
        self._offset += len(self._utf8.decode(data))


def prompt_logprobs(
    tokens: Tokens, ids: Sequence[int], positions: Sequence[Mapping[int, Logprob] | None], count: int
) -> list[dict[str, Any] | None]:
    """vLLM's `prompt_logprobs`: for each token of the prompt but the first, itself and the `count` best there."""
    return [
        None
        if position is None
        else {
            str(other): {
                "logprob": finite(logprob.logprob),
                "rank": logprob.rank,
                "decoded_token": tokens[other].text,
            }
            for other, logprob in ({chosen: position[chosen]} | dict(best(position, count))).items()
        }
        for chosen, position in zip(ids, positions, strict=True)
    ]
