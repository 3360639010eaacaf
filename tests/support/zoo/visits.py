"""Some probes at an endpoint of the zoo, through the audit's own client on a virtual clock."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from queueproof.audit.ask import Prompt
from queueproof.audit.book import Book
from queueproof.audit.client.http import HttpEndpoint
from queueproof.audit.lab import Lab, Settings
from queueproof.audit.plan import levels
from queueproof.audit.probes.base import Probe
from queueproof.audit.records import ProbeResult
from tests.support.virtual_time import run
from tests.support.zoo.endpoint import Zoo
from tests.support.zoo.model import WORDS

URL = "http://zoo"


@cache
def chat(count: int = 24, first: int = 6, last: int = 40) -> tuple[Prompt, ...]:
    """That many prompts of a chat, of `first` to `last` words."""
    made = []
    for i in range(count):
        length = first + (last - first) * i // max(1, count - 1)
        text = " ".join(WORDS[(i * 997 + j * 61) % len(WORDS)][1:] for j in range(length))
        made.append(Prompt(f"p{i}", "chat", (("user", text),)))
    return tuple(made)


def settings(seed: int = 0, users: int = 24, max_tokens: int = 32) -> Settings:
    return Settings(max_tokens=max_tokens, users=users, levels=levels(users), seed=seed)


def probed(
    zoo: Zoo,
    *probes: Probe,
    prompts: Sequence[Prompt] | None = None,
    seed: int = 0,
    users: int = 24,
    rounds: int = 1,
) -> list[ProbeResult]:
    """What these probes find, one after another in one lab, as in a run."""

    async def visit() -> list[ProbeResult]:
        async with HttpEndpoint.open(URL, transport=zoo) as endpoint:
            lab = Lab(endpoint, prompts or chat(), settings(seed, users))
            results = []
            for probe in probes:
                book = Book(probe.name, probe.question, probe.axis, probe.needs_witness)
                for _ in range(rounds):
                    await probe.run(lab, book)
                results.append(book.close(1.0, lab.requests, lab.tokens, False))
            return results

    return run(visit())
