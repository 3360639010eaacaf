"""An endpoint that speaks OpenAI's API over HTTP, whoever wrote it."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Self

import httpx

from queueproof.audit.ask import Answer, Ask, Cache, Cold, Prompt
from queueproof.audit.budget import Budget
from queueproof.audit.client.abilities import Ability
from queueproof.audit.client.counting import Counting
from queueproof.audit.client.discover import Explorer, Found, forget, read_counters
from queueproof.audit.client.requests import body_of, route_of
from queueproof.audit.client.spending import Spending
from queueproof.audit.client.trouble import Failure, Kind, Retries, at_first
from queueproof.audit.client.vendor import Software, chosen, identify, listed_models
from queueproof.audit.client.wire import Timeouts, Wire, root_of
from queueproof.audit.endpoint import Counters
from queueproof.audit.records import EndpointIdentity, Problem
from queueproof.contract.errors import UsageError

_NO_LIMIT, _TIMEOUTS, _RETRIES = Budget(seconds=None), Timeouts(), Retries()


class HttpEndpoint:
    """Implements endpoint.Endpoint. Made by `open`, which finds out what the endpoint is and can do."""

    def __init__(
        self, wire: Wire, model: str, software: Software, found: Found, extra: Mapping[str, Any], listed: frozenset[str]
    ) -> None:
        self._wire, self._model, self._software, self._found, self._extra = wire, model, software, found, extra
        self._others = listed - {model}
        self._run = secrets.token_hex(8)  # no other run may have warmed what this one calls cold
        self._asked = 0
        self._counting = Counting(wire, model, software)
        self._counted: dict[Prompt, int | None] = {}

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        url: str,
        model: str | None = None,
        api_key: str | None = None,
        budget: Budget = _NO_LIMIT,
        timeouts: Timeouts = _TIMEOUTS,
        retries: Retries = _RETRIES,
        transport: httpx.AsyncBaseTransport | None = None,
        extra_body: Mapping[str, Any] | None = None,
    ) -> AsyncIterator[Self]:
        """Opens an endpoint and explores it with a few small requests, which count in the budget; closes it at the end.

        url: with /v1 or without. model: needed where there are several. extra_body: fields of every request, as they are.
        transport: see Wire. Raises UsageError (no address, no model or several), Trouble (the endpoint cannot be asked at
        all), BudgetSpent.
        """
        wire = Wire(root_of(url), api_key, Spending(budget), timeouts, retries, transport)
        try:
            try:
                entries = await listed_models(wire)
                model = chosen(model, entries, url)
                software = await identify(wire, entries)
                listed = frozenset(entry["id"] for entry in entries or ())
                found = await _explored(Explorer(wire, model, software, extra_body or {}), url, model, listed)
                endpoint = cls(wire, model, software, found, extra_body or {}, listed)
                endpoint._must_be_asked_model()
                if await endpoint._counting.by_route(Prompt("", "", text="one")) is not None:
                    found.how[Ability.TOKENIZE] = "/tokenize counted"
            except Failure as failure:
                raise at_first(failure, wire.root) from None
            yield endpoint
        finally:
            await wire.close()

    @property
    def abilities(self) -> frozenset[str]:
        """Of `abilities.Ability`."""
        return frozenset(self._found.how)

    @property
    def how(self) -> Mapping[str, str]:
        """How each ability was found."""
        return {
            **{str(name): how for name, how in self._found.how.items()},
            "cold cache": f"{self._found.cold_by}: {self._found.cold_how}",
        }

    @property
    def cold_by(self) -> Cold | None:
        return self._found.cold_by

    @property
    def block_size(self) -> int | None:
        return self._software.block_size

    def identity(self) -> EndpointIdentity:
        """Who answers, as known by now: fingerprints are those seen so far."""
        return EndpointIdentity(
            url=self._wire.root,
            model=self._model,
            vendor=self._software.vendor,
            version=self._software.version,
            fingerprints=tuple(self._found.fingerprints),
            abilities=tuple(sorted(map(str, self._found.how))),
            cold_by=str(self._found.cold_by),
            block_size=self._software.block_size,
        )

    def problems(self) -> tuple[Problem, ...]:
        """All trouble so far. A kind that ends in `(retried)` is of tries after which another was made."""
        return self._wire.problems()

    @property
    def opened(self) -> float:
        """When its time began, by the loop's clock."""
        return self._wire.spending.began

    @property
    def requests(self) -> int:
        """Tries that were sent, those while exploring included."""
        return self._wire.spending.requests

    async def ask(self, ask: Ask) -> Answer:
        """Raises Trouble (a Failure: what this endpoint does not take is of the kind REJECTED), BudgetSpent."""
        found, route = self._found, route_of(ask.prompt)
        if route not in found.dialects:
            raise Failure(Kind.REJECTED, f"the endpoint does not answer {route}")
        if ask.prompt.ids is not None and Ability.PROMPT_IDS not in found.how:
            raise Failure(Kind.REJECTED, "the endpoint does not take a prompt of token ids")
        answer = await self._wire.generate(
            route, self.body(ask), ask.prompt.key, self._estimate(ask.prompt) + ask.max_tokens
        )
        return self._checked(ask, answer)

    def body(self, ask: Ask) -> dict[str, Any]:
        """What is sent for an ask, the next time."""
        found, dialect = self._found, self._found.dialects[route_of(ask.prompt)]
        body = body_of(ask, self._model, dialect, found.cold_by, found.prompt_logprobs, self._salt(ask))
        return body | dict(self._extra)

    async def forget(self) -> bool:
        """Empties the prefix cache through a route. False where there is none, or where it did not do it."""
        return await forget(self._wire, self._software.vendor)

    async def counters(self) -> Counters | None:
        """The server's numbers now; None where it has none, or where they could not be had."""
        return await read_counters(self._wire, self._found.counters_at)

    async def count(self, prompt: Prompt) -> int | None:
        """Tokens of a prompt, its template included: by a route that counts, else by an answer of one token."""
        if prompt.ids is not None:
            return len(prompt.ids)
        if prompt not in self._counted:
            count = await self._counting.by_route(prompt) if Ability.TOKENIZE in self._found.how else None
            if count is None and Ability.USAGE in self._found.how:
                ask = Ask(prompt, max_tokens=1, stream=False, logprobs=False)
                count = (await self.ask(ask)).prompt_tokens
            self._counted[prompt] = count
        return self._counted[prompt]

    def _salt(self, ask: Ask) -> str:
        """Hexadecimal and short: vLLM takes 128 characters, and some not at all."""
        if ask.cache is Cache.WARM:
            return f"{self._run}-{hashlib.sha256(ask.namespace.encode()).hexdigest()[:32]}"
        self._asked += 1
        return f"{self._run}-{self._asked}"

    def _estimate(self, prompt: Prompt) -> int:
        """Tokens that a prompt may have, before anyone counted them."""
        known = self._counted.get(prompt)
        if known is not None or prompt.ids is not None:
            return known if known is not None else len(prompt.ids or ())
        return len(prompt.text or "".join(content for _, content in prompt.messages or ())) // 4 + 16

    def _checked(self, ask: Ask, answer: Answer) -> Answer:
        """The answer, if it is of the model that was asked. Writes down what is new or missing. Raises Failure."""
        found = self._found
        if answer.model is not None and found.named is not None and answer.model != found.named:
            failure = Failure(
                Kind.OTHER_MODEL, f"the answer names the model {answer.model!r}, before it was {found.named!r}"
            )
            self._wire.problem(failure.kind, str(failure))
            raise failure
        if answer.fingerprint is not None and answer.fingerprint not in found.fingerprints:
            found.fingerprints.append(answer.fingerprint)
        if ask.logprobs and answer.logprobs is None and answer.text and Ability.LOGPROBS in found.how:
            self._wire.problem(Kind.NO_LOGPROBS, "an answer came without all log-probabilities, which others have")
        if answer.cached_tokens is None and answer.prompt_tokens is not None and Ability.CACHED_TOKENS in found.how:
            return replace(answer, cached_tokens=0)  # vLLM leaves it out where it is 0
        return answer

    def _must_be_asked_model(self) -> None:
        """A host may name its model by a longer name, but not by that of another one it lists."""
        named = self._found.named
        if named is not None and named in self._others:
            raise Failure(Kind.OTHER_MODEL, f"asked for {self._model!r}, the endpoint answers as {named!r}")


async def _explored(explorer: Explorer, url: str, model: str, listed: frozenset[str]) -> Found:
    """What the endpoint offers. Raises UsageError for a model that it neither lists nor takes; what exploring raises.

    Not in `open`: a traceback shows the arguments of the function that raises, and one of them there is the key.
    """
    try:
        return await explorer.explore()
    except Failure as failure:
        if failure.kind == Kind.REJECTED and listed and model not in listed:
            names = ", ".join(sorted(listed))
            raise UsageError(f"{url} does not take the model {model!r} ({failure}); it lists: {names}") from None
        raise
