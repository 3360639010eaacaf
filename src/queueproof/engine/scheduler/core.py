"""Who computes what in the next step: a token budget, chunked prefill, and preemption by recompute.

Admission reserves blocks for every known token of a sequence, so only decode grows. When blocks run out, the
sequence admitted last gives up its own and waits for another turn. The one admitted first is therefore never
preempted by another and always goes on; every admitted request fits in the pool alone (`Engine.make_request`),
so all of them end.

A step may be scheduled while the one before is under way. Blocks that are given up meanwhile may be handed out at once,
although the device may still read or write them for that step: it works in order, so what their next holder does to them
comes after.
"""

from __future__ import annotations

import time
from collections.abc import Collection

from queueproof.contract.errors import EngineError
from queueproof.engine.kv.pool import BlockPool
from queueproof.engine.kv.prefix_index import extend_chain
from queueproof.engine.request import Sequence, Status
from queueproof.engine.scheduler.policies import Policy
from queueproof.engine.speculation import propose
from queueproof.engine.stats import EngineStats


class Scheduler:
    """budget: tokens of one step. beside_decode: those of prefills among them, where sequences of the step
    decode, or as many as these are.
    max_seqs: sequences of one step. guesses: most guesses for each sequence in decode."""

    def __init__(
        self,
        pool: BlockPool,
        policy: Policy,
        *,
        budget: int,
        beside_decode: int,
        max_seqs: int,
        guesses: int,
        stats: EngineStats,
    ) -> None:
        self.pool, self.policy, self.stats = pool, policy, stats
        self._budget, self._beside_decode = budget, beside_decode
        self._max_seqs, self._most_guesses = max_seqs, guesses
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []  # in order of admission
        self._free_rows = list(reversed(range(max_seqs)))

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    def add(self, sequence: Sequence) -> None:
        """Pre: it fits in the pool when it is alone."""
        self.waiting.append(sequence)

    def remove(self, ended: Collection[Sequence]) -> None:
        """Takes out finished sequences. Post: they hold no block. Not between `schedule` and the beginning of its step."""
        if not ended:
            return
        self.running = [s for s in self.running if s.status is not Status.FINISHED]
        if any(sequence.row < 0 for sequence in ended):
            self.waiting = [s for s in self.waiting if s.status is not Status.FINISHED]
        for sequence in ended:
            self._give_up_place(sequence)

    def schedule(self, settled: bool = True) -> list[Sequence] | None:
        """The sequences of the next step, with `scheduled` and `guesses` set and blocks for all of them.

        settled: no step is under way. Otherwise the step may be empty, as tokens that end an answer are not known yet; and
        None says that a sequence would have to be preempted: that waits until all tokens are known, and may then turn out
        to be needless.
        Post: if settled, not empty while there is work; the sum of `scheduled` is at most the budget.
        """
        budget = self._share_budget()
        undisturbed = self._allocate(settled)
        if undisturbed is None:
            return None
        if undisturbed:
            self._admit(budget)
        step = [sequence for sequence in self.running if sequence.scheduled]
        if settled and not step and self.has_work:
            raise EngineError("the scheduler has work and found nothing to do")
        return step

    def publish(self, sequence: Sequence) -> None:
        """Offers the whole blocks of known tokens to the prefix cache, those that a step under way computes included:
        whoever finds them computes with them later, and the device works in order."""
        pool = self.pool
        whole = min(sequence.computed, sequence.length) // pool.block_size
        if pool.index is None or whole <= sequence.published:
            return
        extend_chain(sequence.hashes, sequence.request.cache_root, sequence.tokens, whole, pool.block_size)
        for i in range(sequence.published, whole):
            pool.publish(sequence.blocks[i], sequence.hashes[i])
        sequence.published = whole

    def check_integrity(self) -> None:
        """Raises AssertionError unless blocks, holders and progress agree. For tests, between steps."""
        size = self.pool.block_size
        self.pool.check_integrity([sequence.blocks for sequence in self.running])
        writers: set[int] = set()
        for sequence in self.running:
            assert sequence.status is Status.RUNNING
            assert 0 <= sequence.computed < sequence.length + sequence.in_flight <= sequence.answer_end
            assert (sequence.draw_row >= 0) == (sequence.in_flight > 0)
            assert len(sequence.blocks) * size >= sequence.computed
            own = sequence.blocks[sequence.computed // size :]
            assert not writers.intersection(own), "two sequences write one block"
            writers.update(own)
        shared = {block for s in self.running for block in s.blocks[: s.computed // size]}
        assert not writers & shared, "a block that another sequence reads will be written"
        if self.pool.index is not None:
            assert not any(block in self.pool.index for block in writers), "a published block will be written"
        for sequence in self.waiting:
            assert sequence.status is Status.WAITING and not sequence.blocks and not sequence.computed
            assert not sequence.in_flight and sequence.row < 0
        rows = [sequence.row for sequence in self.running]
        assert sorted(rows + self._free_rows) == list(range(self._max_seqs)), "two sequences have one row"

    def _share_budget(self) -> int:
        """Sets `scheduled` of the running: decodes first, then chunks of prefill, then guesses. Returns what is left for
        the prefills of those that wait."""
        budget, prefills = self._budget, []
        for sequence in self.running:
            drawn = sequence.length + sequence.in_flight
            sequence.guesses = sequence.scheduled = 0
            if drawn - sequence.computed > 1:
                prefills.append(sequence)
            elif budget and drawn < sequence.answer_end:  # the last token of an answer is never fed
                sequence.scheduled = 1
                budget -= 1
        decodes = self._budget - budget
        for_prefill = min(budget, max(self._beside_decode, decodes)) if decodes else budget
        for sequence in prefills:
            sequence.scheduled = min(sequence.length - sequence.computed, for_prefill)
            for_prefill -= sequence.scheduled
            budget -= sequence.scheduled
        if self._most_guesses and budget:
            for sequence in self.running:
                if sequence.length - sequence.computed == 1 and sequence.scheduled:
                    budget -= self._guess(sequence, budget)
        return min(budget, for_prefill)

    def _guess(self, sequence: Sequence, budget: int) -> int:
        """Puts guesses behind the tokens of a sequence in decode; how many."""
        # The last token of an answer is never fed, so a guess in its place would be of no use.
        most = min(self._most_guesses, budget, sequence.answer_end - sequence.length - 1)
        if most < 1:
            return 0
        guesses = propose(sequence.tokens[: sequence.length], most)
        sequence.put_guesses(guesses)
        return guesses.size

    def _allocate(self, settled: bool) -> bool | None:
        """Blocks for what is scheduled, in order of admission. False if a sequence had to be preempted; None if one
        would have to be and a step is under way."""
        pool, size, undisturbed = self.pool, self.pool.block_size, True
        for sequence in list(self.running):
            if sequence.computed + sequence.scheduled <= len(sequence.blocks) * size:
                continue  # most of the time; also of one that was preempted for the sake of one before it
            while True:
                missing = pool.blocks_for(sequence.computed + sequence.scheduled) - len(sequence.blocks)
                if missing <= pool.free:
                    break
                if sequence.guesses:
                    sequence.scheduled -= sequence.guesses
                    sequence.guesses = 0
                    continue
                if not settled:
                    return None
                undisturbed = False
                if self._preempt_last() is sequence:
                    return False
            if missing > 0:
                sequence.blocks += pool.allocate(missing)
        return undisturbed

    def _preempt_last(self) -> Sequence:
        """The sequence admitted last gives up its blocks and waits in front of all others."""
        if len(self.running) == 1:
            raise EngineError("one sequence alone does not fit in the KV cache; it should have been refused")
        sequence = self.running.pop()
        self._give_up_place(sequence)
        sequence.status = Status.WAITING
        self.waiting.insert(0, sequence)
        self.stats.preemptions += 1
        return sequence

    def _give_up_place(self, sequence: Sequence) -> None:
        self.pool.release(sequence.blocks)
        sequence.blocks = []
        if sequence.row >= 0:
            self._free_rows.append(sequence.row)
            sequence.row = -1
        sequence.computed = sequence.published = sequence.scheduled = sequence.guesses = 0

    def _admit(self, budget: int) -> None:
        while self.waiting and budget and len(self.running) < self._max_seqs:
            i = self.policy.pick(self.waiting)
            sequence = self.waiting[i]
            if not self._place(sequence):
                return
            del self.waiting[i]
            self.running.append(sequence)
            sequence.status, sequence.row = Status.RUNNING, self._free_rows.pop()
            sequence.scheduled = min(sequence.length - sequence.computed, budget)
            budget -= sequence.scheduled

    def _place(self, sequence: Sequence) -> bool:
        """Blocks for all known tokens, cached ones where there are. False, and nothing taken, if they are too few."""
        pool = self.pool
        cached = self._cached_blocks(sequence)
        missing = pool.blocks_for(sequence.length) - len(cached)
        if missing > pool.free_after_sharing(cached):
            return False
        pool.share(cached)
        sequence.blocks = cached + pool.allocate(missing)
        sequence.computed = len(cached) * pool.block_size
        sequence.published = len(cached)
        if not sequence.was_admitted:
            sequence.was_admitted = True
            self._count_admission(sequence)
        return True

    def _count_admission(self, sequence: Sequence) -> None:
        request, stats = sequence.request, self.stats
        if request.first_scheduled_time is None:
            request.first_scheduled_time = time.monotonic()
        if sequence.index == 0:
            stats.prompt_tokens += request.prompt_length
            request.num_cached_tokens = sequence.computed
        if self.pool.index is not None:
            stats.prefix_cache_query_tokens += request.prompt_length
            stats.prefix_cache_hit_tokens += sequence.computed

    def _cached_blocks(self, sequence: Sequence) -> list[int]:
        """Never with the last token in it: its logits are needed."""
        pool = self.pool
        if pool.index is None or (sequence.index == 0 and sequence.request.needs_prompt_logits):
            return []
        whole = (sequence.length - 1) // pool.block_size
        extend_chain(sequence.hashes, sequence.request.cache_root, sequence.tokens, whole, pool.block_size)
        return pool.lookup(sequence.hashes[:whole])
