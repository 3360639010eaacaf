"""The probes through the HTTP client, on endpoints of the zoo that offer much and little."""

from __future__ import annotations

from dataclasses import replace

import pytest

from queueproof.audit.ask import Prompt
from queueproof.audit.book import Book
from queueproof.audit.client.http import HttpEndpoint
from queueproof.audit.lab import Lab, Settings
from queueproof.audit.probes.cache import CacheProbe
from queueproof.audit.probes.drift import DriftProbe
from queueproof.audit.probes.logprobs import LogprobsProbe
from queueproof.audit.probes.phase import PhaseProbe
from queueproof.audit.probes.seeds import SeedsProbe
from queueproof.audit.probes.stream import StreamProbe
from queueproof.audit.records import ProbeResult, Verdict
from tests.support.virtual_time import run
from tests.support.zoo import Faults, Offer, Zoo

FULL = Offer()
HOSTED = Offer(
    metrics=False,
    ids=False,
    prompt_logprobs=False,
    echo=False,
    salt=False,
    reset=False,
    tokenize=False,
    id_prompts=False,
)
TEXT_ONLY = replace(HOSTED, cached_tokens=False, logprobs=False, strict=True, caching=False)
IN_ONE_PIECE = Offer(whole=True, metrics=False)
HOLDS, NOT_RUN, UNKNOWN = Verdict.HOLDS, Verdict.NOT_RUN, Verdict.INCONCLUSIVE


def found(zoo: Zoo) -> dict[str, ProbeResult]:
    async def all_of_them() -> dict[str, ProbeResult]:
        results = {}
        async with HttpEndpoint.open("http://zoo", transport=zoo) as endpoint:
            lab = Lab(endpoint, PROMPTS, Settings(max_tokens=12, users=6))
            for probe in (CacheProbe(), PhaseProbe(), SeedsProbe(), StreamProbe(), LogprobsProbe(), DriftProbe()):
                book = Book(probe.name, probe.question, probe.axis, probe.needs_witness)
                await probe.run(lab, book)
                results[probe.name] = book.close(0.0, 0, 0, False)
            assert endpoint.problems() == ()
        return results

    return run(all_of_them())


PROMPTS = [
    Prompt(
        f"p{i}",
        "chat",
        (("system", "Be short."),) * (i == 2) + (("user", f"Say {i} of these words, and why they are here."),),
    )
    for i in range(6)
]


@pytest.mark.parametrize(
    ("offer", "verdicts"),
    [
        (FULL, (HOLDS, HOLDS, HOLDS, HOLDS, HOLDS, HOLDS)),
        (replace(FULL, cached_tokens=False), (HOLDS, HOLDS, HOLDS, HOLDS, HOLDS, HOLDS)),
        (replace(FULL, prompt_logprobs=False), (HOLDS, HOLDS, HOLDS, HOLDS, HOLDS, HOLDS)),
        (replace(FULL, caching=False), (UNKNOWN, HOLDS, HOLDS, HOLDS, HOLDS, HOLDS)),
        (HOSTED, (HOLDS, NOT_RUN, HOLDS, HOLDS, HOLDS, HOLDS)),
        (TEXT_ONLY, (UNKNOWN, NOT_RUN, HOLDS, HOLDS, NOT_RUN, HOLDS)),
        (IN_ONE_PIECE, (HOLDS, HOLDS, UNKNOWN, UNKNOWN, HOLDS, HOLDS)),
    ],
    ids=["full", "hits by metrics", "echo", "no cache", "hosted", "text only", "one piece"],
)
def test_an_endpoint_without_a_fault(offer: Offer, verdicts: tuple[Verdict, ...]) -> None:
    results = found(Zoo(offer=offer))
    assert tuple(result.verdict for result in results.values()) == verdicts
    cache = results["cache"]
    if cache.verdict is HOLDS:  # every pair hit: none was counted as cold against cold but the controls
        assert all(g.compared == 4 for g in cache.groups if g.name.endswith("again"))
        assert sum(g.compared for g in cache.groups if g.name.startswith("boundary")) == 9


@pytest.mark.parametrize(
    ("faults", "probe", "groups"),
    [
        (Faults(cache=True), "cache", {"whole", "partial", "boundary -1", "boundary 0", "boundary +1"}),
        (Faults(boundary=(1,)), "cache", {"boundary +1"}),
        (Faults(phase=True), "phase", {"decode against prefill"}),
        (Faults(seed_ignored=True), "seeds", {"same seed alone", "same seed in a crowd"}),
        (Faults(seed_load=True), "seeds", {"same seed in a crowd"}),
        (Faults(whole=True), "stream", {"streamed against whole"}),
        (Faults(logprobs=True, scale=1.0), "logprobs", {"asked against not asked"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_fault_is_seen_by_its_probe_alone(faults: Faults, probe: str, groups: set[str]) -> None:
    results = found(Zoo(faults))
    changed = {name: {g.name for g in result.groups if g.changed} for name, result in results.items() if result.changed}
    assert changed == {probe: groups}
