"""The offline interface, in vLLM's shape: `LLM(model).generate(prompts, SamplingParams(...))`."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Self, cast

from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from queueproof.contract.errors import EngineError, InvalidParameter
from queueproof.engine.config import EngineConfig
from queueproof.engine.engine import Engine
from queueproof.engine.outputs import RequestOutput
from queueproof.engine.prompts import Prompt, is_one_prompt
from queueproof.engine.protocols import LoadedModel
from queueproof.engine.request import Request
from queueproof.engine.sampling_params import SamplingParams
from queueproof.engine.stats import EngineStats

ProgressCallback = Callable[[int, int], None]  # finished, of how many
LoadProgress = Callable[[str, int, int], None]  # what is being done, how far, of how much
_QUIET_SECONDS = 1.0


def open_engine(
    model: str | PathLike[str] | LoadedModel,
    dtype: str = "auto",
    progress: LoadProgress | None = None,
    **options: Any,
) -> Engine:
    """An engine for a model given by name, path, or already loaded; options are those of EngineConfig.

    A loaded model brings its arithmetic. Raises what loading raises, and InvalidParameter.
    """
    if not isinstance(model, str | PathLike):
        if dtype != "auto":
            raise InvalidParameter("dtype", dtype, "the model is loaded already; give dtype where it is loaded")
        backend = model.backend
        options = {"arithmetic": backend.arithmetic, "device": backend.device} | options
        return Engine(model, EngineConfig(**options))
    config = EngineConfig(**options)
    # Not at the top: engines on models that are loaded already need neither.
    from queueproof.kernels.registry import backend as backend_of
    from queueproof.models.loader import load_model

    backend = backend_of(config.arithmetic, config.device)
    try:
        loaded = load_model(model, backend, dtype=dtype, progress=progress, max_len=config.max_model_len)
    except InvalidParameter as error:
        if error.name != "max_len":
            raise
        raise InvalidParameter("max_model_len", error.value, error.allowed) from None  # its name here
    return Engine(loaded, config)


class LLM:
    """A model and an engine. `model`: a name, a path or a loaded model; options are those of EngineConfig.

    Use it as a context manager, or call `close`, to free the KV cache. Calls from several threads take turns.
    """

    def __init__(
        self,
        model: str | PathLike[str] | LoadedModel,
        *,
        dtype: str = "auto",
        progress: LoadProgress | None = None,
        **options: Any,
    ) -> None:
        self.engine = open_engine(model, dtype, progress, **options)
        self._turn = threading.RLock()  # reentrant: a progress callback may ask something, too

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = False,
        progress: ProgressCallback | None = None,
    ) -> list[RequestOutput]:
        """Answers one or several prompts; outputs are in the order of the prompts.

        A prompt is a string, a list of token ids, or {"prompt": ...} or {"prompt_token_ids": ...} with "cache_salt"
        if wanted. sampling_params: one for all or one for each. use_tqdm draws a bar if it takes over a second;
        progress is called with (finished, all). Raises before anything is computed if one request cannot be served.
        """
        several = [cast(Prompt, prompts)] if is_one_prompt(prompts) else list(cast("Sequence[Prompt]", prompts))
        if sampling_params is None or isinstance(sampling_params, SamplingParams):
            params = [sampling_params or SamplingParams()] * len(several)
        else:
            if not isinstance(sampling_params, Sequence) or isinstance(sampling_params, str):
                raise InvalidParameter("sampling_params", sampling_params, "it must be a SamplingParams or a list of them")
            params = list(sampling_params)
            if len(params) != len(several):
                raise InvalidParameter("sampling_params", f"{len(params)} of them", f"give one, or {len(several)}")
        requests = [self.engine.make_request(p, s) for p, s in zip(several, params, strict=True)]
        with self._turn:
            return self._run(requests, use_tqdm, progress)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]] | Sequence[Sequence[Mapping[str, Any]]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = False,
        progress: ProgressCallback | None = None,
        **template_options: Any,
    ) -> list[RequestOutput]:
        """Answers one conversation, or several. Options go to the chat template (add_generation_prompt, ...)."""
        if isinstance(messages, str) or not isinstance(messages, Sequence) or not messages:
            raise InvalidParameter("messages", messages, "it must be a list of {'role': ..., 'content': ...} and must not be empty")
        conversations = [messages] if isinstance(messages[0], Mapping) else messages
        encode = self.engine.model.tokenizer.encode_chat
        prompts: list[Prompt] = [
            {"prompt_token_ids": encode(cast("Sequence[Mapping[str, Any]]", conversation), **template_options)}
            for conversation in conversations
        ]
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm, progress=progress)

    @property
    def stats(self) -> EngineStats:
        """A copy of the counts so far."""
        return dataclasses.replace(self.engine.stats)

    def reset_stats(self) -> None:
        self.engine.reset_stats()

    def reset_prefix_cache(self) -> None:
        with self._turn:
            self.engine.reset_prefix_cache()

    def close(self) -> None:
        """Waits for calls in other threads. Safe to call twice."""
        with self._turn:
            self.engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, requests: list[Request], use_tqdm: bool, progress: ProgressCallback | None) -> list[RequestOutput]:
        engine, bar, done = self.engine, _Bar(len(requests)) if use_tqdm else None, 0
        try:
            for request in requests:
                engine.add(request)
            while engine.has_work:
                ended = sum(request.finished for request in engine.step())
                if ended:  # not at every step: there may be many
                    done = sum(request.finished for request in requests)
                    if progress is not None:
                        progress(done, len(requests))
                if bar is not None:
                    bar.show(done)
        except BaseException:
            engine.abandon()  # an interrupted step leaves no order behind; the next call starts anew
            raise
        finally:
            if bar is not None:
                bar.close()
        if not all(request.finished for request in requests):
            raise EngineError(
                "the requests were dropped before they were finished: the engine was closed or interrupted"
            )
        return [engine.output(request) for request in requests]


class _Bar:
    """A progress bar that appears only for what takes longer than a second."""

    def __init__(self, total: int) -> None:
        self._total, self._start = total, time.monotonic()
        self._bar: Progress | None = None

    def show(self, done: int) -> None:
        if self._bar is None:
            if time.monotonic() - self._start < _QUIET_SECONDS:
                return
            columns = (*Progress.get_default_columns()[:3], MofNCompleteColumn(), TimeElapsedColumn())
            self._bar = Progress(*columns, TextColumn("requests"))
            self._bar.start()
            self._bar.add_task("generate", total=self._total)
        self._bar.update(self._bar.task_ids[0], completed=done)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
