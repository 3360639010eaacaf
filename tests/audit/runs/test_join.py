"""Which sample meets which, whatever the order, with repetitions and epochs, by the key that fits best."""

from __future__ import annotations

from collections import Counter
from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from queueproof.audit.runs.join import By, asked_the_same, join
from queueproof.audit.runs.model import Sample, Score
from queueproof.audit.runs.store import Entry, Store


def entry(
    id: str | None = None, prompt: str | None = None, document: str | None = None, task: str = "", epoch: int = 1
) -> Entry:
    def digest(text: str | None) -> bytes | None:
        return None if text is None else text.encode()

    return Entry(task, id, epoch, digest(document), digest(prompt), 0, [0])


def ids(*names: str) -> list[Entry]:
    return [entry(name) for name in names]


def met(joined: object) -> list[tuple[str | None, str | None]]:
    return [(a.id, b.id) for a, b in joined.pairs]  # type: ignore[attr-defined]


def test_by_id_whatever_the_order() -> None:
    joined = join(ids("a", "b", "c"), ids("c", "x", "a"))
    assert joined.by is By.ID and met(joined) == [("a", "a"), ("c", "c")]
    assert [e.id for e in joined.only_a] == ["b"] and [e.id for e in joined.only_b] == ["x"]


def test_by_document_before_id() -> None:
    a = [entry("0", document="p"), entry("1", document="q")]
    assert join(a, [entry("0", document="q"), entry("1", document="p")]).by is By.DOCUMENT
    changed = [entry("0", document="r"), entry("1", document="s")]
    joined = join(a, changed)  # nothing else meets: the records changed, and that is said
    assert joined.by is By.ID and not any(map(asked_the_same, joined.pairs))


def test_by_prompt_where_ids_are_of_the_order() -> None:
    a = [entry("0", "p"), entry("1", "q"), entry("2", "r")]
    b = [entry("0", "r"), entry("1", "q"), entry("2", "p")]
    assert join(a, b).by is By.PROMPT
    assert join(a, [entry("0", "P"), entry("1", "Q")]).by is By.ID  # another template
    assert join([entry(None, "p")], [entry("0", "p")]).by is By.PROMPT


def test_by_position_only_without_anything_else() -> None:
    nameless = [Entry("", None, 1, None, None, i, [0]) for i in range(3)]
    assert join(nameless, nameless[:2]).by is By.POSITION
    assert len(join(nameless, [Entry("", "a", 1, None, None, 1, [0])]).pairs) == 1
    assert join(ids("a"), [entry(None, "p")]).pairs == ()
    assert join(ids("a"), [entry(None, "p")], By.POSITION).by is By.POSITION


def test_tasks() -> None:
    a = [entry("0", task="x"), entry("0", task="y")]
    b = [entry("0", task="y"), entry("0", task="x")]
    joined = join(a, b)
    assert joined.by_task and [(p.task, q.task) for p, q in joined.pairs] == [("x", "x"), ("y", "y")]
    assert not join([entry("0", task="x")], [entry("0", task="other name")]).by_task
    assert len(join([entry("0", task="x")], [entry("0", task="other name")]).pairs) == 1


def test_repetitions_and_epochs() -> None:
    a = [entry("a", epoch=1), entry("a", epoch=2), entry("a", epoch=2)]
    b = [entry("a", epoch=2), entry("a", epoch=1), entry("a", epoch=3)]
    joined = join(a, b)
    assert [(p.epoch, q.epoch) for p, q in joined.pairs] == [(1, 1), (2, 2)]
    assert joined.repeated_a == 1 and joined.repeated_b == 0
    assert len(joined.only_a) == 1 and [e.epoch for e in joined.only_b] == [3]
    # One prompt twice under two ids: the ids tell.
    twice = [entry("x", "p"), entry("y", "p")]
    assert met(join(twice, twice[::-1], By.PROMPT)) == [("x", "x"), ("y", "y")]


def test_empty_runs() -> None:
    assert join([], []).pairs == () and join(ids("a"), []).only_a != () and join([], ids("a")).only_b != ()


names = st.sampled_from(["a", "b", "c", "d"])
entries = st.builds(
    entry,
    id=st.none() | names,
    prompt=st.none() | names,
    document=st.none() | names,
    task=st.sampled_from(["", "x", "y"]),
    epoch=st.integers(1, 2),
)
runs = st.lists(entries, max_size=12)


@given(runs, runs, st.none() | st.sampled_from(By))
def test_nothing_is_lost_or_used_twice(a: list[Entry], b: list[Entry], by: By | None) -> None:
    joined = join(a, b, by)
    lefts, rights = [id(p) for p, _ in joined.pairs], [id(q) for _, q in joined.pairs]
    assert Counter(lefts + [id(e) for e in joined.only_a]) == Counter(map(id, a))
    assert Counter(rights + [id(e) for e in joined.only_b]) == Counter(map(id, b))
    for one, other in joined.pairs:
        assert one.epoch == other.epoch and (one.task == other.task or not joined.by_task)


@given(runs)
def test_a_run_meets_itself(run: list[Entry]) -> None:
    """By ids, wherever all have one, in any order."""
    named = [entry for entry in run if entry.id is not None]
    joined = join(named, list(reversed(named)), By.ID)
    assert len(joined.pairs) == len(named)
    assert all((p.id, p.epoch) == (q.id, q.epoch) for p, q in joined.pairs)


samples = st.builds(
    Sample,
    where=st.just(""),
    task=st.sampled_from(["", "x"]),
    id=st.none() | names,
    epoch=st.none() | st.integers(1, 2),
    variant=st.sampled_from(["", "strict", "loose"]),
    scores=st.lists(st.builds(Score, names, st.floats(), names), max_size=2).map(tuple),
)


@given(st.lists(samples, max_size=12))
def test_a_store_gives_back_what_it_took(run: list[Sample]) -> None:
    with Store(run) as store:
        kept = [store.sample(entry) for entry in store.entries]
        assert sum(len(sample.scores) for sample in kept) == sum(len(sample.scores) for sample in run)
        assert sum(store.tasks.values()) == len(store.entries) <= len(run)
        assert [e.id for e in store.entries if e.id is None] == [s.id for s in run if s.id is None]


def test_epochs_are_counted_where_a_file_has_none() -> None:
    run = [Sample("", "", "a", variant=v) for v in ("strict", "strict", "loose", "loose")]
    with Store(run) as store:
        assert [(e.epoch, len(e.at)) for e in store.entries] == [(1, 2), (2, 2)]


def test_a_large_run_goes_to_a_file() -> None:
    run = (Sample("", "", str(i), target="x" * 1_000_000) for i in range(70))
    with Store(run) as store:
        assert store.sample(store.entries[69]).id == "69"
        assert [store.sample(e).id for e in islice(store.entries, 2)] == ["0", "1"]
