"""Records of audits, made by hand: what a report has to show, and what it must not fall for."""

from __future__ import annotations

from dataclasses import replace

from queueproof.audit import names
from queueproof.audit.records import (
    AuditRecord,
    Cause,
    Certainty,
    Clause,
    Difference,
    EndpointIdentity,
    Group,
    ProbeResult,
    Problem,
    Run,
    Series,
    Unit,
    Verdict,
    Witness,
)
from queueproof.audit.statistics import clopper_pearson, corrected
from queueproof.contract.axes import Axis

RUN = Run(
    tool="queueproof 0.1.0",
    started="2026-03-02T10:15:00+00:00",
    seconds=283.4,
    seed=7,
    prompts=48,
    prompts_digest="5f" * 32,
    max_tokens=32,
    users=24,
    confidence=0.95,
    budget="5 min",
    machine="a machine of 8 CPUs",
    interrupted=False,
)
ENDPOINT = EndpointIdentity(
    url="http://gateway.internal:8000/v1",
    model="example/model-8b-instruct",
    vendor="vllm",
    version="0.32.0",
    fingerprints=("vllm-0.32.0-37805895",),
    abilities=("chat", "completions", "logprobs", "token ids", "counters"),
    cold_by="cache_salt",
    block_size=16,
)
RAN_TOGETHER = Witness("24 requests ran at once", "/metrics", True, 24.0, 24.0)
QUESTIONS = {
    names.ALONE: "Is the same request, asked alone, answered alike?",
    names.NEIGHBOURS: "Does the number of other requests, or which they are, change an answer?",
    names.CACHE: "Does it matter whether the prefix cache knew the prompt?",
}
TEXTS = (
    "The queue is served in the order in which requests arrive, and each of them waits for a free place in the batch.",
    "The queue is served in the order in which requests came in, so that none of them has to wait for longer than others.",
)


def probe(
    name: str,
    verdict: Verdict,
    changed: int = 0,
    compared: int = 0,
    groups: tuple[Group, ...] = (),
    witnesses: tuple[Witness, ...] = (),
    differences: tuple[Difference, ...] = (),
    **more: object,
) -> ProbeResult:
    """A probe's result, with its interval."""
    made = ProbeResult(
        name=name,
        question=QUESTIONS.get(name, f"Does {name} change an answer?"),
        verdict=verdict,
        reason=f"{changed} of {compared} answers changed",
        compared=compared,
        changed=changed,
        tokens_changed=sum(d.position is not None for d in differences),
        max_logprob_difference=max((d.max_logprob_difference for d in differences), default=0.0),
        seconds=12.5,
        requests=compared + 48,
        tokens=32 * (compared + 48),
        partial=False,
        unit=Unit.IDS if compared else None,
        interval=clopper_pearson(changed, compared) if compared else None,
        groups=groups or ((Group("all", compared, changed, changed, 0.0),) if compared else ()),
        witnesses=witnesses,
        differences=differences,
    )
    return replace(made, **more)  # type: ignore[arg-type]


def difference(prompt: str, group: str, a: str = TEXTS[0], b: str = TEXTS[1], **more: object) -> Difference:
    """Of two texts, split where they part."""
    split = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    made = Difference(prompt, group, Unit.IDS, "alone", "in a crowd", a, b, split, 0.0031, 14, 3, 0.0009, True)
    return replace(made, **more)  # type: ignore[arg-type]


def record(*probes: ProbeResult, **more: object) -> AuditRecord:
    """A run with these probes, their corrected intervals filled in."""
    made = AuditRecord(RUN, ENDPOINT, tuple(corrected(probes, RUN.confidence)), ())
    return replace(made, **more)  # type: ignore[arg-type]


def clean() -> AuditRecord:
    """All held."""
    return record(
        probe(names.ALONE, Verdict.HOLDS, 0, 96),
        probe(names.NEIGHBOURS, Verdict.HOLDS, 0, 240, _users(0, 0, 0), (RAN_TOGETHER,), axis=Axis.NEIGHBOURS),
        probe(
            names.CACHE,
            Verdict.HOLDS,
            0,
            1_250_000,
            witnesses=(Witness("48 of 48 warm asks hit", "cached_tokens", True, 48.0, 43.0),),
            series=(
                Series("TTFT cold", "s", tuple(0.09 + 0.001 * (i % 17) for i in range(48))),
                Series("TTFT warm", "s", tuple(0.03 + 0.001 * (i % 11) for i in range(48))),
            ),
            axis=Axis.CACHE,
        ),
    )


def broken() -> AuditRecord:
    """Neighbours change answers, more the more they are; all else holds. A contract promised otherwise."""
    found = tuple(
        difference(
            f"chat-{i:02}",
            names.users(24),
            position=3 + 5 * i % 29,
            max_logprob_difference=0.0004 * (i + 1),
            near_tie=i % 5 != 0,
            margin=0.0009 if i % 5 else 0.21,
        )
        for i in range(17)
    )
    only_logprobs = difference("code-03", names.users(8), b=TEXTS[0], position=None, margin=None, near_tie=None)
    neighbours = probe(
        names.NEIGHBOURS,
        Verdict.CHANGES,
        29,
        240,
        _users(2, 9, 18),
        (RAN_TOGETHER,),
        (*found, only_logprobs),
        axis=Axis.NEIGHBOURS,
    )
    held = clean()
    return replace(
        record(held.probes[0], neighbours, held.probes[2]),
        causes=(
            Cause(
                "batch composition",
                Certainty.SHOWN,
                "Answers depend on which or how many other requests are computed together with them.",
                ("neighbours: 29 of 240 changed", "asked alone again: 0 of 96 changed"),
                ("Start it with VLLM_BATCH_INVARIANT=1.", "Audit again with the mode on."),
            ),
            Cause(
                "sampler",
                Certainty.LIKELY,
                "The sampler may draw otherwise in a crowd.",
                ("a seed gave two answers",),
                (),
            ),
        ),
        clauses=(
            Clause("neighbours", "no answer changes with its neighbours", Verdict.CHANGES, "29 of 240 answers changed"),
            Clause("cache", "no answer changes with the cache", Verdict.HOLDS, "0 of 1250000 changed: at most 0.0003%"),
        ),
        problems=(Problem("rate limited (retried)", 12, "429: slow down"), Problem("timeout", 1, "no byte in 60 s")),
    )


def inconclusive() -> AuditRecord:
    """Nothing changed, and nothing shows that anything varied."""
    still = Witness("requests ran at once: no counters, and answers in one piece", "none", False, 0.0, 1.0)
    return record(
        probe(names.ALONE, Verdict.INCONCLUSIVE),
        probe(names.NEIGHBOURS, Verdict.INCONCLUSIVE, 0, 24, witnesses=(still,), unit=Unit.TEXT),
        probe("phase", Verdict.NOT_RUN, reason="the endpoint gives no log-probabilities of prompts"),
        endpoint=EndpointIdentity("http://127.0.0.1:1", "m", "unknown"),
    )


def interrupted() -> AuditRecord:
    """Ended early: one probe is partial, one was never reached, and two prompts were too long."""
    return record(
        probe(names.ALONE, Verdict.HOLDS, 0, 96),
        probe(names.NEIGHBOURS, Verdict.CHANGES, 1, 9, partial=True, differences=(difference("p1", "2 users"),)),
        probe(names.CACHE, Verdict.NOT_RUN, partial=True, reason="the run ended before it"),
        run=replace(RUN, interrupted=True, left_out=("long-1", "long-2")),
    )


def failed() -> AuditRecord:
    """No two answers came."""
    trouble = (Problem("refused", 4, "connection refused"),)
    return record(probe(names.ALONE, Verdict.FAILED, problems=trouble), problems=trouble)


BIDI, ARABIC = "\u202egnp.exe\u202c", "هذا جواب طويل عن الطابور وعن الخدمة"
EVIL = (
    "</pre></style><script>alert(1)</script><img src=http://evil.example/x onerror=alert(2)>{{ 7*7 }}{% raw %}&lt;\"'`"
)


def adversarial() -> AuditRecord:
    """Texts that try to be markup, that move or hide other text, that are long, or end at once."""
    pairs = (
        (EVIL + " one", EVIL + " two"),
        (f"{BIDI} a\x00\x1b[31m\u200b\ufeff\ud800b\r\n\tc", f"{BIDI} a\x00\x1b[31m\u200c\ufeff\ud800d\r\n\tc"),
        ("W" * 100_000 + "x" * 50_000, "W" * 100_000 + "y" * 50_000),
        (f"{ARABIC} الأول ثم الثاني", f"{ARABIC} الثاني ثم الأول"),
        ("", "it begins"),
        ("e\u0301te\u0301", "e\u0300te\u0301"),
    )
    found = tuple(difference(f"{EVIL}{i}", EVIL, a, b, a_name=EVIL, near_tie=None) for i, (a, b) in enumerate(pairs))
    one = [
        probe(f"probe {i}", Verdict.CHANGES, 3, 10**9, differences=found[i : i + 3], notes=(EVIL, "n" * 5000))
        for i in (0, 3)
    ]
    return record(
        *one,
        endpoint=replace(ENDPOINT, url=f"http://h/{'u' * 3000}", model=EVIL + BIDI, fingerprints=(EVIL, "f" * 500)),
        causes=(Cause(EVIL, Certainty.LIKELY, EVIL, (EVIL,), ("s" * 2000,)),),
        clauses=(Clause(EVIL, "p" * 900, Verdict.FAILED, EVIL),),
        problems=(Problem(EVIL, 10**12, "\u2066" + "e" * 4000),),
        run=replace(RUN, machine=EVIL, left_out=(EVIL,) * 40),
    )


def everything() -> dict[str, AuditRecord]:
    """All of them by name, and one without any probe."""
    made = (clean, broken, inconclusive, interrupted, failed, adversarial)
    return {make.__name__: make() for make in made} | {"empty": record()}


def _users(*changed: int) -> tuple[Group, ...]:
    """Crowds of 2, 8 and 24 of 80 answers each, the last split into two rounds."""
    first, second, third = changed
    half = third // 2
    return (
        Group(names.users(2), 80, first, first, 0.0, 2.0),
        Group(names.users(8), 80, second, second, 0.0, 8.0),
        Group(names.users(24), 40, third - half, third - half, 0.0, 24.0),
        Group(names.users(24) + names.AGAIN, 40, half, half, 0.0, 24.0),
    )
