"""What an endpoint takes and gives, found with the smallest requests that show it.

A field that a server takes without a word may be ignored: so it counts by what comes back, and where nothing can come back
(`ignore_eos`, `cache_salt` without counts of cached tokens) by what is known of the software.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from queueproof.audit.ask import Answer, Cold
from queueproof.audit.client import counters
from queueproof.audit.client import requests as r
from queueproof.audit.client.abilities import Ability
from queueproof.audit.client.requests import Dialect, PromptLogprobs, Route
from queueproof.audit.client.trouble import Failure, Kind
from queueproof.audit.client.vendor import LLAMA_CPP, QUEUEPROOF, SGLANG, TGI, TRANSFORMERS, VLLM, Software
from queueproof.audit.client.wire import Wire
from queueproof.audit.endpoint import Counters

_ALL = (r.STREAM_OPTIONS, r.LOGPROBS, r.TOP_LOGPROBS, r.TOKEN_IDS, r.SALT, r.CACHE_PROMPT, r.IGNORE_EOS)
# Of known software, what it has no use for is not even tried.
_NEVER: Mapping[str, frozenset[str]] = {
    VLLM: frozenset({r.CACHE_PROMPT}),
    QUEUEPROOF: frozenset({r.CACHE_PROMPT}),
    SGLANG: frozenset({r.CACHE_PROMPT}),
    LLAMA_CPP: frozenset({r.TOKEN_IDS, r.SALT}),
    TGI: frozenset({r.TOKEN_IDS, r.SALT, r.CACHE_PROMPT, r.IGNORE_EOS}),
    TRANSFORMERS: frozenset(_ALL),
}
_SALTED = frozenset({VLLM, QUEUEPROOF})  # in every version that is read here
_GOES_ON = frozenset({VLLM, QUEUEPROOF, SGLANG, LLAMA_CPP})  # with ignore_eos
_SHORT = "Count: one, two, three,"
_WORDS = "river stone cloud paper green table winter music bread seven"
_LONG = 300  # words: more tokens than the largest KV block in use, twice
_TRIES = 12


@dataclass(slots=True)
class Found:
    """how: of each ability, what showed it. named: the model's name in answers."""

    dialects: dict[Route, Dialect] = field(default_factory=dict)
    how: dict[Ability, str] = field(default_factory=dict)
    cold_by: Cold = Cold.PREFIX
    cold_how: str = "nothing else was found"
    prompt_logprobs: PromptLogprobs | None = None
    named: str | None = None
    fingerprints: list[str] = field(default_factory=list)
    counters_at: str | None = None
    ids: tuple[int, ...] = ()  # some of this vocabulary


class Explorer:
    """Of one endpoint. extra: fields that are in every request."""

    def __init__(self, wire: Wire, model: str, software: Software, extra: Mapping[str, Any]) -> None:
        self._wire, self._model, self._software, self._extra = wire, model, software, extra
        self.found = Found()

    async def explore(self) -> Found:
        """Raises Failure where the endpoint answers nothing at all."""
        found = self.found
        await self._counters()
        refusals = []
        for route, content in ((Route.CHAT, _message(_SHORT)), (Route.COMPLETIONS, {"prompt": _SHORT})):
            try:
                answer = await self._route(route, content)
            except Failure as failure:
                if failure.kind != Kind.REJECTED:
                    raise
                refusals.append(failure)
                continue
            found.how[Ability(route.name.lower())] = f"POST {route} answered"
            self._look(answer, str(route))
        if not found.dialects:
            raise refusals[0]
        await self._prompts()
        await self._cold()
        taken = frozenset().union(*(d.taken for d in found.dialects.values()))
        if r.IGNORE_EOS in taken and self._software.vendor in _GOES_ON:
            found.how[Ability.IGNORE_EOS] = f"{self._software.vendor} has it, and it was taken"
        return found

    async def _counters(self) -> None:
        for path, read in (("/metrics", counters.from_metrics), ("/slots", counters.from_slots)):
            page = await self._wire.page(path)
            if page is not None and page.is_success and read(page.content) is not None:
                self.found.counters_at = path
                self.found.how[Ability.COUNTERS] = f"{path} has numbers that are known here"
                return

    async def _route(self, route: Route, content: Mapping[str, Any]) -> Answer:
        """The first answer of a route, with as many fields as it takes. Keeps its dialect. Raises Failure."""
        taken = [name for name in _ALL if name not in _NEVER.get(self._software.vendor, ())]
        if self._software.vendor == SGLANG:
            taken.append(r.CACHED_DETAILS)
        later: list[str] = []  # fields that wait to be tried one by one
        dialect = Dialect(frozenset(taken))
        kept: tuple[Dialect, Answer] | None = None
        for _ in range(_TRIES):
            try:
                answer = await self._try(route, content, dialect)
            except Failure as failure:
                if failure.kind != Kind.REJECTED or failure.status in (404, 405):
                    raise
                if kept is None:
                    changed = _without(dialect, str(failure))
                    if changed is None and dialect.taken:  # it does not say what it minds
                        later = [name for name in _ALL if name in dialect.taken]
                        changed = Dialect(frozenset(), dialect.limit, dialect.temperature)
                    if changed is None:
                        raise
                    dialect = changed
                    continue
            else:
                kept = (dialect, answer)
            assert kept is not None
            if not later:
                break
            dialect = Dialect(kept[0].taken | {later.pop(0)}, dialect.limit, dialect.temperature)
        if kept is None:
            raise Failure(Kind.REJECTED, f"no form of a request was taken after {_TRIES} tries")
        self.found.dialects[route] = kept[0]
        return kept[1]

    async def _try(
        self, route: Route, content: Mapping[str, Any], dialect: Dialect, more: Mapping[str, Any] | None = None
    ) -> Answer:
        body: dict[str, Any] = {"model": self._model, **content, dialect.limit: 2, "stream": True}
        if dialect.temperature:
            body["temperature"] = 0
        chat = route is Route.CHAT
        values: dict[str, Any] = {
            r.STREAM_OPTIONS: {"include_usage": True},
            r.LOGPROBS: True if chat else r.TOP,
            r.TOKEN_IDS: True,
            r.SALT: secrets.token_hex(8),
            r.CACHE_PROMPT: False,
            r.IGNORE_EOS: True,
            r.CACHED_DETAILS: True,
        }
        if chat and r.LOGPROBS in dialect.taken:
            values[r.TOP_LOGPROBS] = r.TOP
        body |= {name: value for name, value in values.items() if name in dialect.taken}
        body |= more or {}
        if not body["stream"]:
            body.pop(r.STREAM_OPTIONS, None)
        answer = await self._wire.generate(route, body | dict(self._extra), "", 400 if more else 40, trying=True)
        self.found.named = self.found.named or answer.model
        if answer.fingerprint is not None and answer.fingerprint not in self.found.fingerprints:
            self.found.fingerprints.append(answer.fingerprint)
        return answer

    def _look(self, answer: Answer, where: str) -> None:
        """Writes down what an answer shows."""
        shown = {
            Ability.STREAM: bool(answer.arrivals),
            Ability.LOGPROBS: answer.logprobs is not None,
            Ability.TOP_LOGPROBS: answer.margins is not None,
            Ability.TOKEN_IDS: answer.ids is not None,
            Ability.USAGE: answer.prompt_tokens is not None,
            Ability.CACHED_TOKENS: answer.cached_tokens is not None,
        }
        for ability, there in shown.items():
            if there:
                self.found.how.setdefault(ability, f"an answer of {where} had it")
        self.found.ids = self.found.ids or answer.prompt_ids or answer.ids or ()

    async def _prompts(self) -> None:
        """Whether completions take token ids, and how a prompt's log-probabilities are had."""
        found, dialect = self.found, self.found.dialects.get(Route.COMPLETIONS)
        if dialect is None:
            return
        content: dict[str, Any] = {"prompt": _SHORT}
        if found.ids:
            ids = list(found.ids[:16])
            answer = await self._if_taken(Route.COMPLETIONS, {"prompt": ids}, dialect, {"stream": True})
            if answer is not None and answer.prompt_tokens in (len(ids), len(ids) + 1):
                found.how[Ability.PROMPT_IDS] = f"{len(ids)} ids were counted as {answer.prompt_tokens} tokens"
                content = {"prompt": ids}
        ways: dict[PromptLogprobs, dict[str, Any]] = {
            PromptLogprobs.FIELD: {"prompt_logprobs": 1},
            PromptLogprobs.ECHO: {"echo": True, r.LOGPROBS: r.TOP},
        }
        for way, fields in ways.items():
            answer = await self._if_taken(Route.COMPLETIONS, content, dialect, {"stream": False, **fields})
            if answer is not None and answer.prompt_logprobs is not None and len(answer.prompt_logprobs) > 1:
                found.prompt_logprobs = way
                found.how[Ability.PROMPT_LOGPROBS] = f"an answer had them by `{way}`"
                return

    async def _if_taken(
        self, route: Route, content: Mapping[str, Any], dialect: Dialect, more: Mapping[str, Any]
    ) -> Answer | None:
        """None where the endpoint does not take it, in whatever way it says so."""
        try:
            return await self._try(route, content, dialect, more)
        except Failure as failure:
            if failure.kind in (Kind.REJECTED, Kind.SERVER_ERROR, Kind.BAD_ANSWER):
                return None
            raise

    async def _cold(self) -> None:
        """How the prefix cache can be left out: the first way that is shown, or known of the software, to work."""
        found, vendor = self.found, self._software.vendor
        route, dialect = next(iter(found.dialects.items()))
        ways: list[tuple[Cold, str, Any, Any]] = [
            (Cold.SALT, r.SALT, secrets.token_hex(8), secrets.token_hex(8)),
            (Cold.FIELD, r.CACHE_PROMPT, True, False),
        ]
        for way, name, warm, cold in ways:
            if name not in dialect.taken:
                continue
            known = (way is Cold.SALT and vendor in _SALTED) or (way is Cold.FIELD and vendor == LLAMA_CPP)
            how = await self._works(route, dialect, name, warm, cold, known)
            if how is not None:
                found.cold_by, found.cold_how = way, how
                return
        if vendor == SGLANG and await forget(self._wire, vendor):
            found.cold_by, found.cold_how = Cold.RESET, "/flush_cache answered"

    async def _works(self, route: Route, dialect: Dialect, name: str, warm: Any, cold: Any, known: bool) -> str | None:
        """Asks a long prompt twice with the value `warm` and then with `cold`. Says how the field was found to work."""
        text = f"{secrets.token_hex(8)} {' '.join(_WORDS.split() * (_LONG // 10))}"
        content = _message(text) if route is Route.CHAT else {"prompt": text}
        cached: list[int | None] = []
        counted: list[float] = []
        for value in (warm, warm, cold):
            before = await self._hits()
            answer = await self._if_taken(route, content, dialect, {name: value})
            if answer is None:
                return None
            cached.append(answer.cached_tokens)
            counted.append(await self._hits() - before)
        told = any(count is not None for count in cached)  # some leave it out where it is 0
        _, second, third = [float(count or 0) for count in cached] if told else counted
        if told and second:
            self.found.how.setdefault(Ability.CACHED_TOKENS, f"{second:.0f} were told of a prompt that was asked twice")
        if second and not third:
            return f"{second:.0f} tokens came from the cache with `{name}` as before, and none with another"
        if second and told:
            return None  # it is taken, and ignored
        return f"{self._software.vendor} has `{name}`, and it was taken" if known else None

    async def _hits(self) -> float:
        """Tokens that the server found in its cache so far, by its counters; 0 where it does not count them."""
        read = await read_counters(self._wire, self.found.counters_at)
        return (read.cache_hit_tokens if read is not None else None) or 0.0


async def read_counters(wire: Wire, path: str | None) -> Counters | None:
    """The server's numbers now. None where there are none, or where the page does not come at once."""
    if path is None:
        return None
    page = await wire.page(path, seconds=2.0)
    if page is None or not page.is_success:
        return None
    return counters.from_metrics(page.content) if path == "/metrics" else counters.from_slots(page.content)


async def forget(wire: Wire, vendor: str) -> bool:
    """Empties the prefix cache where there is a route for it."""
    page = await wire.page("/flush_cache" if vendor == SGLANG else "/reset_prefix_cache", "POST", seconds=30.0)
    return page is not None and page.is_success


def _message(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def _without(dialect: Dialect, message: str) -> Dialect | None:
    """The dialect without what a server's message minds. None where it names nothing that could be left out."""
    if dialect.limit == "max_tokens" and "max_completion_tokens" in message:
        return Dialect(dialect.taken, "max_completion_tokens", dialect.temperature)
    named = {name for name in dialect.taken if re.search(rf"\b{name}\b", message)}
    if r.LOGPROBS in named:
        named.add(r.TOP_LOGPROBS)
    if named & dialect.taken:
        return Dialect(dialect.taken - named, dialect.limit, dialect.temperature)
    if dialect.temperature and re.search(r"\btemperature\b", message):
        return Dialect(dialect.taken, dialect.limit, False)
    return None
