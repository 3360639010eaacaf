"""Asks prompts alone and in a crowd, and fails a test where an answer changed. See pytest_plugin."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Literal, TypeVar

from queueproof.audit import names
from queueproof.audit.ask import Answer, Ask, Prompt
from queueproof.audit.book import Book
from queueproof.audit.client.abilities import Ability
from queueproof.audit.client.http import HttpEndpoint
from queueproof.audit.gate.texts import side_by_side
from queueproof.audit.lab import Crowd, Lab, Settings
from queueproof.audit.probes.crowds import crowds_of
from queueproof.audit.records import Difference, ProbeResult
from queueproof.contract.axes import Axis
from queueproof.contract.errors import InvalidParameter, ServerError

T = TypeVar("T")
Question = str | Sequence[Mapping[str, str]] | Prompt
_SHOWN = 3  # differences in a message
_ENOUGH = 0.5  # of a crowd, that must be seen to run at once


class AnswersDiffer(AssertionError):
    """At least one answer depended on its company."""


class Inconclusive(AssertionError):
    """Nothing changed, and nothing shows that it could have."""


class EndpointUnderTest:
    """What the fixture gives. It is opened when it is first asked, on a thread with an event loop of its own, so that it
    works in tests that have a loop too."""

    def __init__(self, url: str, model: str | None, api_key: str | None, transport: Any = None) -> None:
        self._url, self._model, self._api_key, self._transport = url, model, api_key, transport
        self._stack = AsyncExitStack()
        self._endpoint: HttpEndpoint | None = None
        self._loop: _LoopThread | None = None

    def same_answer(
        self,
        prompts: Sequence[Question],
        crowd: int = 32,
        *,
        max_tokens: int = 64,
        compare: Literal["tokens", "logprobs"] = "logprobs",
        allow_inconclusive: bool = False,
    ) -> ProbeResult:
        """Asks each prompt alone, then all of them in crowds of `crowd`, greedy, and compares.

        prompts: of each a user's message, a list of messages, or an audit's Prompt. compare: `logprobs` compares tokens
        and log-probabilities bit for bit, `tokens` the tokens alone. Raises AnswersDiffer with both texts; Inconclusive,
        unless allowed, where it was not seen that the crowd ran together, or log-probabilities are to be compared and the
        endpoint has none; ServerError where the endpoint does not answer. The result has the counts.
        """
        __tracebackhide__ = True
        if crowd < 2:
            raise InvalidParameter("crowd", crowd, "it must be 2 or more: one is alone")
        if compare not in ("tokens", "logprobs"):
            raise InvalidParameter("compare", compare, "it must be tokens or logprobs")
        asked = _prompts(prompts)
        result, again = self._call(self._ask(asked, crowd, max_tokens, compare))
        changed = result.changed if compare == "logprobs" else result.tokens_changed
        if changed:
            raise AnswersDiffer(_differ(result, changed, crowd, compare, again))
        if not result.compared:
            raise ServerError(f"{self._url} gave no two answers to compare: {_problems(result)}")
        why = _inconclusive(result, compare, self._has(Ability.LOGPROBS))
        if why is not None and not allow_inconclusive:
            raise Inconclusive(
                f"0 of {result.compared} answers changed, but {why} (allow_inconclusive=True lets it pass)"
            )
        return result

    def close(self) -> None:
        if self._loop is not None:
            self._loop.call(self._stack.aclose())
            self._loop.close()
            self._loop = None

    def _has(self, ability: Ability) -> bool:
        return self._endpoint is not None and ability in self._endpoint.abilities

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            self._loop = _LoopThread()
        return self._loop.call(coroutine)

    async def _ask(
        self, prompts: Sequence[Prompt], crowd: int, max_tokens: int, compare: str
    ) -> tuple[ProbeResult, dict[str, ProbeResult]]:
        """What the crowd did, and for the prompts that changed what asking them alone again did."""
        if self._endpoint is None:
            opened = HttpEndpoint.open(self._url, self._model, self._api_key, transport=self._transport)
            self._endpoint = await self._stack.enter_async_context(opened)
        lab = Lab(self._endpoint, prompts, Settings(max_tokens=max_tokens, users=crowd, levels=(crowd,)))
        book = Book(names.NEIGHBOURS, f"Does a crowd of {crowd} change an answer?", Axis.NEIGHBOURS)
        began = asyncio.get_running_loop().time()
        asks = [lab.greedy(prompt) for prompt in prompts]
        references = {ask: await lab.reference(ask, book) for ask in asks}
        together = [await self._crowd(lab, book, part, references) for part in crowds_of(asks, crowd, lab.rng)]
        _witness(book, together, crowd)
        result = book.close(asyncio.get_running_loop().time() - began, lab.requests, lab.tokens, False)
        again = {}
        for difference in _shown(result, compare):
            ask = next(ask for ask in asks if ask.prompt.key == difference.prompt)
            floor = Book(names.ALONE, "Is it the same alone, again?", None, needs_witness=False)
            floor.compare(references[ask], await lab.alone(ask, "alone again", floor), "alone again", "alone", "again")
            again[difference.prompt] = floor.close(0.0, 1, 0, False)
        return result, again

    async def _crowd(self, lab: Lab, book: Book, asks: Sequence[Ask], references: Mapping[Ask, Answer | None]) -> Crowd:
        found = await lab.crowd(asks, "crowd", book)
        for ask, answer in zip(asks, found.answers, strict=True):
            book.compare(references[ask], answer, f"{len(asks)} at once", "alone", f"in a crowd of {len(asks)}")
        return found


def _witness(book: Book, crowds: Sequence[Crowd], size: int) -> None:
    """Of the crowd that was least together."""
    seen = [max(crowd.running or 0.0, float(crowd.shared)) for crowd in crowds]
    told = any(crowd.running is not None for crowd in crowds)
    least = min(seen)
    claim = f"{least:.0f} of a crowd of {size} were seen to run at once"
    if least or told:
        book.witness(claim, "/metrics or interleaved streams", least, max(2.0, _ENOUGH * size))
    else:
        book.no_witness(claim, "the endpoint has no /metrics, and its streams do not interleave")


def _inconclusive(result: ProbeResult, compare: str, logprobs: bool) -> str | None:
    """Why nothing is shown by answers that did not change."""
    still = [witness for witness in result.witnesses if not witness.moved]
    if still:
        return f"that needs {still[0].needed:.0f} at once: {still[0].claim}"
    if compare == "logprobs" and not logprobs:
        return "the endpoint gives no log-probabilities: compare='tokens' does without"
    return f"requests failed: {_problems(result)}" if result.problems else None


def _differ(result: ProbeResult, changed: int, crowd: int, compare: str, again: Mapping[str, ProbeResult]) -> str:
    differences = _shown(result, compare)
    lines = [f"{changed} of {result.compared} answers changed in a crowd of {crowd}"]
    for difference in differences:
        lines += ["", side_by_side(difference), *_alone_again(again.get(difference.prompt), compare)]
    if changed > len(differences):
        lines += ["", f"and {changed - len(differences)} more"]
    return "\n".join(lines)


def _shown(result: ProbeResult, compare: str) -> list[Difference]:
    """The first difference of each prompt, of the first few prompts."""
    first: dict[str, Difference] = {}
    for difference in result.differences:
        if compare == "logprobs" or difference.position is not None:
            first.setdefault(difference.prompt, difference)
    return list(first.values())[:_SHOWN]


def _alone_again(found: ProbeResult | None, compare: str) -> list[str]:
    if found is None or not found.compared:
        return []
    if found.changed if compare == "logprobs" else found.tokens_changed:
        return ["  asked alone again, it was another answer too: it is not (only) the crowd"]
    return ["  asked alone again, it was the same as alone"]


def _problems(result: ProbeResult) -> str:
    return "; ".join(f"{p.kind} ({p.count}): {p.example}" for p in result.problems) or "no reason given"


def _prompts(questions: Sequence[Question]) -> list[Prompt]:
    """Raises InvalidParameter for what is no list of prompts."""
    if isinstance(questions, str) or not questions:
        raise InvalidParameter("prompts", questions, "it must be a list with at least one prompt")
    return [_prompt(question, i) for i, question in enumerate(questions, 1)]


def _prompt(question: Question, number: int) -> Prompt:
    if isinstance(question, Prompt):
        return question
    if isinstance(question, str):
        return Prompt(f"{number}: {question[:40]}", "test", messages=(("user", question),))
    messages = _messages(question)
    if not messages:
        raise InvalidParameter("prompts", question, "each must be a text, or a list of messages with role and content")
    return Prompt(f"{number}: {messages[-1][1][:40]}", "test", messages=messages)


def _messages(question: object) -> tuple[tuple[str, str], ...]:
    """Role and content of each; empty for what is no list of messages."""
    if not isinstance(question, Sequence):
        return ()
    found = []
    for message in question:
        match message:
            case {"role": str(role), "content": str(content)}:
                found.append((role, content))
            case _:
                return ()
    return tuple(found)


class _LoopThread:
    """An event loop on a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="queueproof", daemon=True)
        self._thread.start()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The result, once it is there. What ends the waiting (Ctrl-C) ends the coroutine too."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()
