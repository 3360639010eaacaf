"""A price in words and rows, for a terminal and a page."""

from __future__ import annotations

from typing import NamedTuple

from queueproof.audit.price.records import Comparison, Metric, Outcome, PriceResult, Side

TITLES = {Metric.TOKENS_PER_S: "tokens/s", Metric.TTFT: "TTFT", Metric.TPOT: "TPOT"}
HEADINGS = ("users", "", "baseline", "candidate", "candidate / baseline", "baseline again")


class Row(NamedTuple):
    """Of HEADINGS. refused: there is no price in it."""

    users: str
    metric: str
    baseline: str
    candidate: str
    ratio: str
    drift: str
    refused: bool


def rows(result: PriceResult) -> list[Row]:
    """A row for each number of users and metric."""
    return [_row(c) for c in result.comparisons]


def _row(c: Comparison) -> Row:
    drift = apart(c.drift)
    base, candidate = number(c.metric, c.baseline), number(c.metric, c.candidate)
    return Row(str(c.users), TITLES[c.metric], base, candidate, ratio(c), drift, c.price is None)


def ratio(c: Comparison) -> str:
    """`0.620 (0.600 to 0.640)`, or why there is no price."""
    if c.outcome is Outcome.NOISE:
        return f"no price: baseline and baseline {apart(c.drift)}, baseline and candidate {apart(c.seen)}"
    if c.outcome is Outcome.WIDE and c.low is not None and c.high is not None:
        return f"no price: it is anywhere from {c.low:.2f} to {c.high:.2f}"
    if c.price is None or c.low is None or c.high is None:
        return f"no price: too few runs; as seen {c.seen:.3f}"
    return f"{c.price:.3f} ({c.low:.3f} to {c.high:.3f})"


def number(metric: Metric, value: float) -> str:
    """With its unit, three digits or more."""
    if metric is Metric.TOKENS_PER_S:
        return f"{value:.1f}" if value < 1000 else f"{value:.0f}"
    return f"{1e3 * value:.2f} ms" if value < 1 else f"{value:.2f} s"


def apart(ratio: float) -> str:
    """How far from 1: `+3.1%`."""
    return f"{ratio - 1:+.1%}"


def summary(result: PriceResult) -> str:
    """One sentence: the price in tokens/s at each number of users, or that there is none."""
    parts = []
    for users in result.plan.users:
        c = result.at(Metric.TOKENS_PER_S, users)
        many = f"{users} user{'s' if users > 1 else ''}"
        if c is None:
            parts.append(f"not measured at {many}")
        elif c.price is None:
            parts.append(f"no price at {many} ({c.outcome.value})")
        else:
            parts.append(f"{c.price:.3f} at {many}")
    return f"The candidate's tokens/s / the baseline's: {', '.join(parts)}."


def who(side: Side) -> str:
    """Who answers on a side, and how it was asked or started."""
    found = f"{side.model} at {side.url}, {side.vendor}" + (f" {side.version}" if side.version else "")
    found += f", with {side.body}" if side.body else ""
    if side.command is not None:
        found += f", started by {' '.join([*side.env, side.command])}"
    return found


def troubles(result: PriceResult) -> list[str]:
    """A sentence for each kind of trouble."""
    return [f"trouble: {p.kind}, {p.count} times: {p.example}" for p in result.problems]


def method(result: PriceResult) -> str:
    """How it was measured, in one sentence."""
    plan = result.plan
    runs = (2 * plan.rounds + 1) * plan.repeats * len(plan.seeds) * len(plan.users)
    return (
        f"{plan.rounds} rounds of baseline, candidate, baseline; {len(result.runs)} of {runs} runs; "
        f"intervals of {plan.confidence:.0%}; answers of {plan.max_tokens} tokens to prompts of about {plan.prompt_words + 20}; "
        f"{result.seconds:.0f} s in all; {result.machine}"
    )
