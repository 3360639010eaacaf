"""Two runs from files to a record: read, joined, compared pair by pair, counted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from queueproof.audit.runs.compare import compare
from queueproof.audit.runs.join import By, Joined, Pair, asked_the_same, join
from queueproof.audit.runs.model import About, Sample
from queueproof.audit.runs.readers import open_run
from queueproof.audit.runs.record import DiffRecord, Join, Outcome, Side
from queueproof.audit.runs.store import Entry, Store
from queueproof.audit.runs.tally import Tally
from queueproof.version import __version__

NAMED = 5  # samples without a partner that a record names, of each run
Report = Callable[[str, int, int], None]  # what is done, how far, of how much


def quiet(what: str, done: int, total: int) -> None:
    """A report to nobody."""


def diff(
    a: Path,
    b: Path,
    format_a: str | None = None,
    format_b: str | None = None,
    by: By | None = None,
    kept: int = 20,
    report: Report = quiet,
) -> DiffRecord:
    """kept: how many differences the record holds. by: the key to join by; None: the best.

    Raises UsageError (no such file, nothing known in it), ContractError (a malformed line).
    """
    about_a, samples_a = open_run(a, format_a, lambda done, total: report("reading A", done, total))
    about_b, samples_b = open_run(b, format_b, lambda done, total: report("reading B", done, total))
    with Store(samples_a) as store_a, Store(samples_b) as store_b:
        joined = join(store_a.entries, store_b.entries, by)
        tally = Tally(kept)
        otherwise = 0
        for i, pair in enumerate(joined.pairs):
            if i % 64 == 0:
                report("comparing", i, len(joined.pairs))
            one, other = store_a.sample(pair[0]), store_b.sample(pair[1])
            otherwise += not (asked_the_same(pair) and _as_long(one, other))
            tally.add(one, other, compare(one, other), _known_as(pair, one), pair[0].epoch)
        metrics = tally.metrics(about_a.reported, about_b.reported)
        return DiffRecord(
            tool=f"queueproof {__version__}",
            outcome=_outcome(tally),
            a=_side(about_a, store_a),
            b=_side(about_b, store_b),
            join=_join(joined, otherwise),
            total=tally.total(),
            tasks=tally.tasks(),
            metrics=metrics,
            reported=tally.only_reported(about_a.reported, about_b.reported),
            differences=tally.differences(),
        )


def _outcome(tally: Tally) -> Outcome:
    if tally.different:
        return Outcome.DIFFERENT
    return Outcome.SAME if tally.total().compared or tally.scored else Outcome.NOTHING


def _as_long(a: Sample, b: Sample) -> bool:
    """Whether prompts of which only the lengths are known may be the same."""
    if a.prompt_digest is not None and b.prompt_digest is not None or not a.answers or not b.answers:
        return True
    one, other = a.answers[0].prompt_tokens, b.answers[0].prompt_tokens
    return one is None or other is None or one == other


def _side(about: About, store: Store) -> Side:
    return Side(
        path=about.path,
        format=about.format,
        files=tuple(about.files),
        models=tuple(about.models),
        tasks=tuple(task for task in store.tasks if task),
        samples=len(store.entries),
        failed=store.failed,
        notes=tuple(about.notes),
    )


def _join(joined: Joined, otherwise: int) -> Join:
    return Join(
        by=joined.by,
        by_task=joined.by_task,
        joined=len(joined.pairs),
        only_a=len(joined.only_a),
        only_b=len(joined.only_b),
        first_only_a=tuple(map(_name, joined.only_a[:NAMED])),
        first_only_b=tuple(map(_name, joined.only_b[:NAMED])),
        repeated_a=joined.repeated_a,
        repeated_b=joined.repeated_b,
        asked_otherwise=otherwise,
    )


def _known_as(pair: Pair, sample: Sample) -> str:
    """The id of a pair, or the beginning of its prompt, or its place in the first run."""
    a, b = pair
    known = a.id if a.id is not None else b.id
    if known is not None:
        return known
    return " ".join(sample.prompt.split())[:60] if sample.prompt else f"number {a.position + 1}"


def _name(entry: Entry) -> str:
    name = entry.id if entry.id is not None else f"number {entry.position + 1}"
    return " ".join(part for part in (entry.task, name, f"epoch {entry.epoch}" if entry.epoch != 1 else "") if part)
