"""Does it matter whether a position is computed while decoding, or in the prefill of a prompt that holds the answer?"""

from __future__ import annotations

from dataclasses import replace

from queueproof.audit import names
from queueproof.audit.ask import Answer, Ask, Prompt
from queueproof.audit.book import Book
from queueproof.audit.client.abilities import Ability
from queueproof.audit.lab import Lab
from queueproof.audit.probes.shaping import if_taken, some
from queueproof.contract.axes import Axis

_OFFER = (
    "vLLM and Queueproof offer it on /v1/completions (prompt as token ids, `prompt_logprobs`), and tell the ids by "
    "`return_token_ids`"
)


class PhaseProbe:
    """The greedy answer, token by token, against the same tokens as the end of a prompt, of which the log-probabilities
    are asked. Only these are compared: the tokens are given.
    """

    name = names.PHASE
    question = "Does it matter whether a token's log-probability is computed in decode or in prefill?"
    axis: Axis | None = Axis.PHASE
    needs_witness = True
    alone = 0.5
    together = 0.0

    async def run(self, lab: Lab, book: Book) -> None:
        if Ability.PROMPT_LOGPROBS not in lab.endpoint.abilities:
            book.impossible(f"the endpoint does not give the log-probabilities of a prompt's own tokens; {_OFFER}")
            return
        positions = compared = 0
        why: str | None = None
        try:
            for prompt in some(lab.prompts, 0.5):
                decoded = await lab.reference(lab.greedy(prompt), book)
                if decoded is None:
                    continue
                count, missing = _positions(decoded), _missing(decoded)
                if missing is not None:
                    why = missing
                    continue
                given = await if_taken(lab, _given(lab, prompt, decoded, count), "teacher-forced", book)
                if isinstance(given, str):
                    why = f"the endpoint rejects a prompt of token ids with prompt_logprobs ({given}); {_OFFER}"
                if given is None or isinstance(given, str):
                    continue
                forced = _forced(decoded, given, count)
                if isinstance(forced, str):
                    why = forced
                    continue
                book.compare(_first(decoded, count), forced, "decode against prefill", "decode", "prefill")
                positions, compared = positions + count, compared + 1
        finally:
            if compared:
                claim = f"the log-probabilities of {positions} tokens came from a prefill too, of {compared} answers"
                book.witness(claim, "prompt_logprobs", positions, 1)
        if why is not None and compared:
            book.note(f"some answers were left out: {why}")
        elif why is not None:
            book.impossible(why)


def _positions(decoded: Answer) -> int:
    """Tokens of the answer that have both an id and a log-probability."""
    return min(len(decoded.ids or ()), len(decoded.logprobs or ()))


def _missing(decoded: Answer) -> str | None:
    """Why an answer's tokens cannot be asked again in a prompt."""
    if decoded.logprobs is None:
        return "the endpoint gives no log-probabilities of an answer's tokens, so there is nothing to compare"
    if decoded.ids is None or decoded.prompt_ids is None:
        whose = "the answer" if decoded.ids is None else "the prompt"
        return (
            f"the endpoint does not tell the token ids of {whose}, and text that is tokenized again need not line up; "
            f"{_OFFER}"
        )
    return None if _positions(decoded) else "the answers are empty"


def _given(lab: Lab, prompt: Prompt, decoded: Answer, count: int) -> Ask:
    ids = (decoded.prompt_ids or ()) + (decoded.ids or ())[:count]
    made = Prompt(f"{prompt.key}+answer", prompt.kind, ids=ids)
    return Ask(made, max_tokens=1, stream=False, cache=lab.cold, prompt_logprobs=True)


def _forced(decoded: Answer, given: Answer, count: int) -> Answer | str:
    """The answer with the log-probabilities that the prefill gave. A sentence where they do not line up."""
    start = len(decoded.prompt_ids or ())
    sent = (decoded.prompt_ids or ()) + (decoded.ids or ())[:count]
    if given.prompt_logprobs is None:
        return f"an answer came without the log-probabilities of its prompt; {_OFFER}"
    if len(given.prompt_logprobs) != len(sent) or (given.prompt_ids is not None and given.prompt_ids != sent):
        return (
            f"the prompt of {len(sent)} token ids was read as other tokens ({len(given.prompt_logprobs)} log-probabilities): "
            "its positions do not line up with the answer's"
        )
    return replace(_first(decoded, count), logprobs=given.prompt_logprobs[start:])


def _first(decoded: Answer, count: int) -> Answer:
    """The answer's first `count` tokens; an end without a text of its own, or a log-probability, is left out."""
    if decoded.ids is None or decoded.logprobs is None:
        return decoded
    return replace(decoded, ids=decoded.ids[:count], logprobs=decoded.logprobs[:count])
