"""Whole audits of an endpoint of the zoo: its transport, the client, the runner and all probes, on a virtual clock."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from queueproof.audit.ask import Prompt
from queueproof.audit.budget import Budget
from queueproof.audit.client.http import HttpEndpoint
from queueproof.audit.lab import Settings
from queueproof.audit.plan import Plan, choose, levels
from queueproof.audit.probes import all_probes
from queueproof.audit.records import AuditRecord
from queueproof.audit.run import run_audit
from tests.support.virtual_time import run
from tests.support.zoo.endpoint import Offer, Zoo
from tests.support.zoo.engine import Pace
from tests.support.zoo.faults import CLEAN, Faults
from tests.support.zoo.model import WORDS

NO_LIMIT = Budget(seconds=None)


class Small(NamedTuple):
    """A small plan: prompts of so many words at least, and what is asked of them. names: of probes; None is all."""

    prompts: int = 8
    words: int = 20
    max_tokens: int = 16
    users: int = 8
    names: Sequence[str] | None = None


def prompts(count: int, words: int, seed: int) -> list[Prompt]:
    rng = random.Random(f"prompts {seed}")
    return [
        Prompt(f"p{i}", "chat", (("user", "".join(rng.choices(WORDS, k=words + rng.randrange(12))).strip()),))
        for i in range(count)
    ]


def audit(
    faults: Faults = CLEAN,
    offer: Offer | None = None,
    pace: Pace | None = None,
    plan: Small = Small(),  # noqa: B008 (immutable)
    seed: int = 0,
) -> AuditRecord:
    """The record of a run. seed: of the endpoint, the prompts and the run."""

    async def main() -> AuditRecord:
        zoo = Zoo(faults, offer, pace, seed)
        settings = Settings(plan.max_tokens, plan.users, levels(plan.users), seed)
        async with HttpEndpoint.open("http://zoo", transport=zoo, budget=NO_LIMIT) as endpoint:
            record = await run_audit(
                endpoint,
                prompts(plan.prompts, plan.words, seed),
                Plan(choose(all_probes(), plan.names), settings, NO_LIMIT),
            )
        await zoo.aclose()
        return record

    return run(main())
