"""How the tokens of one request are chosen, with vLLM's names. Every value is checked; an unknown name is an error."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

from queueproof.contract.errors import InvalidParameter
from queueproof.contract.receipt import MAX_SEED

_MAX_N = 1 << 16


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Options of one request. Raises InvalidParameter for a value out of range, of another type, or an unknown name.

    n: answers to one prompt; answer i uses seed + i (mod 2^64).
    temperature: 0 is greedy; otherwise from 1e-5 to 1e5.
    top_k: keep the k best tokens (0: all). top_p, min_p: as docs/arithmetic.md section 6.
    repetition_penalty, presence_penalty, frequency_penalty, logit_bias: applied in that section's order.
    seed: 0 to 2^64 - 1; None draws a fresh one, which the output reports.
    stop: strings that end the answer; the text stops before them unless include_stop_str_in_output.
    stop_token_ids: ids that end the answer. ignore_eos: the model's own end tokens do not.
    max_tokens: None means up to the context. min_tokens: nothing ends the answer before so many tokens.
    logprobs, prompt_logprobs: how many of the best tokens to report at each position, beside the chosen one.
    guide: the text of a JSON schema that the answer follows, or "json" for any JSON object. The schema says where the answer
    ends, so neither ignore_eos nor min_tokens goes with it.
    skip_special_tokens, detokenize: about the text only; detokenize=False leaves it empty.
    """

    n: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = None
    seed: int | None = None
    stop: str | Iterable[str] | None = None
    stop_token_ids: Iterable[int] | None = None
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    detokenize: bool = True
    guide: str | None = None

    def __new__(cls, *args: Any, **options: Any) -> SamplingParams:
        # Before the generated __init__, whose TypeError would not name what there is.
        known = [f.name for f in dataclasses.fields(cls)]
        for name, value in options.items():
            if name not in known:
                raise InvalidParameter(
                    name, value, f"there is no such sampling parameter; known are {', '.join(known)}"
                )
        return object.__new__(cls)

    def __post_init__(self) -> None:
        self._integer("n", 1, _MAX_N)
        self._number("temperature", 0.0, 1e5, zero_or_from=1e-5)
        self._integer("top_k", 0, meaning=" (0 keeps all tokens)")
        self._number("top_p", 0.0, 1.0, open_low=True)
        self._number("min_p", 0.0, 1.0)
        self._number("repetition_penalty", 0.01, 100.0)
        self._number("presence_penalty", -2.0, 2.0)
        self._number("frequency_penalty", -2.0, 2.0)
        self._set("logit_bias", self._checked_bias())
        self._integer("seed", 0, MAX_SEED, optional=True)
        self._set("stop", self._checked_stop())
        self._set("stop_token_ids", self._checked_ids())
        for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens", "detokenize"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidParameter(name, getattr(self, name), "it must be True or False")
        self._integer("max_tokens", 1, optional=True)
        self._integer("min_tokens", 0)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidParameter("min_tokens", self.min_tokens, f"it must be at most max_tokens={self.max_tokens}")
        self._integer("logprobs", 0, optional=True)
        self._integer("prompt_logprobs", 0, optional=True)
        if self.stop and not self.detokenize:
            raise InvalidParameter(
                "detokenize", False, "stop strings need the text; leave out stop or detokenize=False"
            )

        self._check_guide()

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings, without repeats."""
        assert isinstance(self.stop, tuple)
        return self.stop

    @property
    def stop_ids(self) -> frozenset[int]:
        assert isinstance(self.stop_token_ids, tuple)
        return frozenset(self.stop_token_ids)

    @property
    def has_penalties(self) -> bool:
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _integer(
        self, name: str, low: int, high: int | None = None, optional: bool = False, meaning: str = ""
    ) -> None:
        value = getattr(self, name)
        if value is None and optional:
            return
        allowed = f"it must be an integer from {low}" + (f" to {high}" if high is not None else "") + meaning
        self._set(name, as_integer(name, value, allowed + (", or None" if optional else ""), low, high))

    def _number(
        self, name: str, low: float, high: float, open_low: bool = False, zero_or_from: float | None = None
    ) -> None:
        value = getattr(self, name)
        if zero_or_from is not None:
            allowed = f"it must be 0, or a number from {zero_or_from:g} to {high:g}"
        else:
            allowed = (
                f"it must be a number {'above' if open_low else 'from'} {low:g} {'up ' if open_low else ''}to {high:g}"
            )
        number = _as_number(name, value, allowed)
        in_range = low < number <= high if open_low else low <= number <= high
        if not in_range or (zero_or_from is not None and 0 < number < zero_or_from):
            raise InvalidParameter(name, value, allowed)
        self._set(name, number + 0.0)  # -0.0 becomes 0.0

    def _checked_bias(self) -> dict[int, float] | None:
        if self.logit_bias is None:
            return None
        allowed = "it must map token ids to numbers from -100 to 100"
        if not isinstance(self.logit_bias, Mapping):
            raise InvalidParameter("logit_bias", self.logit_bias, allowed)
        checked: dict[int, float] = {}
        for key, value in self.logit_bias.items():
            number = _as_number("logit_bias", value, allowed)
            if not -100.0 <= number <= 100.0:
                raise InvalidParameter("logit_bias", self.logit_bias, allowed)
            checked[as_integer("logit_bias", key, allowed, 0)] = number
        return checked or None

    def _check_guide(self) -> None:
        if self.guide is None:
            return
        if not isinstance(self.guide, str) or not self.guide:
            raise InvalidParameter("guide", self.guide, 'it must be the text of a JSON schema, or "json"')
        for name in ("ignore_eos", "min_tokens"):
            if getattr(self, name):
                raise InvalidParameter(name, getattr(self, name), "a guide says itself where the answer ends")

    def _checked_stop(self) -> tuple[str, ...]:
        allowed = "it must be a string that is not empty, or several of them"
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop
        if stop is None:
            return ()
        if not isinstance(stop, Iterable) or isinstance(stop, bytes):
            raise InvalidParameter("stop", stop, allowed)
        strings = list(stop)
        if not all(isinstance(s, str) and s for s in strings):
            raise InvalidParameter("stop", self.stop, allowed)
        return tuple(dict.fromkeys(strings))

    def _checked_ids(self) -> tuple[int, ...]:
        ids = self.stop_token_ids
        if ids is None:
            return ()
        allowed = "it must be a list of token ids"
        if not isinstance(ids, Iterable) or isinstance(ids, str | bytes):
            raise InvalidParameter("stop_token_ids", ids, allowed)
        return tuple(sorted({as_integer("stop_token_ids", i, allowed, 0) for i in ids}))


def as_integer(name: str, value: object, allowed: str, low: int, high: int | None = None) -> int:
    """An int in [low, high] from an int or NumPy integer; a bool is neither. Raises InvalidParameter."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise InvalidParameter(name, value, allowed) from None
    if isinstance(value, bool) or number < low or (high is not None and number > high):
        raise InvalidParameter(name, value, allowed)
    return number


def _as_number(name: str, value: object, allowed: str) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InvalidParameter(name, value, allowed)
    try:
        number = float(value)
    except OverflowError:
        raise InvalidParameter(name, value, allowed) from None
    if not math.isfinite(number):
        raise InvalidParameter(name, value, allowed)
    return number
