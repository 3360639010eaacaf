"""Text to token ids and back, over the tokenizers library."""

from __future__ import annotations

import codecs
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tokenizers

from queueproof.contract.errors import InvalidParameter, UnsupportedModel, UsageError
from queueproof.models.chat import ChatTemplate
from queueproof.models.control import ControlTokens
from queueproof.models.tokenizer_spec import TokenizerSpec
from queueproof.models.vocabulary import Vocabulary

_LONG_TEXT = 4096  # characters


class Tokenizer:
    """Encodes plain text and conversations, decodes ids.

    Text never yields a control token; control tokens come from the rule for the beginning of a prompt (`prefix`) and
    from the chat template. bos_id, eos_ids: as the model's configuration has them.
    """

    def __init__(
        self, spec: TokenizerSpec, bos_id: int | None, eos_ids: tuple[int, ...], chat_template: ChatTemplate | None
    ) -> None:
        self.bos_id, self.eos_ids, self.chat_template = bos_id, eos_ids, chat_template
        self.prefix = spec.prefix
        self.control = ControlTokens(spec.control)
        self._control_ids = frozenset(token.id for token in self.control.tokens)
        self.vocabulary = Vocabulary(spec)
        plain = json.dumps(spec.plain, ensure_ascii=False)
        self._plain = _build(plain, spec.source)
        # Some tokenizers put a space before the first piece of a text only, not before the pieces after control tokens.
        inner = spec.without_first_prefix()
        self._inner = self._plain if inner is None else _build(json.dumps(inner, ensure_ascii=False), spec.source)
        rest = json.dumps([[t.id, t.text, t.special, t.pattern] for t in self.control.tokens] + list(self.prefix))
        self.digest = hashlib.sha256((plain + rest).encode()).hexdigest()

    @property
    def vocab_size(self) -> int:
        """One more than the largest token id."""
        return self.vocabulary.size

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for, those of a control token being its text; none for an id that is none."""
        return self.vocabulary.token_bytes(token_id)

    def is_control(self, token_id: int) -> bool:
        return token_id in self._control_ids

    def encode(self, text: str, add_bos: bool | None = None) -> list[int]:
        """Token ids of a plain prompt.

        add_bos: None puts before it what the model expects (`prefix`), False nothing, True the beginning-of-text token.
        Raises InvalidParameter if add_bos is True and the model has no such token.
        """
        if add_bos is None:
            before = list(self.prefix)
        elif add_bos:
            if self.bos_id is None:
                raise InvalidParameter("add_bos", True, "this model has no beginning-of-text token; leave it out")
            before = [self.bos_id]
        else:
            before = []
        return before + self._ids(self._plain, text)

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> list[int]:
        """Token ids of a conversation through the chat template (see ChatTemplate.render for the options).

        Raises UsageError if the model has no template, InvalidParameter for messages or options that it does not take.
        """
        if self.chat_template is None:
            raise UsageError("this model has no chat template; give the prompt as plain text, or use an instruct model")
        rendered = self.chat_template.render(messages, self.control, **options)
        ids: list[int] = []
        for piece in self.control.split(rendered.text, rendered.sentinel):
            ids += [piece] if isinstance(piece, int) else self._ids(self._inner if ids else self._plain, piece)
        return ids

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """The text of token ids; bytes that are no UTF-8 become U+FFFD."""
        stream = self.stream(skip_special_tokens)
        return "".join([stream.push(token) for token in ids]) + stream.finish()

    def stream(self, skip_special_tokens: bool = True) -> StreamDecoder:
        return StreamDecoder(self.vocabulary, skip_special_tokens)

    @staticmethod
    def _ids(tokenizer: Any, text: str) -> list[int]:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as e:
            raise InvalidParameter("text", text[e.start : e.end], "half of a surrogate pair is no Unicode text") from e
        if len(text) <= _LONG_TEXT:
            return list(tokenizer.encode(text, add_special_tokens=False).ids)
        # The same ids in a third of the time, and unlike `encode` it lets other threads run: this one may take seconds.
        return list(tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids)


class StreamDecoder:
    """Text of a growing list of token ids, never with a part of a character. The pieces together are `decode`'s text."""

    def __init__(self, vocabulary: Vocabulary, skip_special_tokens: bool) -> None:
        self._vocabulary, self._skip = vocabulary, skip_special_tokens
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip = vocabulary.strip_first_space

    def push(self, token_id: int) -> str:
        """The text that this token completes. Ids that the vocabulary does not have give none."""
        data = self._vocabulary.token_bytes(token_id, self._skip)
        if self._strip and data:
            self._strip = False
            data = data.removeprefix(b" ")
        return self._utf8.decode(data)

    def finish(self) -> str:
        """What is left of an incomplete character, as a replacement character."""
        return self._utf8.decode(b"", final=True)


def _build(spec: str, source: str) -> Any:
    try:
        return tokenizers.Tokenizer.from_str(spec)
    except Exception as e:  # the library raises bare Exception
        raise UnsupportedModel(f"{source}: the tokenizers library {tokenizers.__version__} cannot use it: {e}") from e
