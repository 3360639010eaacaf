"""A step in two halves: `begin` hands its work to the device, `collect` waits for its tokens and books them.

On an asynchronous backend the engine begins the next step between the two. What that step needs to know of the one before
is then a place, not a value: a sequence goes on from "the token that row r of the last draw gives". What cannot be said that
way (`needs_tokens`) waits for the tokens.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from queueproof.contract.errors import GuideError, NumericalError
from queueproof.engine.request import Request, Sequence, Status
from queueproof.engine.runner import Runner
from queueproof.engine.sampler import RowPlan, Sampler
from queueproof.engine.scheduler.core import Scheduler
from queueproof.kernels.ops import Draw, Drawn, RowOps


@dataclass(slots=True)
class Step:
    """A step that was begun. starts: the first token row of each sequence, and their number at the end. prefills: which
    sequences are not in decode. plans: the rows of each of its draws; drawn: what all but the last one gave."""

    sequences: list[Sequence]
    starts: list[int]
    prefills: list[int] = field(default_factory=list)
    plans: list[RowPlan] = field(default_factory=list)
    drawn: list[Drawn] = field(default_factory=list)
    last: Draw | None = None

    @property
    def can_stay(self) -> bool:
        """Whether the next step may refer to all that this one draws: the door lets it name rows of the last draw only."""
        return not self.drawn


@dataclass(slots=True)
class Collected:
    """news: requests that have something new, by id. ended: sequences that end with this step, still in their places.
    time: when its tokens were known, on the clock of time.monotonic.
    """

    time: float
    news: dict[str, Request] = field(default_factory=dict)
    ended: list[Sequence] = field(default_factory=list)


class Pipeline:
    """rows_at_once: how many rows of logits the executor has room for."""

    def __init__(self, runner: Runner, rows: RowOps, sampler: Sampler, scheduler: Scheduler, rows_at_once: int) -> None:
        self._runner, self._rows, self._sampler, self._scheduler = runner, rows, sampler, scheduler
        self._rows_at_once = rows_at_once

    def needs_tokens(self, sequences: list[Sequence]) -> bool:
        """Whether this step can begin only after the one before is collected: penalties count the token under way,
        guides follow it, and a step of several draws has to collect between them."""
        rows = len(sequences)
        for sequence in sequences:
            request = sequence.request
            if sequence.in_flight and request.needs_history:
                return True
            if request.needs_prompt_logits and sequence.index == 0:
                rows += sequence.scheduled
        return rows > self._rows_at_once

    def begin(self, sequences: list[Sequence]) -> Step:
        """Post: `computed`, `in_flight` and `draw_row` count this step as done; its guesses are taken for wrong."""
        step = Step(sequences, self._runner.forward(sequences))
        plan = self._plan(step)
        for first in range(0, len(plan.rows), self._rows_at_once):
            part = plan.part(first, first + self._rows_at_once)
            draw = self._rows.draw(self._runner.logits(part.rows), self._sampler.batch(part))
            if step.last is not None:
                step.drawn.append(step.last.result())
            step.plans.append(part)
            step.last = draw
        return step

    def collect(self, step: Step) -> Collected:
        """Waits for the step's tokens. What it gave for sequences that have ended since it began is dropped."""
        if step.last is not None:
            step.drawn.append(step.last.result())
        found = Collected(time.monotonic())
        for plan, drawn in zip(step.plans, step.drawn, strict=True):
            self._read(plan, drawn, found)
        size, stats = self._scheduler.pool.block_size, self._scheduler.stats
        for sequence in step.sequences:
            if sequence.guesses and sequence.error is None:
                stats.guesses_accepted += sequence.accepted
                sequence.computed += sequence.accepted
            if sequence.computed >= (sequence.published + 1) * size and sequence.error is None:
                self._scheduler.publish(sequence)
        for request in found.news.values():
            if request.first_token_time is None and any(s.answer_length for s in request.sequences):
                request.first_token_time = found.time
        return found

    def _plan(self, step: Step) -> RowPlan:
        """The rows to score and to draw from: one for each sequence whose last token is computed, and for each guess."""
        plan, stats, sequences = RowPlan(), self._scheduler.stats, step.sequences
        stats.steps += 1
        stats.largest_batch = max(stats.largest_batch, len(sequences))
        for i, sequence in enumerate(sequences):
            start = step.starts[i]
            request, scheduled, guesses = sequence.request, sequence.scheduled, sequence.guesses
            length = sequence.length + sequence.in_flight
            left = length - sequence.computed - (scheduled - guesses)
            if left or scheduled - guesses > 1 or length == request.prompt_length:
                step.prefills.append(i)
                stats.split_prefills += left > 0
            if request.needs_prompt_logits and sequence.index == 0:
                _plan_scores(plan, sequence, start)
            sequence.computed += scheduled - guesses
            if left:
                continue
            sequence.accepted = 0
            sequence.in_flight += 1
            sequence.draw_row = len(plan.rows)
            plan.add(sequence, start + scheduled - guesses - 1, length)
            for guess in range(1, guesses + 1):
                plan.add(sequence, start + scheduled - guesses - 1 + guess, length + guess, guesses=guess)
            stats.guesses_proposed += guesses
        stats.mixed_steps += 0 < len(step.prefills) < len(sequences)
        return plan

    def _read(self, plan: RowPlan, drawn: Drawn, found: Collected) -> None:
        stats, news = self._scheduler.stats, found.news
        tokens, logprobs, lses = drawn.tokens.tolist(), drawn.logprobs.tolist(), drawn.lse.tolist()
        for row, sequence in enumerate(plan.owners):
            token, score, request = tokens[row], plan.scores[row], sequence.request
            if sequence.status is Status.FINISHED:
                stats.discarded_tokens += score < 0 and not plan.guesses[row]
                continue
            if score < 0:
                if sequence.accepted != plan.guesses[row]:
                    continue  # the row follows a guess that was wrong
                if not plan.guesses[row]:
                    sequence.in_flight -= 1
                    if not sequence.in_flight:
                        sequence.draw_row = -1
            guide = sequence.guide
            if token < 0:
                sequence.fail(_nan_error(request, plan.positions[row] - 1))
                found.ended.append(sequence)
            elif guide is not None and score < 0 and not guide.accept(token):
                sequence.fail(GuideError(f"{request.request_id} cannot go on with its JSON schema: {guide.failure}"))
                found.ended.append(sequence)
            elif score >= 0:
                self._note_score(request, drawn, row, token)
                continue
            else:
                if sequence.top >= 0:
                    assert sequence.logprobs is not None
                    entry = self._sampler.position_logprobs(drawn, row, token, sequence.top, request.params.detokenize)
                    sequence.logprobs.append(entry)
                # A guess stands where the token goes.
                if sequence.accepted < sequence.guesses and sequence.tokens[sequence.length] == token:
                    sequence.accepted += 1
                sequence.append(token, logprobs[row], lses[row])
                stats.generated_tokens += 1
                if _stop_if_due(sequence, token):
                    found.ended.append(sequence)
            news[request.request_id] = request

    def _note_score(self, request: Request, drawn: Drawn, row: int, token: int) -> None:
        scored, most = request.prompt_logprobs, request.params.prompt_logprobs
        assert scored is not None and most is not None
        scored.append(self._sampler.position_logprobs(drawn, row, token, most, request.params.detokenize))


def _plan_scores(plan: RowPlan, sequence: Sequence, start: int) -> None:
    """Rows that score prompt tokens: each scores the token after its own. After a preemption: from where it had come to."""
    request = sequence.request
    end = min(sequence.computed + sequence.scheduled, request.prompt_length - 1)
    for position in range(request.prompt_scored, end + 1):
        plan.add(sequence, start + position - 1 - sequence.computed, position, score=request.prompt_token_ids[position])
    request.prompt_scored = max(request.prompt_scored, end + 1)


def _nan_error(request: Request, position: int) -> NumericalError:
    return NumericalError(f"the model gave a NaN among the logits of position {position} of {request.request_id}")


def _stop_if_due(sequence: Sequence, token: int) -> bool:
    """Ends the answer if its newest token does: an end token, a stop string, the end of its guide, or the last one allowed."""
    request = sequence.request
    may_stop = sequence.length - request.prompt_length > request.params.min_tokens
    stream = sequence.stream
    if may_stop and (token in request.eos_ids or token in request.stop_ids):
        if stream is not None and request.params.include_stop_str_in_output:
            stream.push(token, may_stop=False)
        sequence.finish("stop", None if token in request.eos_ids else token)
        return True
    found = stream.push(token, may_stop) if stream is not None else None
    if found is not None:
        sequence.finish("stop", found)
    elif sequence.guide is not None and sequence.guide.complete:
        sequence.finish("stop")
    elif sequence.length == sequence.answer_end:
        sequence.finish("length")
    else:
        return False
    return True
