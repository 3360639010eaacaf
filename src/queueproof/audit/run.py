"""A whole audit: probes one after another within a budget, written down as they end, and what they mean together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Protocol

from queueproof.audit.ask import Cache, Prompt
from queueproof.audit.attribution import attribute
from queueproof.audit.book import Book
from queueproof.audit.endpoint import BudgetSpent, Endpoint
from queueproof.audit.journal import Journal
from queueproof.audit.judge import judged
from queueproof.audit.lab import Lab, Settings
from queueproof.audit.plan import Pace, Plan, Selection, Work, affordable, digest, levels, within
from queueproof.audit.probes.base import Probe
from queueproof.audit.records import AuditRecord, EndpointIdentity, ProbeResult, Problem, Run, Verdict
from queueproof.audit.statistics import corrected
from queueproof.contract.errors import UsageError
from queueproof.version import __version__

_FIRST = 3  # prompts that tell what an answer costs, and of which references are kept
_LATER = (Verdict.NOT_RUN, Verdict.FAILED)  # asked for again when a run goes on


class Client(Endpoint, Protocol):
    """An endpoint that can say who it is and what trouble there was in all. opened: when, by the loop's clock: its time
    counts from then on."""

    @property
    def opened(self) -> float: ...

    def identity(self) -> EndpointIdentity: ...

    def problems(self) -> tuple[Problem, ...]: ...


class Watcher(Protocol):
    """Is told how a run goes on, for a screen."""

    def planned(self, probes: Sequence[str], prompts: int, users: int, seconds: float | None) -> None: ...

    def began(self, probe: str) -> None: ...

    def progress(self, compared: int, changed: int) -> None: ...

    def ended(self, result: ProbeResult) -> None: ...


@dataclass(slots=True)
class _State:
    """before: seconds that the run took until it was ended, where it goes on. against: its second endpoint."""

    started: datetime
    began: float
    results: dict[str, ProbeResult]
    before: float = 0.0
    against: EndpointIdentity | None = None
    interrupted: bool = False


async def run_audit(
    client: Client,
    prompts: Sequence[Prompt],
    plan: Plan,
    journal: Journal | None = None,
    watcher: Watcher | None = None,
    against: Client | None = None,
    resume: bool = False,
    machine: str = "",
) -> AuditRecord:
    """Runs the plan's probes. Cancelled (Ctrl-C), it ends the probe under way and returns what was measured.

    journal: gets every answer, and the record after each probe. resume: keep what its record has already.
    machine: on which it is measured, in words.
    Raises UsageError where a run to go on from was another one.
    """
    return await _Audit(client, prompts, plan, journal, watcher, against, machine).run(resume)


class _Audit:
    def __init__(
        self,
        client: Client,
        prompts: Sequence[Prompt],
        plan: Plan,
        journal: Journal | None,
        watcher: Watcher | None,
        against: Client | None,
        machine: str,
    ) -> None:
        if not prompts:
            raise UsageError("there is no prompt to ask")
        self._client, self._offered, self._plan, self._against = client, prompts, plan, against
        self._journal, self._watcher, self._machine = journal, watcher, machine
        self._digest = digest(prompts)
        self._left_out: Sequence[Prompt] = ()
        self._loop = asyncio.get_running_loop()
        self._state = _State(datetime.now(UTC), self._loop.time(), {})
        answered = journal.answered if journal is not None else (lambda answer, ask, role: None)
        self._lab = Lab(client, prompts, plan.settings, answered)

    async def run(self, resume: bool) -> AuditRecord:
        chosen = self._restored() if resume else None
        try:
            if chosen is None:
                chosen = await self._chosen()
            self._lab.prompts, self._left_out = chosen
            waiting = [probe for probe in self._plan.probes if not self._is_done(probe.name)]
            if self._watcher is not None:
                names, (budget, settings) = [probe.name for probe in waiting], (self._plan.budget, self._plan.settings)
                self._watcher.planned(names, len(self._lab.prompts), settings.users, budget.seconds)
            for i, probe in enumerate(waiting):
                await self._probe(probe, waiting[i + 1 :])
        except asyncio.CancelledError:
            self._state.interrupted = True
        return self._record(write=True)

    async def _chosen(self) -> Selection:
        """The prompts that the budget is enough for, by the first few references. All, where none was answered."""
        book = Book("plan", "", None)
        measured = []
        with suppress(BudgetSpent):
            for prompt in self._offered[:_FIRST]:
                answer = await self._lab.reference(self._lab.greedy(prompt), book)
                if answer is not None:
                    measured.append((prompt, answer))
        if not measured:
            return Selection(tuple(self._offered), ())
        pace = Pace.of(measured, self._lab.cold is Cache.COLD)
        self._take(affordable(self._plan, self._offered, pace))
        return within(self._plan, self._offered, pace)

    def _take(self, settings: Settings) -> None:
        self._plan = replace(self._plan, settings=settings)
        self._lab.settings = settings

    async def _probe(self, probe: Probe, later: Sequence[Probe]) -> None:
        """One probe, in rounds. It may use its share of the time that is left, and what it does not use is the others'."""
        if self._watcher is not None:
            self._watcher.began(probe.name)
        book = Book(probe.name, probe.question, probe.axis, probe.needs_witness, self._plan.settings.confidence)
        if self._watcher is not None:
            book.watch(self._watcher.progress)
        began, requests, tokens = self._loop.time(), self._lab.requests, self._lab.tokens
        partial = True
        try:
            await self._lab.rest()  # after what was cut off, not in this one's time
            async with asyncio.timeout(self._share(probe, later)):
                await self._rounds(probe, book)
            partial = False
        except TimeoutError:
            book.note("ended early, to leave time for the other probes")
        except BudgetSpent:
            book.note("ended early: the budget is spent")
        except asyncio.CancelledError:
            book.note("ended early: interrupted")
            raise
        finally:
            result = book.close(
                self._loop.time() - began, self._lab.requests - requests, self._lab.tokens - tokens, partial
            )
            kept = self._state.results.get(probe.name)  # of a run that was cut off here before
            if kept is None or not partial or result.compared >= kept.compared:
                self._state.results[probe.name] = result
            if self._watcher is not None:
                self._watcher.ended(result)
            self._record(write=True)

    async def _rounds(self, probe: Probe, book: Book) -> None:
        before = -1
        while before < book.compared and (before < 0 or book.compared < (self._plan.needed or 0)):
            before = book.compared
            await probe.run(self._lab, book)

    def _share(self, probe: Probe, later: Sequence[Probe]) -> float | None:
        """Seconds: its part, by what it asks, of those left, and more since estimates err, but no more than a tenth of the
        others' part: a server slower than planned shall be asked a little less of everything."""
        if self._plan.budget.seconds is None:
            return None
        left = max(0.0, self._plan.budget.seconds - (self._loop.time() - self._client.opened))
        mine, theirs = self._weight(probe), sum(self._weight(other) for other in later)
        part = left * mine / (mine + theirs)
        return part + min(0.6 * part, 0.1 * (left - part))

    def _weight(self, probe: Probe) -> float:
        forgets = self._lab.cold is Cache.COLD
        return Work.of(probe, len(self._lab.prompts), self._plan.settings.users, forgets).in_time

    def _is_done(self, name: str) -> bool:
        """What was cut off is asked again, and kept until it is."""
        return name in self._state.results and not self._state.results[name].partial

    def _restored(self) -> Selection | None:
        """The prompts of the run that the journal holds, its results and references taken over."""
        record = self._journal.record() if self._journal is not None else None
        if record is None or self._journal is None:
            return None
        if self._plan.fewer_users:
            users = record.run.users
            self._take(replace(self._plan.settings, users=users, levels=levels(users)))
        _must_be_same(record, self._run(record.run.prompts), self._client.identity(), self._second())
        self._state.against = record.against
        planned = {probe.name for probe in self._plan.probes}
        for result in record.probes:
            if result.name not in planned or result.verdict not in _LATER:
                self._state.results[result.name] = result
        for ask, answer in self._journal.references(self._offered):
            self._lab.remember(ask, answer)
        self._state.before = record.run.seconds
        left_out = set(record.run.left_out)
        kept = [prompt for prompt in self._offered if prompt.key not in left_out]
        return Selection(tuple(kept[: record.run.prompts]), tuple(p for p in self._offered if p.key in left_out))

    def _second(self) -> EndpointIdentity | None:
        return self._against.identity() if self._against is not None else None

    def _run(self, count: int) -> Run:
        settings = self._plan.settings
        return Run(
            tool=f"queueproof {__version__}",
            started=self._state.started.isoformat(timespec="seconds"),
            seconds=self._state.before + self._loop.time() - self._state.began,
            seed=settings.seed,
            prompts=count,
            prompts_digest=self._digest,
            max_tokens=settings.max_tokens,
            users=settings.users,
            confidence=settings.confidence,
            budget=str(self._plan.budget),
            machine=self._machine,
            interrupted=self._state.interrupted,
            left_out=tuple(prompt.key for prompt in self._left_out),
        )

    def _record(self, write: bool) -> AuditRecord:
        found = self._state.results
        planned = {probe.name for probe in self._plan.probes}
        results = [found[p.name] if p.name in found else _not_run(p) for p in self._plan.probes]
        results += [result for name, result in found.items() if name not in planned]  # of the run that this goes on from
        results = judged(corrected(results, self._plan.settings.confidence))
        identity = self._client.identity()
        record = AuditRecord(
            run=self._run(len(self._lab.prompts)),
            endpoint=identity,
            probes=tuple(results),
            causes=attribute(results, identity),
            against=self._second() or self._state.against,
            problems=self._client.problems(),
        )
        if write and self._journal is not None:
            self._journal.write(record)
        return record


def _not_run(probe: Probe) -> ProbeResult:
    book = Book(probe.name, probe.question, probe.axis, probe.needs_witness)
    return replace(book.close(0.0, 0, 0, True), reason="the run ended before it")


def _must_be_same(
    record: AuditRecord, run: Run, identity: EndpointIdentity, against: EndpointIdentity | None
) -> None:
    """Raises UsageError that names what is not as it was in the run to go on from."""
    pairs = [
        (name, getattr(record.run, name), getattr(run, name))
        for name in ("seed", "prompts_digest", "max_tokens", "users", "confidence")
    ]
    told = ("url", "model", "version")
    pairs += [(name, getattr(record.endpoint, name), getattr(identity, name)) for name in told]
    if record.against is not None and against is not None:
        pairs += [(f"{name} of --against", getattr(record.against, name), getattr(against, name)) for name in told]
    other = [f"{name} {was!r} is now {now!r}" for name, was, now in pairs if was != now]
    if other:
        raise UsageError(f"this is not the run to go on from: {'; '.join(other)}; take another --out")
