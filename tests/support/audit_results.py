"""Results of probes, made by hand."""

from __future__ import annotations

from queueproof.audit import names
from queueproof.audit.records import (
    Difference,
    EndpointIdentity,
    Group,
    Interval,
    ProbeResult,
    Unit,
    Verdict,
    Witness,
)

MOVED = Witness("24 requests ran at once", "/metrics", True, 24.0, 8.0)


def identity(vendor: str = "unknown", **changes: object) -> EndpointIdentity:
    values = {"url": "http://test", "model": "m", "vendor": vendor, "fingerprints": ("fp-1",), "cold_by": "cache_salt"}
    return EndpointIdentity(**(values | changes))  # type: ignore[arg-type]


def difference(prompt: str = "p", **changes: object) -> Difference:
    """A changed token after a changed log-probability: what rounding does."""
    values: dict[str, object] = {
        "prompt": prompt,
        "group": "g",
        "unit": Unit.IDS,
        "a_name": "alone",
        "b_name": "other",
        "a": "one two",
        "b": "one too",
        "split": 5,
        "max_logprob_difference": 0.01,
        "position": 3,
        "logprob_position": 1,
        "margin": 0.02,
        "near_tie": True,
    }
    return Difference(**(values | changes))  # type: ignore[arg-type]


def chosen(prompt: str = "p") -> Difference:
    """Another token after equal log-probabilities, far from a tie: what a sampler does."""
    return difference(prompt, max_logprob_difference=0.0, logprob_position=None, margin=0.7, near_tie=False)


def result(
    name: str,
    *groups: tuple[str, int, int] | tuple[str, int, int, float],
    witness: Witness | None = MOVED,
    differences: tuple[Difference, ...] = (),
) -> ProbeResult:
    """groups: name, changed, compared, and x."""
    made = tuple(
        Group(group[0], group[2], group[1], group[1], 0.01 if group[1] else 0.0, group[3] if len(group) > 3 else None)
        for group in groups
    )
    changed, compared = sum(g.changed for g in made), sum(g.compared for g in made)
    moved = witness is not None and witness.moved
    verdict = Verdict.CHANGES if changed else Verdict.HOLDS if moved and compared else Verdict.INCONCLUSIVE
    return ProbeResult(
        name=name,
        question="?",
        verdict=verdict,
        reason="",
        compared=compared,
        changed=changed,
        tokens_changed=changed,
        max_logprob_difference=0.01 if changed else 0.0,
        seconds=1.0,
        requests=compared,
        tokens=compared,
        partial=False,
        interval=Interval(0.0, 1.0, 0.95) if compared else None,
        groups=made,
        witnesses=(witness,) if witness is not None else (),
        differences=differences or tuple(difference(f"{name} {i}") for i in range(changed)),
    )


def floor(second: int = 0, third: int = 0, compared: int = 24, **more: object) -> ProbeResult:
    return result(
        names.ALONE,
        (names.SECOND, second, compared),
        (names.THIRD, third, compared),
        **more,  # type: ignore[arg-type]
    )


def neighbours(**changed: int) -> ProbeResult:
    """of24: changed of 24 at 2, 8, 24 users, then 24 and 2 again, by `two`, `eight`, `top`, `top_again`, `two_again`."""
    return result(
        names.NEIGHBOURS,
        ("2 users", changed.get("two", 0), 24, 2.0),
        ("8 users", changed.get("eight", 0), 24, 8.0),
        ("24 users", changed.get("top", 0), 24, 24.0),
        ("24 users again", changed.get("top_again", 0), 24, 24.0),
        ("2 users again", changed.get("two_again", 0), 24, 2.0),
    )


def clean() -> list[ProbeResult]:
    """All that a run can find at an endpoint where nothing matters."""
    return [
        floor(),
        neighbours(),
        result(names.ORDER, (names.FIRST_IN_LINE, 0, 24), (names.LAST_IN_LINE, 0, 24)),
        result(names.LOAD, ("random arrivals", 0, 24)),
        result(
            names.LENGTHS,
            (names.SHORT_BESIDE_SHORT, 0, 24),
            (names.SHORT_BESIDE_LONG, 0, 24),
            (names.LONG_BESIDE_SHORT, 0, 12),
        ),
        cache(),
        result(names.PHASE, ("decode against prefill", 0, 12)),
        result(names.SEEDS, (names.SAME_SEED, 0, 12), (names.SAME_SEED_CROWD, 0, 12)),
        result(names.STREAM, ("stream against whole", 0, 12)),
        result(names.LOGPROBS, ("asked against not asked", 0, 12)),
        result(names.DRIFT, ("unchanged", 0, 12)),
    ]


def cache(whole: int = 0, partial: int = 0, at: tuple[int, int, int] = (0, 0, 0), control: int = 0) -> ProbeResult:
    """at: changed of 6 at -1, 0 and +1 tokens from a boundary."""
    return result(
        names.CACHE,
        (names.COLD_AGAIN, control, 12),
        (names.WHOLE, whole, 24),
        (names.PARTIAL, partial, 12),
        ("boundary -1", at[0], 6, -1.0),
        ("boundary 0", at[1], 6, 0.0),
        ("boundary +1", at[2], 6, 1.0),
    )


def with_(*changed: ProbeResult) -> list[ProbeResult]:
    """A clean run, but for these."""
    other = {r.name: r for r in changed}
    results = [other.pop(r.name, r) for r in clean()]
    return [*results, *other.values()]
