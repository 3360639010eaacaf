"""How the zoo writes: OpenAI's JSON with vLLM's additions, put together from strings, which is cheaper than `json.dumps`.

Texts are of letters, digits, spaces, < and >, and so are names: nothing needs an escape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from tests.support.zoo.model import Step, text_of

Piece = Sequence[tuple[Step, int]]


@dataclass(frozen=True, slots=True)
class Form:
    """What a response has in it. top: best tokens of each step; None: no log-probabilities. ids: token ids."""

    chat: bool
    model: str
    fingerprint: str | None
    top: int | None
    ids: bool

    @property
    def head(self) -> str:
        kind = "chat.completion" if self.chat else "text_completion"
        print_ = f'"system_fingerprint":"{self.fingerprint}",' if self.fingerprint is not None else ""
        return f'{{"id":"zoo","object":"{kind}","created":0,"model":"{self.model}",{print_}'


def text(piece: Piece) -> str:
    return "".join([text_of(found.ids[chosen]) for found, chosen in piece])


def ids(piece: Piece) -> str:
    return ",".join([str(found.ids[chosen]) for found, chosen in piece])


@lru_cache(maxsize=1 << 16)
def _chat_entry(found: Step, chosen: int, top: int) -> str:
    entries = [
        f'"token":"{text_of(token)}","logprob":{logprob!r},"bytes":null'
        for token, logprob in zip(found.ids, found.logprobs, strict=True)
    ]
    tops = ",".join([f"{{{entry}}}" for entry in entries[:top]])
    return f'{{{entries[chosen]},"top_logprobs":[{tops}]}}'


def logprobs(form: Form, piece: Piece) -> str:
    """The field of a choice, with a comma before it."""
    if form.top is None:
        return ""
    if form.chat:
        content = ",".join([_chat_entry(found, chosen, form.top) for found, chosen in piece])
        return f',"logprobs":{{"content":[{content}]}}'
    return ',"logprobs":' + completion_logprobs(
        [text_of(found.ids[chosen]) for found, chosen in piece],
        [repr(found.logprobs[chosen]) for found, chosen in piece],
        [
            ",".join([f'"{text_of(t)}":{p!r}' for t, p in zip(found.ids[: form.top], found.logprobs, strict=False)])
            for found, _ in piece
        ],
    )


def completion_logprobs(texts: Sequence[str], values: Sequence[str], tops: Sequence[str]) -> str:
    """tops: the inside of an object for each token, or nothing."""
    tokens = ",".join([f'"{t}"' for t in texts])
    top = ",".join([f"{{{inside}}}" if inside else "null" for inside in tops])
    return f'{{"tokens":[{tokens}],"token_logprobs":[{",".join(values)}],"top_logprobs":[{top}],"text_offset":[]}}'


def chunk(form: Form, head: str, piece: Piece, finish: str | None, prompt: str) -> bytes:
    """An event. head: as of `form`. prompt: more fields of the object, with a comma before them."""
    said = text(piece)
    inner = f'"delta":{{"content":"{said}"}}' if form.chat else f'"text":"{said}"'
    end = f'"{finish}"' if finish is not None else "null"
    token_ids = f',"token_ids":[{ids(piece)}]' if form.ids else ""
    choice = f'{{"index":0,{inner}{logprobs(form, piece)},"finish_reason":{end}{token_ids}}}'
    return f'data: {head}"choices":[{choice}]{prompt}}}\n\n'.encode()


def whole(form: Form, piece: Piece, finish: str, more: str, usage: str, echo: tuple[str, str] | None) -> bytes:
    """One object. more: fields of the choice, with a comma before them. echo: text and logprobs that replace the answer's."""
    said, probabilities = text(piece), logprobs(form, piece)
    if echo is not None:
        said, probabilities = echo
    inner = f'"message":{{"role":"assistant","content":"{said}"}}' if form.chat else f'"text":"{said}"'
    token_ids = f',"token_ids":[{ids(piece)}]' if form.ids else ""
    choice = f'{{"index":0,{inner}{probabilities},"finish_reason":"{finish}"{token_ids}{more}}}'
    return f'{form.head}"choices":[{choice}]{usage}}}'.encode()
