"""An engine as a server wants it: prompts in and out of text, answers as streams, and what it is doing.

`EngineService` has the shape of server.protocol.ServedEngine, which it does not import.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from queueproof.contract.errors import InvalidParameter
from queueproof.contract.load import Load
from queueproof.contract.receipt import ReceiptModel
from queueproof.engine.async_engine import AsyncEngine
from queueproof.engine.config import EngineConfig
from queueproof.engine.engine import Engine
from queueproof.engine.guide import library
from queueproof.engine.outputs import RequestOutput
from queueproof.engine.prompts import salt_of_its_own
from queueproof.engine.protocols import LoadedModel
from queueproof.engine.replay import receipt_model
from queueproof.engine.sampling_params import SamplingParams


class EngineService:
    """One model under one arithmetic, computing on a thread of its own until `close`.

    model: how receipts name it, where that is known already: digests read all of the weights. Options are those of
    EngineConfig. Raises what an Engine raises.
    """

    def __init__(self, loaded: LoadedModel, model: ReceiptModel | None = None, **options: Any) -> None:
        backend = loaded.backend
        options = {"arithmetic": backend.arithmetic, "device": backend.device} | options
        self.model = receipt_model(loaded) if model is None else model
        engine = Engine(loaded, EngineConfig(**options))
        self._tokenizer, self._loaded, self._limits = loaded.tokenizer, loaded, engine.limits
        self.max_model_len = engine.capacity
        self.arithmetic, self.determinism_class = engine.arithmetic, engine.determinism_class
        self.device, self.family = backend.device, backend.family
        self._engine = AsyncEngine(engine)

    @property
    def vocab_size(self) -> int:
        return self._loaded.config.vocab_size

    @property
    def max_num_seqs(self) -> int:
        return self._limits.max_seqs

    @property
    def guide_library(self) -> str | None:
        """Name and version of what makes answers follow a JSON schema; None where it is not installed."""
        return library()

    @property
    def running(self) -> bool:
        return self._engine.running

    def params(self, **options: Any) -> SamplingParams:
        """Raises InvalidParameter."""
        return SamplingParams(**options)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return self._tokenizer.encode(text, None if add_special_tokens else False)

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> list[int]:
        """Raises UsageError without a chat template, InvalidParameter for what the template does not take."""
        return self._tokenizer.encode_chat(messages, **options)

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = False) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        return self._tokenizer.token_bytes(token_id)

    async def generate(
        self,
        prompt_token_ids: Sequence[int],
        params: object,
        request_id: str,
        cache_salt: str | None = None,
        alone: bool = False,
    ) -> AsyncGenerator[RequestOutput, None]:
        """See AsyncEngine.generate. params: as `params` made them. alone: nothing that was computed before is used."""
        if not isinstance(params, SamplingParams):
            raise InvalidParameter("params", params, "what `params` of this engine gave")
        if alone:
            cache_salt = salt_of_its_own()
        prompt = {"prompt_token_ids": prompt_token_ids}
        async with aclosing(self._engine.generate(prompt, params, request_id, cache_salt)) as outputs:
            async for output in outputs:
                yield output

    def prepare_guides(self) -> None:
        """Reads the vocabulary for guides, so that the first request with one does not wait for it. Nothing without the
        library."""
        if library() is not None:
            self._engine.engine.guides.prepare()

    def load(self) -> Load:
        return self._engine.load()

    def reset_prefix_cache(self) -> None:
        """Raises EngineError if the engine has ended."""
        self._engine.reset_prefix_cache()

    async def aclose(self) -> None:
        """`close`, without holding up the event loop."""
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """Requests that wait get EngineError. Safe to call twice."""
        self._engine.close()
