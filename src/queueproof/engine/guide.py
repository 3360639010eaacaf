"""Structured output: an answer that follows a JSON schema, by llguidance (the extra `guided`).

A guide says before each draw which tokens may come next. That is a function of the tokens of the answer so far and of
nothing else: a guide is never shared or rolled back, and guesses are tried on copies of it.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from queueproof.contract.errors import InvalidParameter, UsageError
from queueproof.engine.protocols import Tokenizer
from queueproof.kernels.ops import U32

ANY_OBJECT = "json"
"""The guide that stands for any JSON object."""

_PACKAGE = "llguidance"
_KEPT = 64  # grammars that need no second compilation
_SHOWN = 60  # characters of a schema in an error
# Without a bound a model may go on with spaces for ever. Nothing that a schema asks for is ever left out.
_OPTIONS = {"lenient": False, "coerce_one_of": False, "whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,64}"}


def library() -> str | None:
    """Name and version of what enforces guides; None if it is not installed."""
    try:
        return f"{_PACKAGE} {version(_PACKAGE)}"
    except PackageNotFoundError:
        return None


class Guide:
    """Where one answer stands in its grammar. complete: it may not go on. failure: why there is no way on, where that is so."""

    def __init__(self, matcher: Any, words: int) -> None:
        self._matcher, self._words = matcher, words
        self._ahead: tuple[Any, list[int]] | None = None  # a copy, and the guesses that it has taken
        self.complete = False
        self.failure: str | None = None

    def fork(self) -> Guide:
        """Another one at the same place."""
        return Guide(self._matcher.deep_copy(), self._words)

    def mask(self, guesses: Sequence[int]) -> U32 | None:
        """u32 [words], a bit for each token that may follow the answer and these guesses. None: no token can (`failure`), or
        the guesses break the grammar, and what would follow them does not matter."""
        matcher = self._matcher if not guesses else self._after(list(guesses))
        if matcher is None:
            return None
        found = np.frombuffer(matcher.compute_bitmask(), np.uint32)[: self._words]
        words = np.zeros(self._words, np.uint32)  # ids that the tokenizer does not have are not allowed
        words[: found.size] = found
        if not guesses and (matcher.is_error() or not found.any()):
            self.failure = _first_line(matcher.get_error()) or "no token can follow"
        return words if found.any() else None

    def accept(self, token: int) -> bool:
        """One more token of the answer. False if there is a `failure` by now."""
        self._ahead = None
        if self.failure is None and not self._matcher.consume_token(token):
            self.failure = _first_line(self._matcher.get_error()) or f"token {token} cannot follow"
        self.complete = self.failure is None and self._matcher.is_stopped()
        return self.failure is None

    def _after(self, guesses: list[int]) -> Any:
        if self._ahead is None or self._ahead[1] != guesses[: len(self._ahead[1])]:
            self._ahead = self._matcher.deep_copy(), []
        matcher, taken = self._ahead
        more = guesses[len(taken) :]
        accepted = matcher.try_consume_tokens(more)
        taken += more[:accepted]
        return matcher if accepted == len(more) and not matcher.is_stopped() else None


class Guides:
    """Makes guides for one tokenizer. On any thread.

    vocab_size: of the model. eos_ids: tokens that end an answer where its grammar allows it to end.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_ids: Iterable[int]) -> None:
        self._tokenizer, self._vocab_size, self._eos_ids = tokenizer, vocab_size, sorted(eos_ids)
        self._lock = threading.Lock()
        self._library: Any = None
        self._prepared: Any = None
        self._grammars: OrderedDict[str, Guide] = OrderedDict()

    def prepare(self) -> None:
        """Reads the vocabulary, once; takes seconds for a large one. Raises UsageError without the library."""
        with self._lock:
            self._prepare()

    def start(self, guide: str) -> Guide:
        """A guide at the beginning of an answer. guide: the text of a JSON schema, or ANY_OBJECT.

        Raises UsageError without the library, InvalidParameter for what is no schema or asks for what cannot be enforced.
        """
        with self._lock:
            self._prepare()
            known = self._grammars.pop(guide, None) or self._compile(guide)
            self._grammars[guide] = known
            if len(self._grammars) > _KEPT:
                self._grammars.popitem(last=False)
            return known.fork()

    def _prepare(self) -> None:
        if self._prepared is not None:
            return
        try:
            self._library = import_module(_PACKAGE)
        except ModuleNotFoundError as error:
            if error.name != _PACKAGE:
                raise
            raise UsageError(
                f'structured output needs {_PACKAGE}, which is not installed: pip install "queueproof[guided]", or leave '
                "out the JSON schema"
            ) from None
        wrapped = self._library.TokenizerWrapper(_Vocabulary(self._tokenizer, self._vocab_size, self._eos_ids))
        self._prepared = self._library.LLTokenizer(wrapped, eos_token=self._eos_ids or [self._vocab_size])

    def _compile(self, guide: str) -> Guide:
        matchers = self._library.LLMatcher
        limits = self._library.LLParserLimits(verbose_errors=False)
        try:
            grammar = matchers.grammar_from_json_schema(_schema(guide), overrides=_OPTIONS)
        except ValueError as error:
            raise _refused(guide, str(error)) from None
        matcher = matchers(self._prepared, grammar, log_level=0, limits=limits)
        wrong = [matcher.get_error()] if matcher.is_error() else matcher.get_grammar_warnings()
        if wrong:
            raise _refused(guide, "; ".join(map(_first_line, wrong)))
        return Guide(matcher, -(-self._vocab_size // 32))


class _Vocabulary:
    """What llguidance asks of a tokenizer. Control tokens are no text, so they can only end an answer.

    Where a grammar leaves one text only, it asks for the tokens of that text, to allow no other spelling of it.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_ids: list[int]) -> None:
        ids = range(tokenizer.vocab_size)
        self.tokens = [tokenizer.token_bytes(i) for i in ids]
        self.special_token_ids = sorted({i for i in ids if tokenizer.is_control(i)} | set(eos_ids))
        self.bos_token_id = None
        if not eos_ids:  # an answer must have some end: an id that no model draws
            self.tokens += [b""] * (vocab_size - len(self.tokens)) + [b"<end>"]
            self.special_token_ids.append(vocab_size)
        self.eos_token_id = (eos_ids or [vocab_size])[0]
        self._tokenizer = tokenizer
        special = frozenset(self.special_token_ids)
        self._by_bytes = {data: i for i, data in enumerate(self.tokens) if data and i not in special}
        self._longest = max(map(len, self._by_bytes), default=0)

    def __call__(self, text: bytes | str) -> list[int]:
        data = text if isinstance(text, bytes) else text.encode()
        ids = self._tokenizer.encode(data.decode("utf-8", "replace"), False)
        if b"".join([self.tokens[i] for i in ids]) == data:
            return ids
        return self._greedy(data)  # a tokenizer that puts a space before every text, or bytes that are none

    def _greedy(self, data: bytes) -> list[int]:
        """The longest token at each place, as far as there are any."""
        ids: list[int] = []
        at = 0
        while at < len(data):
            ends = range(min(len(data), at + self._longest), at, -1)
            end = next((end for end in ends if data[at:end] in self._by_bytes), None)
            if end is None:
                break
            ids.append(self._by_bytes[data[at:end]])
            at = end
        return ids


def _schema(guide: str) -> str:
    """The text of a schema object. Raises InvalidParameter."""
    if guide == ANY_OBJECT:
        return '{"type": "object"}'
    try:
        schema = json.loads(guide)
    except (ValueError, RecursionError) as error:
        raise _refused(guide, f"it must be a JSON schema, and is not JSON: {error}") from None
    if schema is True:
        return "{}"
    if not isinstance(schema, dict):
        raise _refused(guide, "it must be a JSON schema: an object, or true for any JSON")
    return guide


def _refused(guide: str, why: str) -> InvalidParameter:
    shown = guide if len(guide) <= _SHOWN else guide[:_SHOWN] + "…"
    return InvalidParameter("guide", shown, why)


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0][:500]
