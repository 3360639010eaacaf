"""Which sample of one run is which of the other.

Keys are tried, and the one is taken by which most samples meet that were asked the same; among equals the first of By.
Two with one key are told apart by their epoch; several of one epoch are paired by id where they have one, then in order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from queueproof.audit.runs.store import Entry


class By(StrEnum):
    """What samples were joined by: the hash of the question's record, its id, the hash of its prompt, or its place."""

    DOCUMENT = "document"
    ID = "id"
    PROMPT = "prompt"
    POSITION = "position"


Pair = tuple[Entry, Entry]
_KEYS: dict[By, Callable[[Entry], Hashable]] = {
    By.DOCUMENT: lambda entry: entry.document,
    By.ID: lambda entry: entry.id,
    By.PROMPT: lambda entry: entry.prompt,
    By.POSITION: lambda entry: entry.position,
}


@dataclass(frozen=True, slots=True)
class Joined:
    """pairs: in the order of the first run. only_a, only_b: without a partner. repeated_a, repeated_b: samples that share
    key and epoch with an earlier one of their run. by_task: whether tasks had to be the same."""

    by: By
    by_task: bool
    pairs: tuple[Pair, ...]
    only_a: tuple[Entry, ...]
    only_b: tuple[Entry, ...]
    repeated_a: int
    repeated_b: int


def join(a: Sequence[Entry], b: Sequence[Entry], by: By | None = None) -> Joined:
    """by: the key to use; None: the best. Tasks count where there are several and the runs share some of their names.

    By position only where nothing else can be: one of the runs has neither ids, hashes nor prompts.
    """
    tasks_a, tasks_b = {entry.task for entry in a}, {entry.task for entry in b}
    by_task = (len(tasks_a) > 1 or len(tasks_b) > 1) and bool(tasks_a & tasks_b)
    if by is not None:
        return _join(a, b, by, by_task)
    named = [key for key in (By.DOCUMENT, By.ID, By.PROMPT) if _has(a, key) and _has(b, key)]
    if not named:
        nameless = any(run and not any(_has(run, key) for key in (By.DOCUMENT, By.ID, By.PROMPT)) for run in (a, b))
        return _join(a, b, By.POSITION if nameless else By.ID, by_task)
    tried = [_join(a, b, key, by_task) for key in named]
    return max(tried, key=lambda joined: (sum(map(asked_the_same, joined.pairs)), len(joined.pairs)))


def asked_the_same(pair: Pair) -> bool:
    """As far as both runs tell: of records and prompts, those that both have are the same."""
    a, b = pair
    documents = a.document is None or b.document is None or a.document == b.document
    return documents and (a.prompt is None or b.prompt is None or a.prompt == b.prompt)


def _has(run: Iterable[Entry], by: By) -> bool:
    return any(_KEYS[by](entry) is not None for entry in run)


def _join(a: Sequence[Entry], b: Sequence[Entry], by: By, by_task: bool) -> Joined:
    of = _KEYS[by]
    waiting: dict[Hashable, list[Entry]] = defaultdict(list)
    for entry in b:
        if of(entry) is not None:
            waiting[entry.task if by_task else "", of(entry), entry.epoch].append(entry)
    repeated_b = sum(len(entries) - 1 for entries in waiting.values())
    asking: dict[Hashable, list[Entry]] = defaultdict(list)
    for entry in a:
        if of(entry) is not None:
            asking[entry.task if by_task else "", of(entry), entry.epoch].append(entry)
    repeated_a = sum(len(entries) - 1 for entries in asking.values())
    partner: dict[int, Entry] = {}
    for key, entries in asking.items():
        for one, other in _pairs(entries, waiting.get(key, [])):
            partner[id(one)] = other
    taken = {id(other) for other in partner.values()}
    return Joined(
        by,
        by_task,
        tuple((entry, partner[id(entry)]) for entry in a if id(entry) in partner),
        tuple(entry for entry in a if id(entry) not in partner),
        tuple(entry for entry in b if id(entry) not in taken),
        repeated_a,
        repeated_b,
    )


def _pairs(a: list[Entry], b: list[Entry]) -> list[Pair]:
    """Those of one key and epoch: by id (and task) where both have the same, the rest in order."""
    if len(a) == 1 and len(b) == 1:
        return [(a[0], b[0])]
    by_id: dict[tuple[str, str | None], list[Entry]] = defaultdict(list)
    for entry in reversed(b):
        by_id[entry.task, entry.id].append(entry)
    pairs, rest, used = [], [], set()
    for entry in a:
        found = by_id.get((entry.task, entry.id))
        if entry.id is not None and found:
            pairs.append((entry, found.pop()))
            used.add(id(pairs[-1][1]))
        else:
            rest.append(entry)
    return pairs + list(zip(rest, (entry for entry in b if id(entry) not in used), strict=False))
