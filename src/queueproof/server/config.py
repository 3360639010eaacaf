"""Every option and limit of a server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from queueproof.contract.classes import DeterminismClass
from queueproof.contract.errors import InvalidParameter


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerConfig:
    """Raises InvalidParameter for a value out of range. Sizes are in bytes, times in seconds.

    model_names: what requests call the model; the first is the one in answers.
    build: version of the software.
    api_keys: any of them opens every route; none: no key is asked for.
    admin: whether the administrator's routes exist.
    default_class: of requests that name none; None is the strongest on offer.
    receipts: what receipts hold: everything, digests only, or no receipts.
    allowed_origins: web pages that may call from a browser, other than the server's own.
    max_body, max_bodies: of one request's body, and of all requests in hand.
    max_prompt_text: characters of a prompt, before anything is encoded. The model's context sets another limit.
    max_waiting: sequences beyond those the engines run at once; more are refused with 429, to be tried again after retry_after.
    max_choices: answers to one request, over all its prompts.
    max_n: answers to one prompt. max_logprobs: of logprobs, top_logprobs and prompt_logprobs.
    max_stops, max_stop_text: stop strings, and their characters together. max_biases: of logit_bias and stop_token_ids.
    max_schema: characters of a JSON schema.
    deadline: from the arrival of a request to the end of its answer; None sets none.
    body_timeout: for a request's body to arrive.
    grace: for running answers to end when the server shuts down.
    max_connections: open at once.
    """

    model_names: tuple[str, ...]
    build: str
    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = ()
    admin: bool = False
    default_class: DeterminismClass | None = None
    receipts: Literal["full", "hash", "off"] = "full"
    allowed_origins: tuple[str, ...] = ()
    max_body: int = 4 << 20
    max_bodies: int = 128 << 20
    max_prompt_text: int = 4 << 20
    max_waiting: int = 1024
    max_n: int = 128
    max_choices: int = 1024
    max_logprobs: int = 20
    max_stops: int = 32
    max_stop_text: int = 4096
    max_biases: int = 4096
    max_schema: int = 64 << 10
    deadline: float | None = 600.0
    body_timeout: float = 30.0
    retry_after: float = 1.0
    grace: float = 30.0
    keep_alive: float = 5.0
    max_connections: int = 4096

    def __post_init__(self) -> None:
        if not self.model_names or not all(self.model_names):
            raise InvalidParameter("model_names", self.model_names, "at least one name that is not empty")
        if not all(key and key.isascii() and key.isprintable() and " " not in key for key in self.api_keys):
            raise InvalidParameter("api_keys", "...", "printable ASCII without spaces, so that a header can hold it")
        if self.receipts not in ("full", "hash", "off"):
            raise InvalidParameter("receipts", self.receipts, "one of full, hash, off")
        if not 0 <= self.port <= 65535:
            raise InvalidParameter("port", self.port, "from 0 (any that is free) to 65535")
        for name in (
            "max_body",
            "max_bodies",
            "max_prompt_text",
            "max_n",
            "max_choices",
            "max_schema",
            "max_connections",
        ):
            if getattr(self, name) < 1:
                raise InvalidParameter(name, getattr(self, name), "at least 1")
        for name in ("max_waiting", "max_logprobs", "max_stops", "retry_after", "grace", "keep_alive"):
            if getattr(self, name) < 0:
                raise InvalidParameter(name, getattr(self, name), "at least 0")
        if self.deadline is not None and self.deadline <= 0:
            raise InvalidParameter("deadline", self.deadline, "above 0, or None")
        if self.body_timeout <= 0:
            raise InvalidParameter("body_timeout", self.body_timeout, "above 0")
