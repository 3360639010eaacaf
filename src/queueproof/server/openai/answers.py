"""The answer to a request in OpenAI's shape, whole or as chunks of a stream. Chat and completions fill in their parts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from json.encoder import encode_basestring as quote
from typing import Any, ClassVar

from queueproof.server.generation import Job
from queueproof.server.jsonio import dump_bytes, dumps
from queueproof.server.openai.common import SamplingFields, usage
from queueproof.server.openai.logprobs import prompt_logprobs
from queueproof.server.protocol import Choice, Output

DONE = b"data: [DONE]\n\n"


class Answers(ABC):
    """One for each request. `index` is that of a choice in the response."""

    whole_object: ClassVar[str]
    chunk_object: ClassVar[str]

    def __init__(self, job: Job, fields: SamplingFields, model: str) -> None:
        self.job, self.fields = job, fields
        self.n = job.record.n
        self._named = {
            "id": job.record.response_id,
            "object": self.chunk_object,
            "created": job.created,
            "model": model,
            "system_fingerprint": job.grant.fingerprint,
        }
        self._head = f"data: {dumps(self._named)[:-1]},"
        self._no_usage = ',"usage":null' if fields.include_usage else ""
        self._sent = [0] * (self.n * len(job.prompts))  # tokens of each choice
        self._open = [False] * len(self._sent)
        self._ended = [False] * len(self._sent)
        self._fast = not self.has_logprobs and not fields.return_token_ids and not fields.usage_in_chunks
        self._around = [self._text_around(index) for index in range(len(self._sent))]

    @property
    @abstractmethod
    def has_logprobs(self) -> bool: ...

    @abstractmethod
    def whole_choice(self, index: int, output: Output, choice: Choice) -> dict[str, Any]:
        """A choice of the whole answer, without what both APIs share."""

    @abstractmethod
    def opening(self, index: int, output: Output) -> dict[str, Any] | None:
        """A choice of a chunk that goes before the first token of a choice, if the API has one."""

    def first_of_choice(self, output: Output) -> dict[str, Any]:
        """What the first chunk of a choice says of it, beside its text."""
        return {}

    def first_of_all(self, output: Output) -> dict[str, Any]:
        """What the first chunk of a stream says, beside its choice: what computes it."""
        return {"determinism": self.job.grant.plain}

    @abstractmethod
    def text_part(self, text: str) -> dict[str, Any]:
        """The part of a chunk's choice that holds text."""

    @abstractmethod
    def text_keys(self) -> tuple[str, str]:
        """JSON before and after the quoted text in a choice of a chunk: `text_part`, ready made."""

    @abstractmethod
    def logprobs_part(self, index: int, choice: Choice, start: int) -> dict[str, Any]:
        """`logprobs` of the tokens of a choice from the `start`-th on."""

    def whole(self) -> dict[str, Any]:
        """After the last output, and the receipts."""
        job = self.job
        choices = []
        for number, output in enumerate(job.last):
            assert output is not None
            for choice in output.outputs:
                index = number * self.n + choice.index
                made = {"index": index} | self.whole_choice(index, output, choice)
                made |= {"finish_reason": choice.finish_reason, "stop_reason": choice.stop_reason}
                if self.fields.return_token_ids:
                    made["token_ids"] = self.shown_ids(choice)
                if self.n * len(job.prompts) > 1:
                    made["receipt"] = job.receipts.get(index)
                choices.append(made)
        return (
            self._named
            | {"object": self.whole_object, "choices": choices, "usage": self.usage()}
            | {"determinism": job.grant.declared(job.receipts.get(0))}
        )

    def chunks(self, number: int, output: Output) -> tuple[list[bytes], list[tuple[int, Choice]]]:
        """What is new in an output of prompt `number`, as events, and the choices that ended with it."""
        events: list[bytes] = []
        ended: list[tuple[int, Choice]] = []
        for choice in output.outputs:
            index = number * self.n + choice.index
            if self._ended[index]:
                continue
            start, count = self._sent[index], len(choice.token_ids)
            if count == start and choice.finish_reason is None:
                continue
            extra: dict[str, Any] | None = None
            if not self._open[index]:
                self._open[index] = True
                extra = self.first_of_all(output) if sum(self._open) == 1 else {}
                opening = self.opening(index, output)
                if opening is not None:
                    events.append(self._chunk(opening | self.first_of_choice(output) | {"finish_reason": None}, extra))
                    extra = None
            self._sent[index] = count
            if self._fast and extra is None:
                if choice.delta_text:
                    before, after = self._around[index]
                    events.append(f"{before}{quote(choice.delta_text)}{after}".encode())
            elif self.shows_answer and count > start:
                more = {} if extra is None else self.first_of_choice(output)
                events.append(self._full_chunk(index, choice, start, more, extra or {}))
            if choice.finish_reason is not None:
                self._ended[index] = True
                ended.append((index, choice))
        return events, ended

    def prompt_part(self, output: Output) -> dict[str, Any]:
        """What was asked to be told of a prompt, in a whole answer."""
        made: dict[str, Any] = {}
        if self.fields.return_token_ids:
            made["prompt_token_ids"] = list(output.prompt_token_ids)
        if output.prompt_logprobs is not None and self.fields.prompt_logprobs is not None:
            made["prompt_logprobs"] = prompt_logprobs(
                self.job.grant.tokens, output.prompt_token_ids, output.prompt_logprobs, self.fields.prompt_logprobs
            )
        return made

    @property
    def shows_answer(self) -> bool:
        """False if only the prompt was asked for."""
        return True

    def last_chunk(self, index: int, choice: Choice, receipt: str | None) -> bytes:
        """The end of a choice."""
        made = {"index": index, **self.text_part(""), "logprobs": None}
        made |= {"finish_reason": choice.finish_reason, "stop_reason": choice.stop_reason}
        return self._chunk(made, {"determinism": self.job.grant.declared(receipt)})

    def usage_chunk(self) -> bytes:
        return (f'{self._head}"choices":[],"usage":{dumps(self.usage())}}}\n\n').encode()

    def usage(self) -> dict[str, Any]:
        job = self.job
        prompt_tokens = sum(len(prompt.ids) for prompt in job.prompts)
        made = job.record.generated_tokens if self.shows_answer else 0
        return usage(prompt_tokens, made, job.record.cached_tokens)

    def shown_ids(self, choice: Choice) -> list[int]:
        return list(choice.token_ids) if self.shows_answer else []

    def _full_chunk(self, index: int, choice: Choice, start: int, more: dict[str, Any], extra: dict[str, Any]) -> bytes:
        made = {"index": index, **self.text_part(choice.delta_text)}
        made["logprobs"] = self.logprobs_part(index, choice, start) if self.has_logprobs else None
        made["finish_reason"] = None
        if self.fields.return_token_ids:
            made["token_ids"] = list(choice.token_ids[start:])
        return self._chunk(made | more, extra)

    def _chunk(self, choice: dict[str, Any], extra: dict[str, Any]) -> bytes:
        made: dict[str, Any] = {"choices": [choice], **extra}
        if self.fields.usage_in_chunks:
            made["usage"] = self.usage()
        elif self.fields.include_usage:
            made["usage"] = None
        return f"{self._head}{dumps(made)[1:]}\n\n".encode("utf-8", "replace")

    def _text_around(self, index: int) -> tuple[str, str]:
        before, after = self.text_keys()
        return (
            f'{self._head}"choices":[{{"index":{index},{before}',
            f'{after},"logprobs":null,"finish_reason":null}}]{self._no_usage}}}\n\n',
        )


def error_event(body: dict[str, Any]) -> bytes:
    """The last event of a stream that failed: no [DONE] follows it."""
    return b"data: " + dump_bytes(body) + b"\n\n"
