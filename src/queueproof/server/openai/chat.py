"""/v1/chat/completions: the fields of a request and the shape of its answer."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field

from queueproof.server.config import ServerConfig
from queueproof.server.errors import bad_request, brief
from queueproof.server.generation import check_length, encode
from queueproof.server.openai.answers import Answers
from queueproof.server.openai.common import SamplingFields, check_common, check_logprobs
from queueproof.server.openai.fields import NEUTRAL, Few, Integer, Strict, read_fields
from queueproof.server.openai.logprobs import chat_content
from queueproof.server.protocol import Choice, Output, ServedEngine

MAX_MESSAGES = 4096
NO_OPTIONS = frozenset({"self", "messages", "control", "add_generation_prompt", "tools", "documents"})
"""Names that a chat template's options cannot have: they have fields of their own, or are names of the renderer's."""


class TextPart(Strict):
    type: Literal["text"]
    text: str


class Message(Strict):
    """A message as clients send it. What they copy from answers (refusal, tool_calls, ...) may be there as null."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[Few[TextPart], Field(min_length=1)]
    name: Annotated[str, Field(max_length=64)] | None = None
    refusal: None = None
    annotations: Annotated[Few[None], Field(max_length=0)] | None = None
    audio: None = None
    function_call: None = None
    tool_calls: Annotated[Few[None], Field(max_length=0)] | None = None

    @property
    def plain(self) -> dict[str, str]:
        """For the chat template: the parts of a text are joined by newlines, as other servers join them."""
        parts = self.content
        text = parts if isinstance(parts, str) else "\n".join(part.text for part in parts)
        return {"role": self.role, "content": text} | ({} if self.name is None else {"name": self.name})


class TemplateFields(Strict):
    """What decides the prompt of a conversation."""

    messages: Annotated[Few[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] | None = None


class ChatFields(SamplingFields, TemplateFields):
    logprobs: bool = False
    top_logprobs: Integer | None = None
    max_completion_tokens: Integer | None = None

    @property
    def asked_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


def read_chat(body: dict[str, Any], config: ServerConfig) -> ChatFields:
    """Raises ApiError 400."""
    fields = read_fields(ChatFields, body, NEUTRAL["chat"], harmless=True)
    check_common(fields, config)
    check_logprobs("top_logprobs", fields.top_logprobs, config)
    if fields.top_logprobs is not None and not fields.logprobs:
        raise bad_request("top_logprobs needs logprobs=true", "top_logprobs")
    if fields.max_tokens is not None and fields.max_completion_tokens not in (None, fields.max_tokens):
        raise bad_request(
            f"max_tokens={fields.max_tokens} and max_completion_tokens={fields.max_completion_tokens} disagree; give one",
            "max_completion_tokens",
        )
    return fields


async def encode_chat(fields: TemplateFields, engine: ServedEngine, config: ServerConfig) -> list[int]:
    """The prompt. Raises ApiError 400, UsageError without a template, InvalidParameter for what it does not take."""
    options = dict(fields.chat_template_kwargs or {})
    for name in options:
        if name in NO_OPTIONS or not name.isidentifier():
            raise bad_request(
                f"chat_template_kwargs has {brief(name)}, which is not an option of a template", name[:64]
            )
    messages = [message.plain for message in fields.messages]
    length = sum(len(message["content"]) for message in messages)
    check_length(length, engine, config, "messages")
    call = partial(engine.encode_chat, messages, add_generation_prompt=fields.add_generation_prompt, **options)
    return await encode(call, length)


class ChatAnswers(Answers):
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"
    fields: ChatFields

    @property
    def has_logprobs(self) -> bool:
        return self.fields.logprobs

    def whole(self) -> dict[str, Any]:
        output = self.job.last[0]
        assert output is not None
        return super().whole() | self.prompt_part(output)

    def whole_choice(self, index: int, output: Output, choice: Choice) -> dict[str, Any]:
        return {
            "message": {"role": "assistant", "content": choice.text, "refusal": None},
            "logprobs": self.logprobs_part(index, choice, 0) if self.has_logprobs else None,
        }

    def opening(self, index: int, output: Output) -> dict[str, Any]:
        return {"index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": None}

    def text_part(self, text: str) -> dict[str, Any]:
        return {"delta": {"content": text} if text else {}}

    def text_keys(self) -> tuple[str, str]:
        return '"delta":{"content":', "}"

    def logprobs_part(self, index: int, choice: Choice, start: int) -> dict[str, Any]:
        assert choice.logprobs is not None
        ids, positions = choice.token_ids[start:], choice.logprobs[start:]
        count, as_ids = self.fields.top_logprobs or 0, self.fields.return_tokens_as_token_ids
        return {"content": chat_content(self.job.grant.tokens, ids, positions, count, as_ids), "refusal": None}

    def first_of_all(self, output: Output) -> dict[str, Any]:
        ids = {"prompt_token_ids": list(output.prompt_token_ids)} if self.fields.return_token_ids else {}
        return super().first_of_all(output) | ids
