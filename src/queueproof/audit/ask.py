"""One request as an audit thinks of it, and the answer to it. How an endpoint is told is the client's business."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is asked. Exactly one of messages (role, content), text and ids is given; the last two are completions.

    key: unique in a run, and the name under which reports show it. kind: chat, code, long, language, near-tie, file...
    """

    key: str
    kind: str
    messages: tuple[tuple[str, str], ...] | None = None
    text: str | None = None
    ids: tuple[int, ...] | None = None


class Cache(StrEnum):
    """What the prefix cache may know of a prompt: nothing (COLD), what earlier asks of one `namespace` left (WARM), or
    whatever the endpoint likes (FREE)."""

    COLD = "cold"
    WARM = "warm"
    FREE = "free"


class Cold(StrEnum):
    """How an endpoint can be made to forget, the best first: a salt for each request, a field that switches the cache
    off, a route that empties it, or only by beginning a prompt in a way never seen before."""

    SALT = "cache_salt"
    FIELD = "cache_prompt"
    RESET = "reset route"
    PREFIX = "unique prefix"


@dataclass(frozen=True, slots=True)
class Ask:
    """A request. Greedy where temperature is 0. namespace: see Cache. prompt_logprobs: of the prompt's own tokens.

    exact_tokens: the answer shall not end before max_tokens, where the endpoint can be told so.
    """

    prompt: Prompt
    max_tokens: int
    temperature: float = 0.0
    seed: int | None = None
    stream: bool = True
    logprobs: bool = True
    cache: Cache = Cache.COLD
    namespace: str = ""
    prompt_logprobs: bool = False
    exact_tokens: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back, whole. Sequences run over the answer's tokens; None where the endpoint does not say.

    ids: token ids. tokens: their texts, as log-probabilities name them. logprobs: of the chosen tokens, None for one that
    has no finite value. margins: best minus second-best log-probability of each step. prompt_ids, prompt_logprobs: of the
    prompt's tokens (of prompt_logprobs, the first is None). arrivals: when each piece of a stream came; started, the same
    clock: when the request was sent. ttft, latency: seconds since `started`.
    """

    prompt: str
    text: str
    finish_reason: str | None
    started: float
    latency: float
    ids: tuple[int, ...] | None = None
    tokens: tuple[str, ...] | None = None
    logprobs: tuple[float | None, ...] | None = None
    margins: tuple[float | None, ...] | None = None
    prompt_ids: tuple[int, ...] | None = None
    prompt_logprobs: tuple[float | None, ...] | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    ttft: float | None = None
    arrivals: tuple[float, ...] = ()
    fingerprint: str | None = None
    model: str | None = None
