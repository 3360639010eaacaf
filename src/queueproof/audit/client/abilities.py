"""What an endpoint can do beyond plain answers, by name. Each is found by trying, never believed (see `discover`)."""

from __future__ import annotations

from enum import StrEnum


class Ability(StrEnum):
    """CHAT, COMPLETIONS: the routes. PROMPT_IDS: completions of token ids. STREAM: an answer comes in pieces.

    LOGPROBS: of the chosen tokens; TOP_LOGPROBS: of the second-best too, so that there are margins. TOKEN_IDS: of the
    answer. USAGE: counts of tokens, in a stream too. CACHED_TOKENS: how much of a prompt came from the cache.
    PROMPT_LOGPROBS: of the prompt's tokens. IGNORE_EOS: an answer can be made to go on to max_tokens. COUNTERS: numbers
    about the server at any time (see `counters`). TOKENIZE: a route that counts tokens.
    """

    CHAT = "chat"
    COMPLETIONS = "completions"
    PROMPT_IDS = "prompt ids"
    STREAM = "stream"
    LOGPROBS = "logprobs"
    TOP_LOGPROBS = "top logprobs"
    TOKEN_IDS = "token ids"
    USAGE = "usage"
    CACHED_TOKENS = "cached tokens"
    PROMPT_LOGPROBS = "prompt logprobs"
    IGNORE_EOS = "ignore eos"
    COUNTERS = "counters"
    TOKENIZE = "tokenize"
