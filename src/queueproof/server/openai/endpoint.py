"""The endpoints that answer: from the request's bytes to the last byte of its answer, in the order in which it happens."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any, Generic, Literal, TypeVar

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from queueproof.server.body import read_object
from queueproof.server.classes import HEADER, Grant
from queueproof.server.config import ServerConfig
from queueproof.server.errors import ApiError, api_error, bad_request
from queueproof.server.extension import GenerationRecord
from queueproof.server.generation import Job, Prompt
from queueproof.server.jsonio import JsonResponse
from queueproof.server.limits import Interrupted, Watch, due
from queueproof.server.models import check_model
from queueproof.server.openai.answers import Answers
from queueproof.server.openai.chat import ChatAnswers, ChatFields, encode_chat, read_chat
from queueproof.server.openai.common import SamplingFields, sampling_options
from queueproof.server.openai.completions import (
    CompletionAnswers,
    CompletionFields,
    encode_prompts,
    read_completion,
)
from queueproof.server.openai.stream import EventStream
from queueproof.server.protocol import Output, ServedEngine
from queueproof.server.state import AppState, owner_of, request_id_of, state_of

F = TypeVar("F", ChatFields, CompletionFields)

_log = logging.getLogger("queueproof.server")
_TRACE_HEADERS = ("traceparent", "tracestate")


class GenerationEndpoint(ABC, Generic[F]):
    """An ASGI application, so that what a request holds is given back when the last byte is out, and not before."""

    kind: Literal["chat", "completion"]
    id_prefix: str

    @abstractmethod
    def read(self, body: dict[str, Any], config: ServerConfig) -> F:
        """Raises ApiError 400."""

    @abstractmethod
    def count(self, fields: F) -> int:
        """Prompts of a request."""

    @abstractmethod
    async def encode(self, fields: F, engine: ServedEngine, config: ServerConfig) -> list[tuple[str | None, list[int]]]:
        """Text, where it was given as one, and token ids of each prompt."""

    @abstractmethod
    def answers(self, job: Job, fields: F, model: str) -> Answers: ...

    @abstractmethod
    def logprobs(self, fields: F) -> tuple[int | None, int | None]:
        """`logprobs` and `prompt_logprobs` of the sampling parameters."""

    @abstractmethod
    def default_tokens(self, room: int) -> int:
        """max_tokens of a request that names none, where `room` tokens fit behind its prompt."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        state = state_of(request)
        state.shutdown.refuse_new()
        fields = self.read(await read_object(request), state.config)
        model = check_model(state.config, fields.model)
        grant = state.desk.grant(fields.asked_class, request.headers.get(HEADER))
        sequences = self.count(fields) * fields.n
        if sequences > state.config.max_choices:
            raise bad_request(
                f"{self.count(fields)} prompts with n={fields.n} are {sequences} answers, this server gives "
                f"{state.config.max_choices} to one request",
                "n",
            )
        record = self._record(request, fields, grant)
        with state.admission.sequences(grant.engine, sequences):
            await self._answer(request, state, fields, model, grant, record, send)

    async def _answer(
        self,
        request: Request,
        state: AppState,
        fields: F,
        model: str,
        grant: Grant,
        record: GenerationRecord,
        send: Send,
    ) -> None:
        deadline = state.config.deadline
        stream = EventStream(request.scope, send, _headers(grant)) if fields.stream else None
        begun = False
        try:
            async with Watch(request.receive, state.shutdown, due(state.config, record.arrival)):
                job = await self._job(state, fields, grant, record)
                begun = True
                state.extensions.started(record)
                answers = self.answers(job, fields, model)
                if stream is not None:
                    await _stream(answers, stream)
                    return
                whole = await _whole(answers)
            await JsonResponse(whole, 200, _headers(grant))(request.scope, request.receive, send)
        except asyncio.CancelledError:
            record.outcome = "shutdown"  # the server's last resort, after the grace period
            raise
        except Exception as error:
            failure = _failure(error, deadline)
            if failure.code == "internal":
                _log.exception("request %s failed", record.request_id)
            record.error = request.scope["queueproof"].error = failure.code
            record.outcome = error.reason if isinstance(error, Interrupted) else "error"
            if stream is None or not stream.started:
                raise failure from error
            await stream.fail(failure.body)
        finally:
            record.finished = time.monotonic()
            if begun:
                state.extensions.finished(record)

    async def _job(self, state: AppState, fields: F, grant: Grant, record: GenerationRecord) -> Job:
        engine = grant.engine
        encoded = await self.encode(fields, engine, state.config)
        options = sampling_options(fields, engine, state.config, *self.logprobs(fields))
        made: dict[int, Any] = {}  # by max_tokens: prompts of one request mostly share their parameters
        prompts: list[Prompt] = []
        for text, ids in encoded:
            tokens = self._max_tokens(fields, len(ids), engine)
            if tokens not in made:
                made[tokens] = engine.params(max_tokens=tokens, **options)
            prompts.append(Prompt(text, ids, made[tokens]))
        record.max_tokens = max(made)
        record.prompt_tokens = sum(len(prompt.ids) for prompt in prompts)
        shows_answer = fields.max_tokens != 0
        salt = _salt(fields.cache_salt, record.owner, state.config)
        return Job(state, grant, record, int(time.time()), prompts, salt, keep_receipts=shows_answer)

    def _max_tokens(self, fields: F, length: int, engine: ServedEngine) -> int:
        room = engine.max_model_len - length
        # Where only the prompt is shown, the engine still has to compute a token behind it.
        asked = 1 if fields.asked_tokens == 0 else fields.asked_tokens
        if room < 1 or (asked is not None and asked > room):
            answer = "" if asked is None else f" and max_tokens={asked}"
            raise bad_request(
                f"the prompt has {length} tokens{answer}; this model takes {engine.max_model_len}, prompt and answer "
                "together: shorten the prompt or ask for fewer tokens",
                "messages" if self.kind == "chat" else "prompt",
                "context_length_exceeded",
            )
        return self.default_tokens(room) if asked is None else asked

    def _record(self, request: Request, fields: SamplingFields, grant: Grant) -> GenerationRecord:
        headers: Mapping[str, str] = request.headers
        return GenerationRecord(
            request_id=request_id_of(request),
            response_id=self.id_prefix + secrets.token_hex(16),
            kind=self.kind,
            class_=grant.class_,
            arithmetic=grant.arithmetic,
            owner=owner_of(request),
            stream=fields.stream,
            n=fields.n,
            max_tokens=0,
            arrival=request.scope["queueproof"].arrival,
            headers={name: headers[name] for name in _TRACE_HEADERS if name in headers},
        )


class ChatEndpoint(GenerationEndpoint[ChatFields]):
    kind = "chat"
    id_prefix = "chatcmpl-"

    def read(self, body: dict[str, Any], config: ServerConfig) -> ChatFields:
        return read_chat(body, config)

    def count(self, fields: ChatFields) -> int:
        return 1

    async def encode(
        self, fields: ChatFields, engine: ServedEngine, config: ServerConfig
    ) -> list[tuple[str | None, list[int]]]:
        return [(None, await encode_chat(fields, engine, config))]

    def answers(self, job: Job, fields: ChatFields, model: str) -> Answers:
        return ChatAnswers(job, fields, model)

    def logprobs(self, fields: ChatFields) -> tuple[int | None, int | None]:
        return (fields.top_logprobs or 0) if fields.logprobs else None, fields.prompt_logprobs

    def default_tokens(self, room: int) -> int:
        return room


class CompletionEndpoint(GenerationEndpoint[CompletionFields]):
    kind = "completion"
    id_prefix = "cmpl-"

    def read(self, body: dict[str, Any], config: ServerConfig) -> CompletionFields:
        return read_completion(body, config)

    def count(self, fields: CompletionFields) -> int:
        return len(fields.prompts)

    async def encode(
        self, fields: CompletionFields, engine: ServedEngine, config: ServerConfig
    ) -> list[tuple[str | None, list[int]]]:
        return await encode_prompts(fields, engine, config)

    def answers(self, job: Job, fields: CompletionFields, model: str) -> Answers:
        return CompletionAnswers(job, fields, model)

    def logprobs(self, fields: CompletionFields) -> tuple[int | None, int | None]:
        of_prompt = [
            count for count in (fields.prompt_logprobs, fields.logprobs if fields.echo else None) if count is not None
        ]
        return fields.logprobs, max(of_prompt, default=None)

    def default_tokens(self, room: int) -> int:
        return min(16, room)


async def _whole(answers: Answers) -> dict[str, Any]:
    job = answers.job
    async with aclosing(job.outputs()) as outputs:
        async for _ in outputs:
            pass
    # Together, so that a store can commit them at once.
    await asyncio.gather(
        *(
            job.keep(number * job.record.n + choice.index, output, choice)
            for number, output in enumerate(job.last)
            if output is not None
            for choice in output.outputs
        )
    )
    return answers.whole()


async def _stream(answers: Answers, stream: EventStream) -> None:
    job = answers.job

    async def pass_on(number: int, output: Output) -> None:
        events, ended = answers.chunks(number, output)
        if events:
            await stream.send(events[0] if len(events) == 1 else b"".join(events))
        for index, choice in ended:
            receipt = await job.keep(index, output, choice)
            await stream.send(answers.last_chunk(index, choice, receipt))

    async with aclosing(job.outputs()) as outputs:
        await pass_on(*await stream.first(outputs))
        async for number, output in outputs:
            await pass_on(number, output)
    await stream.end(answers.usage_chunk() if answers.fields.include_usage else b"")


def _salt(given: str | None, owner: str | None, config: ServerConfig) -> str | None:
    """Users with keys of their own have prefix caches of their own: cached_tokens, and the time to the first token, would tell
    one of them what another has asked."""
    return given if len(config.api_keys) < 2 else f"{owner}/{given or ''}"


def _failure(error: Exception, deadline: float | None) -> ApiError:
    return error.api_error(deadline) if isinstance(error, Interrupted) else api_error(error)


def _headers(grant: Grant) -> dict[str, str]:
    return {"Queueproof-Determinism": grant.class_.value, "Queueproof-Arithmetic": grant.arithmetic}
