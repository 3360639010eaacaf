"""All that the server knows of an engine. `engine/service.py` has this shape; tests bring a small fake."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol, SupportsIndex

from queueproof.contract.load import Load as Load
from queueproof.contract.load import Member as Member
from queueproof.contract.receipt import ReceiptModel

FinishReason = Literal["stop", "length", "abort", "error"]


class Logprob(Protocol):
    """logprob: of the model itself, an exact f32 value. rank: 1 is the most likely token."""

    @property
    def logprob(self) -> float: ...
    @property
    def rank(self) -> int: ...


class Choice(Protocol):
    """One answer, so far or finished; see engine.outputs.CompletionOutput."""

    @property
    def index(self) -> int: ...
    @property
    def text(self) -> str: ...
    @property
    def delta_text(self) -> str:
        """What `text` gained since the last output that was read."""
        ...

    @property
    def token_ids(self) -> Sequence[int]: ...
    @property
    def logprobs(self) -> Sequence[Mapping[int, Logprob]] | None: ...
    @property
    def logprob_bits(self) -> Iterable[SupportsIndex]:
        """f32 bits as u32, one for each token."""
        ...

    @property
    def lse_bits(self) -> Iterable[SupportsIndex]: ...
    @property
    def seed(self) -> int: ...
    @property
    def finish_reason(self) -> FinishReason | None: ...
    @property
    def stop_reason(self) -> int | str | None: ...
    @property
    def error(self) -> Exception | None: ...


class Timing(Protocol):
    """Seconds on the clock of time.monotonic."""

    @property
    def first_scheduled_time(self) -> float | None:
        """When the request first joined a batch."""
        ...


class Output(Protocol):
    """All answers to one prompt."""

    @property
    def request_id(self) -> str: ...
    @property
    def prompt_token_ids(self) -> Sequence[int]: ...
    @property
    def prompt_logprobs(self) -> Sequence[Mapping[int, Logprob] | None] | None: ...
    @property
    def outputs(self) -> Sequence[Choice]: ...
    @property
    def finished(self) -> bool: ...
    @property
    def num_cached_tokens(self) -> int: ...
    @property
    def metrics(self) -> Timing: ...
    @property
    def arithmetic(self) -> str: ...
    @property
    def determinism_class(self) -> str: ...


class Params(Protocol):
    """Checked sampling parameters, with the names of vLLM's SamplingParams."""

    @property
    def n(self) -> int: ...
    @property
    def temperature(self) -> float: ...
    @property
    def top_k(self) -> int: ...
    @property
    def top_p(self) -> float: ...
    @property
    def min_p(self) -> float: ...
    @property
    def repetition_penalty(self) -> float: ...
    @property
    def presence_penalty(self) -> float: ...
    @property
    def frequency_penalty(self) -> float: ...
    @property
    def logit_bias(self) -> Mapping[int, float] | None: ...
    @property
    def stops(self) -> tuple[str, ...]: ...
    @property
    def stop_ids(self) -> frozenset[int]: ...
    @property
    def ignore_eos(self) -> bool: ...
    @property
    def include_stop_str_in_output(self) -> bool: ...
    @property
    def skip_special_tokens(self) -> bool: ...
    @property
    def max_tokens(self) -> int | None: ...
    @property
    def min_tokens(self) -> int: ...
    @property
    def guide(self) -> str | None: ...


class ServedEngine(Protocol):
    """One model under one arithmetic. Methods may be called from the server's event loop only; encode, encode_chat and
    decode from any thread, since they take long for long texts."""

    @property
    def arithmetic(self) -> str: ...
    @property
    def determinism_class(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def family(self) -> str:
        """Machines on which its arithmetic gives the same bits; "any": they all do."""
        ...

    @property
    def guide_library(self) -> str | None:
        """Name and version of what makes answers follow a JSON schema; None where it is not installed."""
        ...

    @property
    def model(self) -> ReceiptModel:
        """Its name, and the digests of weights and tokenizer."""
        ...

    @property
    def vocab_size(self) -> int: ...
    @property
    def max_model_len(self) -> int:
        """Tokens that one request may have, prompt and answer together."""
        ...

    @property
    def max_num_seqs(self) -> int: ...
    @property
    def running(self) -> bool:
        """False once its step loop has ended, for whatever reason."""
        ...

    def params(self, **options: Any) -> Params:
        """SamplingParams(**options), and `guide`: the text of a JSON schema that the answer must follow, "json" for any
        JSON object. Raises UsageError."""
        ...

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...
    def encode_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> list[int]:
        """Raises UsageError without a chat template, InvalidParameter for what the template does not take."""
        ...

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = False) -> str: ...
    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for; those of a special token are its text."""
        ...

    def generate(
        self,
        prompt_token_ids: Sequence[int],
        params: Params,
        request_id: str,
        cache_salt: str | None = None,
        alone: bool = False,
    ) -> AsyncGenerator[Output, None]:
        """Outputs as the answers grow, the last one finished. A reader that is slow finds several steps in one output.

        Leaving the generator early aborts the request and frees its blocks. Raises InvalidParameter or RequestTooLong
        before anything is computed, EngineError if the engine ends. alone: with its own empty cache namespace, so that
        nothing computed before is used (for replays).
        """
        ...

    def load(self) -> Load: ...
    def reset_prefix_cache(self) -> None: ...
