"""Chat templates: Jinja2 in a sandbox, with the helpers that Hugging Face's templates use."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.sandbox

from queueproof.contract.errors import InvalidParameter, ModelError
from queueproof.models.control import ControlTokens, choose_sentinel
from queueproof.models.tokenizer_spec import read_tokenizer_config

# The names that templates put into control tokens (`<|user|>`), so a request cannot bring others.
ROLES: Final = ("system", "developer", "user", "assistant", "tool", "function", "ipython")
OWN_VARIABLES: Final = frozenset({"messages", "bos_token", "eos_token"})
STANDARD_OPTIONS: Final = frozenset({"add_generation_prompt", "tools", "documents"})


@dataclass(frozen=True, slots=True)
class Rendered:
    """A rendered conversation. The sentinel follows what must not begin a control token (control.py)."""

    text: str
    sentinel: str


class _Refused(jinja2.TemplateError):
    """The template called raise_exception."""


class ChatTemplate:
    """One template and the texts of the special tokens it may write (`bos_token`, `eos_token`).

    Raises ModelError if the template is not valid Jinja2.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str], where: str) -> None:
        self.source, self._special_tokens, self._where = source, dict(special_tokens), where
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = environment.from_string(source)
            self._reads = jinja2.meta.find_undeclared_variables(environment.parse(source))
        except jinja2.TemplateSyntaxError as e:
            raise ModelError(f"{where}: the chat template is not valid ({e}); get the model again") from e

    def render(self, messages: Sequence[Mapping[str, Any]], control: ControlTokens, **options: Any) -> Rendered:
        """The conversation as the model expects it.

        messages: [{"role": one of ROLES, "content": text, ...}, ...]. Options: add_generation_prompt (default True),
        tools, documents, and the template's own variables.
        In an assistant's message, tags that are not special tokens (`</think>`) keep their meaning: it is the model's
        own earlier answer, and templates look for them.
        Raises InvalidParameter for messages the template refuses and for options that it does not read.
        """
        _check_messages(messages)
        for name in options:
            if name in OWN_VARIABLES or (name not in STANDARD_OPTIONS and name not in self._reads):
                known = sorted(STANDARD_OPTIONS | (self._reads - OWN_VARIABLES - set(self._special_tokens)))
                raise InvalidParameter(name, options[name], f"this model's chat template takes {', '.join(known)}")
        sentinel = choose_sentinel([list(messages), options, self.source])
        guarded = [_guard_message(m, control, sentinel) for m in messages]
        variables = {"add_generation_prompt": True} | _guard(options, control, sentinel, False)
        try:
            text = self._template.render(messages=guarded, **self._special_tokens, **variables)
        except jinja2.exceptions.SecurityError as e:
            raise ModelError(f"{self._where}: the chat template does what the sandbox forbids ({e})") from e
        except _Refused as e:
            raise InvalidParameter("messages", _roles(messages), f"the model's chat template says: {e}") from e
        except Exception as e:  # a template computes with what it likes: 1 / 0, range(10**9), itself without an end
            raise InvalidParameter(
                "messages", _roles(messages), f"the model's chat template cannot render them ({type(e).__name__}: {e})"
            ) from e
        return Rendered(text, sentinel)


def template_of_folder(folder: Path) -> str | None:
    """The template of a Hugging Face folder: chat_template.jinja, else the one in tokenizer_config.json."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as e:
            raise ModelError(f"{file} cannot be read: {e}; get the model again") from e
    config = read_tokenizer_config(folder)
    value = config.raw("chat_template")
    if isinstance(value, list):  # several, by name
        value = {t.get("name"): t.get("template") for t in value if isinstance(t, dict)}.get("default")
    if value is not None and not isinstance(value, str):
        raise ModelError(f"{config.source}: chat_template is neither text nor a list with one named 'default'")
    return value


def _check_messages(messages: Sequence[Mapping[str, Any]]) -> None:
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence) or not messages:
        raise InvalidParameter("messages", messages, "a list of at least one message is")
    for message in messages:
        if not isinstance(message, Mapping):
            raise InvalidParameter("messages", message, "each message must be an object with role and content")
        if message.get("role") not in ROLES:
            raise InvalidParameter("role", message.get("role"), f"supported are {', '.join(ROLES)}")
        content = message.get("content")
        if content is not None and not isinstance(content, str | list | tuple):
            raise InvalidParameter("content", content, "text, or a list of parts, is")


def _guard_message(message: Mapping[str, Any], control: ControlTokens, sentinel: str) -> dict[str, Any]:
    own = message["role"] == "assistant"
    guarded = {k: _guard(v, control, sentinel, own) for k, v in message.items() if k != "role"}
    return {"role": message["role"]} | guarded


def _guard(value: Any, control: ControlTokens, sentinel: str, keep_tags: bool) -> Any:
    if isinstance(value, str):
        return control.guard(value, sentinel, keep_tags)
    if isinstance(value, Mapping):
        mark = partial(_guard, control=control, sentinel=sentinel, keep_tags=keep_tags)
        return {mark(k): mark(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_guard(v, control, sentinel, keep_tags) for v in value]
    return value


def _roles(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    return [str(m["role"]) for m in messages]


def _to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    """Jinja's own escapes HTML, which no model was trained on."""
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _raise(message: str) -> None:
    raise _Refused(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks the model's part for training; here its content is just rendered."""

    tags = {"generation"}

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body).set_lineno(line)
