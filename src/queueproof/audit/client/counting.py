"""How many tokens a prompt has, by the routes that servers have for it."""

from __future__ import annotations

from typing import Any

from queueproof.audit.ask import Prompt
from queueproof.audit.client.requests import content_of
from queueproof.audit.client.vendor import LLAMA_CPP, QUEUEPROOF, SGLANG, TGI, VLLM, Software
from queueproof.audit.client.wire import Wire


class Counting:
    """Of one endpoint."""

    def __init__(self, wire: Wire, model: str, software: Software) -> None:
        self._wire, self._model, self._vendor = wire, model, software.vendor

    async def by_route(self, prompt: Prompt) -> int | None:
        """Tokens, the template's included. None where no route can count such a prompt."""
        if self._vendor in (VLLM, QUEUEPROOF):
            return await self._count("/tokenize", {"model": self._model, **content_of(prompt)})
        if self._vendor == LLAMA_CPP:
            return await self._llama(prompt)
        if self._vendor == SGLANG and prompt.text is not None:
            return await self._count("/tokenize", {"model": self._model, "prompt": prompt.text})
        if self._vendor == TGI and prompt.text is not None:
            return await self._count("/tokenize", {"inputs": prompt.text})
        return None

    async def _llama(self, prompt: Prompt) -> int | None:
        text = prompt.text
        if text is None:
            templated = await self._json("/apply-template", content_of(prompt))
            text = templated.get("prompt") if isinstance(templated, dict) else None
        if not isinstance(text, str):
            return None
        return await self._count("/tokenize", {"content": text, "add_special": True, "parse_special": True})

    async def _count(self, path: str, body: dict[str, Any]) -> int | None:
        match await self._json(path, body):
            case {"count": int(count)}:
                return count
            case {"tokens": list(tokens)} | list(tokens):
                return len(tokens)
        return None

    async def _json(self, path: str, body: dict[str, Any]) -> Any:
        page = await self._wire.page(path, "POST", body)
        if page is None or not page.is_success:
            return None
        try:
            return page.json()
        except (ValueError, RecursionError):
            return None
