"""Does it matter whether the prefix cache knew the prompt: whole, in part, and at the ends of its blocks?"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from queueproof.audit import names
from queueproof.audit.ask import Answer, Ask, Cache, Cold, Prompt
from queueproof.audit.book import Book
from queueproof.audit.lab import Lab, warm
from queueproof.audit.probes.shaping import ExactLength, begun, some, words
from queueproof.contract.axes import Axis

TTFT_RATIO = 1.3  # by which a warm long prompt's first token must come sooner, where nothing else shows a hit
_BLOCK = 16  # tokens, where the endpoint does not say: vLLM's and Queueproof's default
_PAIRS = 8  # of long prompts. The second-smallest of 8 ratios is a lower bound of the median at 1 - 9/256 = 96%
_LONG, _LONG_REPORTED = 600, 1200  # words; where hits are reported, as long as hosted services need to cache at all
_ENOUGH = 4  # pairs without a hit after which short prompts, and then long ones, are given up


@dataclass(slots=True)
class _Hits:
    """What pairs showed. told: pairs of which the hit is known; hit: those whose warm ask took more from the cache."""

    told: int = 0
    hit: int = 0
    source: str = "cached_tokens"
    cold: list[float] = field(default_factory=list)
    warm: list[float] = field(default_factory=list)

    def times(self, cold: Answer | None, warm: Answer | None) -> None:
        if cold is not None and warm is not None and cold.ttft is not None and warm.ttft is not None:
            self.cold.append(cold.ttft)
            self.warm.append(warm.ttft)


class CacheProbe:
    """unique: where new beginnings and names of caches come from; never the same twice, in two runs neither.

    A pair is one request on a cold cache and again on a warm one. Where the endpoint cannot forget, each pair begins in a
    way never seen before: its first ask is cold, its second warm. A warm ask that is known to have hit nothing is cold
    against cold, and counted as that.
    """

    name = names.CACHE
    question = "Does it matter whether the prefix cache knew the prompt?"
    axis: Axis | None = Axis.CACHE
    needs_witness = True
    alone = 5.0
    together = 0.0

    def __init__(self, unique: Callable[[], random.Random] = random.SystemRandom) -> None:
        self._unique = unique

    async def run(self, lab: Lab, book: Book) -> None:
        await _Round(lab, book, self._unique()).run()


class _Round:
    def __init__(self, lab: Lab, book: Book, rng: random.Random) -> None:
        self._lab, self._book, self._rng = lab, book, rng
        self._name = f"{rng.getrandbits(48):012x}"
        self._can_forget = lab.cold is Cache.COLD
        told = lab.endpoint.block_size
        self._block = told or _BLOCK
        self._least = round(1.5 * told) if told is not None else 24  # words of a beginning that fills a block
        self._hits = _Hits()
        self._reports = self._counters = False
        book.note(f"block size: {self._block} tokens ({'told by the endpoint' if told else 'assumed'})")

    async def run(self) -> None:
        counters = await self._lab.endpoint.counters()
        self._counters = counters is not None and counters.cache_hit_tokens is not None
        if not self._can_forget:
            self._book.note(
                "this endpoint has no way to forget a prompt (no cache_salt, cache_prompt or reset route): each cold ask "
                "began in a way never seen before, and the same ask cannot be cold twice"
            )
        done = False
        try:
            await self._whole()
            if not self._given_up:
                await self._partial()
                await self._boundaries()
            if not self._hits.hit:
                await self._long()
            done = True
        finally:
            self._say(done)

    @property
    def _given_up(self) -> bool:
        return self._hits.told >= _ENOUGH and not self._hits.hit

    # The parts of a round

    async def _whole(self) -> None:
        """Each prompt of the run, cold and warm."""
        controls = {prompt.key for prompt in some(self._lab.prompts, 0.2, 4)}
        for i, prompt in enumerate(self._lab.prompts):
            if self._given_up:
                return
            asked = await self._long_enough(prompt)
            await self._pair(asked, f"whole-{i}", names.WHOLE, control=prompt.key in controls)

    async def _long_enough(self, prompt: Prompt) -> Prompt:
        """The prompt, with something before it where it must be new, or is too short to fill a block."""
        beginning = words(self._rng, self._least)
        if not self._can_forget:
            return begun(prompt, beginning, f"{prompt.key}+new")
        known = await self._lab.reference(self._lab.greedy(prompt), self._book)
        short = known is not None and known.prompt_tokens is not None and known.prompt_tokens <= self._block
        return begun(prompt, beginning, f"{prompt.key}+long") if short else prompt

    async def _partial(self) -> None:
        """Prompts that share a long beginning with one that was asked before."""
        shared = words(self._rng, max(96, 2 * self._least))
        forms = [_form(prompt) for prompt in self._lab.prompts]
        form = max(forms, key=forms.count)  # a template puts other tokens before the beginning of another form
        alike = [prompt for prompt in self._lab.prompts if _form(prompt) == form]
        first, *rest = some(alike, 0.25, 5)
        primer = self._lab.greedy(begun(first, shared, f"{first.key}+shared"))
        name = f"{self._name}-partial"
        if not self._can_forget and rest:
            self._book.note(
                "partial: compared with a whole hit, as a prompt that shares a known beginning is never cold"
            )
        primed = False
        for prompt in rest:
            if self._lab.endpoint.cold_by is Cold.RESET:
                primed = not await self._lab.endpoint.forget()
            if not primed:
                await self._prime(primer, name)
                primed = True
            ask = self._lab.greedy(begun(prompt, shared, f"{prompt.key}+shared"))
            part, part_hit = await self._asked(warm(ask, name), "warm")
            if part is None:
                continue
            if self._can_forget:
                cold, cold_hit = await self._asked(ask, "cold")
                self._compare(cold, part, names.PARTIAL, _more(cold_hit, part_hit), ("cold", "partly warm"))
            else:
                whole, whole_hit = await self._asked(warm(ask, name), "warm")
                self._compare(part, whole, names.PARTIAL, _more(part_hit, whole_hit), ("partly warm", "warm"))

    async def _boundaries(self) -> None:
        """Whole prompts of one token less than some blocks, of just that many, and of one token more."""
        told = self._lab.endpoint.block_size is not None
        chat = any(prompt.messages is not None for prompt in self._lab.prompts)
        exact = ExactLength(self._lab, self._book, self._rng, chat)
        least = await exact.least()
        if least is None:
            self._book.note("no prompt was cut at a block's boundary: the endpoint does not tell how long a prompt is")
            return
        # Prompts of one block are left out: their last token is always computed, so that nothing of them is hit.
        blocks = (
            [2, 3, 4] if told else [2, 4, 8]
        )  # where a block's size is a guess, these are also twice and more of it
        while blocks[0] * self._block <= least + self._block:  # of which all but a template is new
            blocks = [k + 1 for k in blocks] if told else [2 * k for k in blocks]
        each = max(3, min(6, len(self._lab.prompts) // 4))
        for i in range(each):
            for offset in (-1, 0, 1):
                await self._boundary(exact, blocks[i % len(blocks)] * self._block, offset, i)

    async def _boundary(self, exact: ExactLength, end: int, offset: int, i: int) -> None:
        key = f"boundary {end}{offset:+d} #{i}"
        for _ in range(2):  # once more, where the first turned out to have another length
            prompt = await exact.prompt(key, end + offset)
            if prompt is None:
                return
            ask = self._lab.greedy(prompt)
            cold, cold_hit = await self._asked(ask, "cold")
            if cold is None:
                return
            length = cold.prompt_tokens if cold.prompt_tokens is not None else end + offset
            exact.was(end + offset, length)
            if length == end + offset:
                group = names.BOUNDARY + (f"{offset:+d}" if offset else "0")
                await self._warmed(ask, cold, cold_hit, key, group, float(offset))
                return
        self._book.note("some prompts at a block's boundary were left out: they could not be made of the exact length")

    async def _long(self) -> None:
        """Long new prompts, where shorter ones showed no hit: their warm first token must come sooner."""
        count = _LONG_REPORTED if self._reports else _LONG
        cold_times: list[float] = []
        warm_times: list[float] = []
        base = self._lab.prompts[0]
        for i in range(_PAIRS):
            ask = self._lab.greedy(begun(base, words(self._rng, count), f"{base.key}+{count} #{i}"))
            cold, cold_hit = await self._asked(ask, "cold")
            if cold is None:
                return
            answer, hit = await self._asked(await self._prepared(ask, f"long-{i}"), "warm")
            moved = _more(cold_hit, hit)
            self._hits.times(cold, answer)
            self._hits.told += moved is not None
            self._hits.hit += bool(moved)
            self._book.compare(cold, answer, names.WHOLE_LONG, "cold", "warm")
            if answer is not None and cold.ttft is not None and answer.ttft is not None:
                cold_times.append(cold.ttft)
                warm_times.append(answer.ttft)
            if moved is False and self._given_up and i + 1 >= _ENOUGH:
                return
        if not self._hits.hit:
            self._say_ratio(cold_times, warm_times, count)

    # Pairs

    async def _pair(self, prompt: Prompt, name: str, group: str, control: bool) -> None:
        ask = self._lab.greedy(prompt)
        if self._can_forget and prompt in self._lab.prompts:
            cold = await self._lab.reference(ask, self._book)
            cold_hit: float | None = 0.0
        else:
            cold, cold_hit = await self._asked(ask, "cold")
        if cold is None:
            return
        answer = await self._warmed(ask, cold, cold_hit, name, group, None)
        if not control:
            return
        if self._can_forget:
            again = await self._lab.alone(ask, "cold again", self._book)
            self._book.compare(cold, again, names.COLD_AGAIN, "cold", "cold again")
        elif answer is not None:
            again = await self._lab.alone(ask, "warm again", self._book)
            self._book.compare(answer, again, names.WARM_AGAIN, "warm", "warm again")

    async def _warmed(
        self, ask: Ask, cold: Answer, cold_hit: float | None, name: str, group: str, x: float | None
    ) -> Answer | None:
        """The warm side of a pair, compared with the cold one."""
        answer, hit = await self._asked(await self._prepared(ask, name), "warm")
        moved = _more(cold_hit, hit)
        if moved is not False:
            self._hits.times(cold, answer)
        self._compare(cold, answer, group, moved, ("cold", "warm"), x)
        return answer

    async def _prepared(self, ask: Ask, name: str) -> Ask:
        """The ask that finds itself in the cache. Without a way to forget, the cold ask has put it there."""
        name = f"{self._name}-{name}"
        if self._can_forget:
            await self._prime(ask, name)
        return warm(ask, name)

    async def _prime(self, ask: Ask, name: str) -> None:
        await self._lab.alone(replace(warm(ask, name), max_tokens=1, logprobs=False), "prime", self._book)

    def _compare(
        self,
        a: Answer | None,
        b: Answer | None,
        group: str,
        moved: bool | None,
        sides: tuple[str, str],
        x: float | None = None,
    ) -> None:
        if a is None or b is None:
            return
        self._hits.told += moved is not None
        self._hits.hit += bool(moved)
        if moved is False:
            self._book.compare(a, b, names.COLD_AGAIN, "cold", "cold again")
        else:
            self._book.compare(a, b, group, *sides, x)

    async def _asked(self, ask: Ask, role: str) -> tuple[Answer | None, float | None]:
        """An answer, and how many tokens of the prompt came from the cache, where that can be known."""
        look = self._counters and not self._reports
        before = await self._lab.endpoint.counters() if look else None
        answer = await self._lab.alone(ask, role, self._book)
        if answer is None:
            return None, None
        if answer.cached_tokens is not None:
            self._reports, self._hits.source = True, "cached_tokens"
            return answer, float(answer.cached_tokens)
        if self._reports:
            return answer, 0.0  # those that report hits leave the field out where there was none
        after = await self._lab.endpoint.counters() if look else None
        was = before.cache_hit_tokens if before is not None else None
        now = after.cache_hit_tokens if after is not None else None
        if was is None or now is None:
            return answer, None
        self._hits.source = "/metrics"
        return answer, now - was

    # What it shows

    def _say(self, done: bool) -> None:
        hits = self._hits
        if hits.hit:
            claim = f"{hits.hit} of {hits.told} warm asks took more of the prompt from the cache than the cold ones"
            self._book.witness(claim, hits.source, hits.hit, max(1, hits.told // 2))
        elif hits.told:
            why = f"0 of {hits.told} did, by {hits.source}: prefix caching is off, or begins at longer prompts"
            self._book.no_witness("warm asks take tokens from the cache", why)
        elif not done:
            self._book.no_witness("warm asks take tokens from the cache", "the probe ended before this could be seen")
        if hits.cold:
            self._book.series("TTFT cold", "s", hits.cold)
            self._book.series("TTFT warm", "s", hits.warm)

    def _say_ratio(self, cold: list[float], warm: list[float], count: int) -> None:
        """The witness of last resort. Exact: by the sign test, the median ratio is above the second-smallest of 8."""
        if self._hits.told:
            return  # the endpoint itself says that nothing was hit
        ratios = sorted(c / w for c, w in zip(cold, warm, strict=True) if w > 0)
        if len(ratios) < _PAIRS:
            self._book.no_witness(
                "warm asks take tokens from the cache",
                "the endpoint offers neither cached_tokens nor counters of hits, and too few first tokens could be timed; "
                "streams with usage, or /metrics, would show it",
            )
            return
        claim = (
            f"of {_PAIRS} prompts of {count} words the first token came sooner when warm, in the median by the factor "
            f"{ratios[1]:.2f} or more (exact, 96%; {TTFT_RATIO} is needed, as neither cached_tokens nor counters are offered)"
        )
        self._book.witness(claim, "TTFT", ratios[1], TTFT_RATIO)


def _more(cold: float | None, warm: float | None) -> bool | None:
    """Whether the warm ask took more from the cache. None where it cannot be told."""
    return None if warm is None else warm > (cold or 0.0)


def _form(prompt: Prompt) -> str:
    """What stands before the prompt's first word."""
    if prompt.messages is not None:
        return prompt.messages[0][0]
    return "text" if prompt.text is not None else "ids"
