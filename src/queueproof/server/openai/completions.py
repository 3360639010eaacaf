"""/v1/completions: the fields of a request and the shape of its answer."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Annotated, Any

from pydantic import Field

from queueproof.server.config import ServerConfig
from queueproof.server.errors import bad_request
from queueproof.server.generation import Job, check_length, encode
from queueproof.server.openai.answers import Answers
from queueproof.server.openai.common import SamplingFields, check_common, check_logprobs
from queueproof.server.openai.fields import NEUTRAL, Few, Integer, read_fields
from queueproof.server.openai.logprobs import CompletionLogprobs
from queueproof.server.protocol import Choice, Output, ServedEngine

TokenIds = Annotated[Few[Integer], Field(min_length=1)]


class CompletionFields(SamplingFields):
    """prompt: a text or token ids, or a list of either. max_tokens: 0 with echo shows the prompt only."""

    prompt: str | TokenIds | Annotated[Few[str], Field(min_length=1)] | Annotated[Few[TokenIds], Field(min_length=1)]
    echo: bool = False
    logprobs: Integer | None = None
    add_special_tokens: bool = True

    @property
    def asked_tokens(self) -> int | None:
        return self.max_tokens

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        given: Any = self.prompt
        return given if isinstance(given, list) and isinstance(given[0], str | list) else [given]


def read_completion(body: dict[str, Any], config: ServerConfig) -> CompletionFields:
    """Raises ApiError 400."""
    fields = read_fields(CompletionFields, body, NEUTRAL["completion"], harmless=True)
    check_common(fields, config)
    check_logprobs("logprobs", fields.logprobs, config)
    if fields.max_tokens == 0 and not fields.echo:
        raise bad_request("max_tokens=0 needs echo=true, which shows the prompt; give at least 1", "max_tokens")
    return fields


async def encode_prompts(
    fields: CompletionFields, engine: ServedEngine, config: ServerConfig
) -> list[tuple[str | None, list[int]]]:
    """The text of each prompt where it was given as text, and its ids. Raises ApiError 400, InvalidParameter."""
    found: list[tuple[str | None, list[int]]] = []
    for prompt in fields.prompts:
        if isinstance(prompt, str):
            check_length(len(prompt), engine, config, "prompt")
            call = partial(engine.encode, prompt, add_special_tokens=fields.add_special_tokens)
            found.append((prompt, await encode(call, len(prompt))))
        else:
            if not 0 <= min(prompt) <= max(prompt) < engine.vocab_size:
                raise bad_request(f"prompt has a token id that is not from 0 to {engine.vocab_size - 1}", "prompt")
            found.append((None, prompt))
        if not found[-1][1]:
            raise bad_request("the prompt is empty; give at least one token", "prompt")
        if len(found) % 16 == 0:
            await asyncio.sleep(0)  # hundreds of prompts shall not hold up every stream
    return found


class CompletionAnswers(Answers):
    whole_object = "text_completion"
    chunk_object = "text_completion"
    fields: CompletionFields

    def __init__(self, job: Job, fields: CompletionFields, model: str) -> None:
        super().__init__(job, fields, model)
        self._logprobs: dict[int, CompletionLogprobs] = {}

    @property
    def has_logprobs(self) -> bool:
        return self.fields.logprobs is not None

    @property
    def shows_answer(self) -> bool:
        return self.fields.max_tokens != 0

    def whole_choice(self, index: int, output: Output, choice: Choice) -> dict[str, Any]:
        text = choice.text if self.shows_answer else ""
        made: dict[str, Any] = {"text": self._prompt_text(index) + text if self.fields.echo else text}
        made["logprobs"] = None
        if self.has_logprobs:
            parts = [self._prompt_logprobs_part(index, output)] if self.fields.echo else []
            parts += [self.logprobs_part(index, choice, 0)] if self.shows_answer else []
            made["logprobs"] = {key: [x for part in parts for x in part[key]] for key in parts[0]}
        return made | self.prompt_part(output)

    def opening(self, index: int, output: Output) -> dict[str, Any] | None:
        if not self.fields.echo:
            return None
        logprobs = self._prompt_logprobs_part(index, output) if self.has_logprobs else None
        return {"index": index, "text": self._prompt_text(index), "logprobs": logprobs}

    def first_of_choice(self, output: Output) -> dict[str, Any]:
        return {"prompt_token_ids": list(output.prompt_token_ids)} if self.fields.return_token_ids else {}

    def text_part(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def text_keys(self) -> tuple[str, str]:
        return '"text":', ""

    def logprobs_part(self, index: int, choice: Choice, start: int) -> dict[str, Any]:
        assert choice.logprobs is not None
        return self._builder(index).part(
            choice.token_ids[start:], choice.logprobs[start:], choice.text, starts_text=start == 0
        )

    def _prompt_logprobs_part(self, index: int, output: Output) -> dict[str, Any]:
        assert output.prompt_logprobs is not None
        return self._builder(index).part(
            output.prompt_token_ids, output.prompt_logprobs, self._prompt_text(index), starts_text=True
        )

    def _builder(self, index: int) -> CompletionLogprobs:
        if index not in self._logprobs:
            self._logprobs[index] = CompletionLogprobs(
                self.job.grant.tokens,
                self.fields.logprobs or 0,
                self.fields.return_tokens_as_token_ids,
                self.fields.skip_special_tokens,
            )
        return self._logprobs[index]

    def _prompt_text(self, index: int) -> str:
        prompt = self.job.prompts[index // self.n]
        if prompt.text is not None:
            return prompt.text
        return self.job.grant.engine.decode(prompt.ids, self.fields.skip_special_tokens)
