"""One request on its way through an engine: its prompts, what is known of its answers, and the receipts of those that end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TypeVar

from queueproof.server.classes import Grant
from queueproof.server.config import ServerConfig
from queueproof.server.errors import ApiError, api_error, bad_request
from queueproof.server.extension import FinishedAnswer, GenerationRecord
from queueproof.server.protocol import Choice, Output, Params, ServedEngine
from queueproof.server.state import AppState

T = TypeVar("T")

_LONG_TEXT = 8192  # characters: above it, encoding takes milliseconds, in which every other stream would stand still
_CHARACTERS_PER_TOKEN = 64  # in the mean; languages have 1 to 6, and only spaces and rulers have more
# A few, each of which may take a hundred bytes of memory for a byte of text; and of their own, so that receipts, which are
# written on other threads, do not wait behind them.
_encoders = ThreadPoolExecutor(2, "queueproof-encoder")


@dataclass(frozen=True, slots=True)
class Prompt:
    """text: None for one that was given as token ids. params: with max_tokens resolved."""

    text: str | None
    ids: list[int]
    params: Params


@dataclass(slots=True)
class Job:
    """Answers to all prompts of a request. Choice c of prompt p has the index p * n + c in the response.

    keep_receipts: False for answers that show nothing of what was computed.
    """

    state: AppState
    grant: Grant
    record: GenerationRecord
    created: int
    prompts: Sequence[Prompt]
    cache_salt: str | None
    keep_receipts: bool = True
    last: list[Output | None] = field(default_factory=list)
    """The newest output of each prompt."""
    told: list[float | None] = field(default_factory=list)
    """When the newest tokens of each prompt came."""
    receipts: dict[int, str | None] = field(default_factory=dict)
    """By the index of the choice, of those that have ended."""

    def __post_init__(self) -> None:
        self.last = [None] * len(self.prompts)
        self.told = [None] * len(self.prompts)
        one = len(self.prompts) == 1
        self.record.engine_ids = tuple(
            self.record.response_id if one else f"{self.record.response_id}-{i}" for i in range(len(self.prompts))
        )

    async def outputs(self) -> AsyncGenerator[tuple[int, Output], None]:
        """The index of a prompt and what is new of its answers. A choice that failed raises its error.

        Leaving early aborts everything.
        """
        if len(self.prompts) == 1:
            async with aclosing(self._generate(0)) as generated:
                async for output in generated:
                    self._account(0, output)
                    yield 0, output
            return
        async with aclosing(self._merged()) as merged:
            async for index, output in merged:
                self._account(index, output)
                yield index, output

    async def keep(self, index: int, output: Output, choice: Choice) -> str | None:
        """The receipt of a choice that has ended. index: in the response."""
        self.record.finish_reasons.append(str(choice.finish_reason))
        receipt = None
        if self.keep_receipts and self.state.receipts is not None:
            receipt = await self.state.receipts.keep(
                FinishedAnswer(
                    response_id=self.record.response_id,
                    index=index,
                    created=self.created,
                    owner=self.record.owner,
                    class_=self.grant.class_,
                    engine=self.grant.engine,
                    params=self.prompts[index // self.record.n].params,
                    output=output,
                    choice=choice,
                )
            )
        if receipt is not None:
            self.record.receipts.append(receipt)
        self.receipts[index] = receipt
        return receipt

    def _generate(self, index: int) -> AsyncGenerator[Output, None]:
        prompt = self.prompts[index]
        engine_id = self.record.engine_ids[index]
        return self.grant.engine.generate(prompt.ids, prompt.params, engine_id, self.cache_salt)

    async def _merged(self) -> AsyncGenerator[tuple[int, Output], None]:
        """One reader for each prompt; each hands over one output at a time, so that a slow client slows all of them."""
        ready: asyncio.Queue[tuple[int, Output] | Exception | None] = asyncio.Queue(maxsize=1)

        async def read(index: int) -> None:
            try:
                async with aclosing(self._generate(index)) as generated:
                    async for output in generated:
                        await ready.put((index, output))
            except Exception as error:
                await ready.put(error)
            else:
                await ready.put(None)

        readers = [asyncio.create_task(read(i)) for i in range(len(self.prompts))]
        try:
            running = len(readers)
            while running:
                item = await ready.get()
                if isinstance(item, Exception):
                    raise item
                if item is None:
                    running -= 1
                else:
                    yield item
        finally:
            for reader in readers:
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)

    def _account(self, index: int, output: Output) -> None:
        record, now = self.record, time.monotonic()
        before = self.last[index]
        if before is None:
            record.cached_tokens += output.num_cached_tokens
            scheduled = output.metrics.first_scheduled_time
            if scheduled is not None and (record.scheduled is None or scheduled < record.scheduled):
                record.scheduled = scheduled
        self.last[index] = output
        had = 0 if before is None else _tokens(before)
        new = _tokens(output) - had
        if new:
            record.generated_tokens += new
            if record.first_token is None:
                record.first_token = now
            self.state.extensions.tokens(record, new, self.told[index], now)
            self.told[index] = record.last_token = now
        for choice in output.outputs:
            if choice.error is not None:
                raise api_error(choice.error)
            if choice.finish_reason in ("abort", "error"):
                raise ApiError(503, "aborted", "the engine ended the request before the answer was complete; try again")


def _tokens(output: Output) -> int:
    total = 0
    for choice in output.outputs:
        total += len(choice.token_ids)
    return total


def check_length(length: int, engine: ServedEngine, config: ServerConfig, param: str) -> None:
    """Before it costs anything: no text of so many characters has as few tokens as the model takes. Raises ApiError 400."""
    limit = min(config.max_prompt_text, _CHARACTERS_PER_TOKEN * engine.max_model_len)
    if length > limit:
        raise bad_request(
            f"the prompt has {length} characters, this server takes {limit}; shorten it",
            param,
            "context_length_exceeded",
        )


async def encode(call: Callable[[], T], length: int) -> T:
    """What tokenizes a long text runs on a thread."""
    if length <= _LONG_TEXT:
        return call()
    return await asyncio.get_running_loop().run_in_executor(_encoders, call)
