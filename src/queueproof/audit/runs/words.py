"""What a record says, in sentences and in rows: the terminal and the page say the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from queueproof.audit.report.words import escaped
from queueproof.audit.runs.join import By
from queueproof.audit.runs.record import Answers, Change, Difference, DiffRecord, Metric, Outcome, Side, Unit

_BY = {
    By.DOCUMENT: "the hash of the question's record",
    By.ID: "id",
    By.PROMPT: "prompt",
    By.POSITION: "position: neither file has ids or prompts that both know",
}
_UNITS = {
    Unit.IDS: "by token ids",
    Unit.TOKENS: "by the tokens' texts",
    Unit.TEXT: "by text alone",
    Unit.OPTIONS: "by the likelihoods of options",
}
METRICS = ("task", "metric", "n", "A", "B", "B - A", "moved", "up", "down", "p", "by answers", "95% interval")
TASKS = ("task", "joined", "compared", "other answer", "other logprobs", "largest")


def headline(record: DiffRecord) -> str:
    """The outcome in a sentence."""
    total = record.total
    if record.outcome is Outcome.NOTHING:
        return "nothing to compare: " + (
            "no sample of one run met one of the other"
            if not record.join.joined
            else f"{_count(record.join.joined, 'sample')} met, and none has an answer or a score in both runs"
        )
    if record.outcome is Outcome.SAME:
        exact = ", log-probabilities too" if total.with_logprobs else ""
        return f"same: {_count(total.compared, 'answer')} in both runs{exact}"
    moved = sum(metric.moved for metric in record.metrics)
    parts = []
    if total.changed:
        parts.append(f"{total.changed} of {_count(total.compared, 'answer')} changed")
    if total.logprobs_changed:
        same = (
            f"{total.logprobs_changed} of {total.with_logprobs}"
            if parts
            else _of(total.logprobs_changed, total.with_logprobs)
        )
        parts.append(f"{same} kept the answer and changed its log-probabilities")
    if moved or not parts:
        parts.append(f"{_count(moved, 'score')} moved")
    return "different: " + ", ".join(parts)


def paragraphs(record: DiffRecord) -> Iterator[str]:
    """What stands under the headline: the runs, how samples met, by what answers were compared."""
    yield _side("A", record.a)
    yield _side("B", record.b)
    join = record.join
    tasks = " within a task" if join.by_task else ""
    yield f"joined by {_BY[join.by]}{tasks}: {_count(join.joined, 'sample')}; only in A {join.only_a}{_some(join.first_only_a)}, only in B {join.only_b}{_some(join.first_only_b)}"
    if join.repeated_a or join.repeated_b:
        yield f"repeated under one key and epoch: {join.repeated_a} in A, {join.repeated_b} in B; they were paired in order"
    if join.asked_otherwise:
        yield f"asked otherwise: {join.asked_otherwise} of the joined samples had another question or prompt in B"
    total = record.total
    if total.units:
        yield "compared " + ", ".join(f"{_UNITS[found.unit]}: {found.samples}" for found in total.units)
    if total.with_logprobs:
        yield (
            f"log-probabilities in both: {total.with_logprobs}, largest difference while the tokens agree "
            f"{number(total.max_logprob_difference)}"
        )
    if total.failed:
        yield f"without an answer in one or both runs, and so not compared: {total.failed}"
    yield from map(explained, record.metrics)
    for other in record.reported:
        if other.a is not None and other.b is not None and other.a != other.b:
            yield f"reported by the runs themselves: {_named(other.task, other.name)} {number(other.a)} in A, {number(other.b)} in B"
    yield from (f"A: {note}" for note in record.a.notes)
    yield from (f"B: {note}" for note in record.b.notes)


def explained(metric: Metric) -> str:
    """By how much a metric moved, and why."""
    name = _named(metric.task, metric.name)
    if not metric.moved:
        return f"{name}: no score of {metric.scored} moved"
    of = f"{metric.moved} of {_count(metric.scored, 'score')}"
    why = []
    if metric.moved_with_answer:
        why.append(f"{metric.moved_with_answer} with another answer")
    if metric.moved_with_logprobs:
        why.append(f"{metric.moved_with_logprobs} with the same answer and other log-probabilities")
    if metric.moved_neither:
        target = f", {metric.target_moved} of them with another target" if metric.target_moved else ""
        why.append(f"{metric.moved_neither} with the same answer (target or scorer changed{target})")
    because = "; ".join(why)
    if metric.delta is None or metric.by_answers is None:
        return f"{name}: {of} moved: {because}"
    return (
        f"{name} moved by {signed(metric.delta)}, {signed(metric.by_answers)} of it explained by changed answers; "
        f"{of} moved: {because}"
    )


def metric_rows(metrics: Iterable[Metric]) -> Iterator[tuple[str, ...]]:
    """Cells under METRICS."""
    for m in metrics:
        yield (
            m.task,
            m.name,
            str(m.scored),
            number(m.mean_a),
            number(m.mean_b),
            "" if m.delta is None else signed(m.delta),
            str(m.moved),
            str(m.up),
            str(m.down),
            "" if m.p is None else f"{m.p:.3g}",
            "" if m.by_answers is None else signed(m.by_answers),
            "" if m.interval is None else f"{signed(m.interval.low)} to {signed(m.interval.high)}",
        )


def task_rows(tasks: Iterable[Answers]) -> Iterator[tuple[str, ...]]:
    """Cells under TASKS."""
    for t in tasks:
        logprobs = (f"{t.logprobs_changed} of {t.with_logprobs}", number(t.max_logprob_difference))
        yield (
            t.task or "-",
            str(t.joined),
            str(t.compared),
            str(t.changed),
            *(logprobs if t.with_logprobs else ("", "")),
        )


def title(found: Difference) -> str:
    """Which sample, and where it differs."""
    epoch = f", epoch {found.epoch}" if found.epoch != 1 else ""
    return f"{_named(found.task, found.id)}{epoch}: {place(found)}"


def place(found: Difference) -> str:
    """Where two answers part, or what else is between them."""
    parts = []
    if found.change is Change.ANSWER:
        turn = f"of message {found.turn + 1} " if found.turn else ""
        if found.unit is Unit.OPTIONS:
            parts.append("another option")
        elif found.unit is Unit.TEXT:
            parts.append(f"character {(found.position or 0) + 1} {turn}(word {(found.word or 0) + 1})")
        else:
            parts.append(f"token {(found.position or 0) + 1} {turn}(word {(found.word or 0) + 1})")
        if found.a == found.b:
            parts.append("the same text, ended for another reason or as other tokens")
        if found.margin is not None:
            parts.append(f"margin {number(found.margin)}")
    elif found.change is Change.LOGPROBS:
        unit = "option" if found.unit is Unit.OPTIONS else "token"
        up_to = number(found.max_logprob_difference)
        parts.append(f"other log-probabilities from {unit} {(found.logprob_position or 0) + 1} on, by up to {up_to}")
    else:
        parts.append("the same answer")
    if found.max_logprob_difference and found.change is not Change.LOGPROBS:
        parts.append(f"log-probabilities differ by up to {number(found.max_logprob_difference)}")
    if found.target_a != found.target_b:
        parts.append(f"target {found.target_a!r} in A, {found.target_b!r} in B")
    parts += [f"{move.name} {move.a} → {move.b}" for move in found.moves]
    return ", ".join(parts)


def visible(text: str) -> str:
    """Without characters that would move a terminal's cursor, turn other text about or hide: a model may write any."""
    return escaped(text, keep="\n\t")


def number(value: float | None) -> str:
    """Four digits; empty for none."""
    return "" if value is None else f"{value:.4g}"


def signed(value: float) -> str:
    return f"{value:+.4g}" if value else "0"


def _named(task: str, name: str) -> str:
    return f"{task} {name}" if task else name


def _side(name: str, side: Side) -> str:
    models = f", model {', '.join(side.models)}" if side.models else ""
    failed = f", {side.failed} of them failed" if side.failed else ""
    return f"{name}: {side.path} ({side.format}), {_count(side.samples, 'sample')}{failed}{models}"


def _some(names: tuple[str, ...]) -> str:
    return f" ({', '.join(names)}{', …' if len(names) >= 5 else ''})" if names else ""


def _of(few: int, many: int) -> str:
    return f"{few} of {_count(many, 'answer')}"


def _count(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"
