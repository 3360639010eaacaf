"""The signs of the attribution table: each says in one sentence what it saw, with the numbers, or None where it is not so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from queueproof.audit import names
from queueproof.audit.findings import WEAK, Count, Findings, p_value, total

_LONG = (names.SHORT_BESIDE_LONG, names.LONG_BESIDE_SHORT)
_NOT_AT_BOUNDARIES = (names.WHOLE, names.WHOLE_LONG, names.PARTIAL)
_CHOICES = 3  # of one, or of two, out of three offsets
_COLD = (names.COLD_AGAIN, names.WARM_AGAIN)
_LATER_CROWDS = (names.ORDER, names.LOAD, names.LENGTHS)  # these run after `neighbours`


@dataclass(frozen=True, slots=True)
class Sign:
    """means: in general, for people. test: gives the sentence of a run."""

    means: str
    test: Callable[[Findings], str | None]


def changed(probe: str, *groups: str) -> Sign:
    def test(f: Findings) -> str | None:
        count = f.count(probe, *groups)
        return f.say(_label(probe, groups), count) if count.changed else None

    return Sign(f"`{_label(probe, groups)}` changed", test)


def held(probe: str, *groups: str) -> Sign:
    def test(f: Findings) -> str | None:
        count = f.count(probe, *groups)
        return f.say(_label(probe, groups), count) if count.held else None

    return Sign(f"`{_label(probe, groups)}` held", test)


def not_compared(probe: str) -> Sign:
    def test(f: Findings) -> str | None:
        return None if f.count(probe).compared else f"{probe}: not compared, so the two are not told apart"

    return Sign(f"`{probe}` was not run", test)


def more(probe: str) -> Sign:
    def test(f: Findings) -> str | None:
        return f.say(probe, f.count(probe)) if f.more(probe) else None

    return Sign(f"`{probe}` changed, more than asking alone twice and drift account for", test)


def certain(probe: str) -> Sign:
    def test(f: Findings) -> str | None:
        if not f.certain(probe):
            return None
        return f"{probe} against asked alone twice: p = {f.p[probe]:.2g} (Fisher's exact test, Holm over the probes)"

    return Sign(f"`{probe}` changed more than asking alone twice, by Fisher's exact test", test)


def proven(probe: str) -> Sign:
    def test(f: Findings) -> str | None:
        if not f.proven(probe):
            return None
        best = max(f.results[probe].witnesses, key=lambda witness: witness.value)
        return f"witness ({best.source}): {best.claim}"

    return Sign(f"the witnesses of `{probe}` moved", test)


def floor() -> Sign:
    def test(f: Findings) -> str | None:
        return f.say("asked alone again", f.floor) if f.floor.compared else None

    return Sign("what asking alone again gave", test)


def one_build() -> Sign:
    def test(f: Findings) -> str | None:
        return "" if len(f.identity.fingerprints) < 2 and not f.drifted else None

    return Sign("one `system_fingerprint`, and no drift, in the whole run", test)


def fingerprints() -> Sign:
    def test(f: Findings) -> str | None:
        seen = f.identity.fingerprints
        return f"{len(seen)} system_fingerprints answered: {', '.join(seen)}" if len(seen) > 1 else None

    return Sign("more than one `system_fingerprint` answered", test)


def more_or_floor() -> Sign:
    def test(f: Findings) -> str | None:
        return changed(names.ALONE).test(f) or (changed(names.DRIFT).test(f) if f.drifted else None)

    return Sign("`alone` or `drift` changed", test)


def alternating() -> Sign:
    def test(f: Findings) -> str | None:
        twice, more = f.two_answers()
        if not f.floor.changed or not twice or more:
            return None
        return f"{twice} prompts got two answers alone, each at least twice, and none got a third"

    return Sign("answers alone go to and fro between two, and none is ever a third", test)


def drifted() -> Sign:
    def test(f: Findings) -> str | None:
        return f.say("the same request at the end of the run", f.count(names.DRIFT)) if f.drifted else None

    return Sign("`drift` changed, more than asking alone twice accounts for", test)


def drift_stays() -> Sign:
    def test(f: Findings) -> str | None:
        good, all_ = f.count(names.DRIFT, names.FOR_GOOD).changed, f.count(names.DRIFT).changed
        return f"of these, {good} gave the new answer once more" if good and good >= 0.9 * all_ else None

    return Sign("what changed at the end of the run stayed as it then was", test)


def sampled() -> Sign:
    def test(f: Findings) -> str | None:
        parts = [f"{n} of {probe}" for probe in f.results if (n := f.sampled(probe))]
        if not parts:
            return None
        return (
            f"another token after log-probabilities equal to the last bit, although the best was clearly ahead: "
            f"{', '.join(parts)}"
        )

    return Sign("tokens change after equal log-probabilities, where the best was clearly ahead", test)


def sampled_in(probe: str) -> Sign:
    def test(f: Findings) -> str | None:
        return f"{probe}: {f.sampled(probe)} by the choice of the token" if f.sampled(probe) else None

    return Sign(f"the choice of tokens explains what changed in `{probe}`", test)


def sampled_clearly() -> Sign:
    def test(f: Findings) -> str | None:
        count = sum(map(f.sampled, f.results))
        return f"{count} such changes in all" if count > 1 else None

    return Sign("more than one such change", test)


def crowd_seeds_only() -> Sign:
    def test(f: Findings) -> str | None:
        alone, crowd = f.count(names.SEEDS, names.SAME_SEED), f.count(names.SEEDS, names.SAME_SEED_CROWD)
        if not alone.held or not crowd.changed:
            return None
        return f"{f.say('same seed in a crowd', crowd)}, {f.say('alone', alone)}"

    return Sign("a seed repeats its answer alone, not in a crowd", test)


# Warm-up


def _first_asks_sign(limit: Callable[[Findings], float]) -> Callable[[Findings], str | None]:
    def test(f: Findings) -> str | None:
        if f.first_asks(limit(f)) is None:
            return None
        second, third = f.count(names.ALONE, names.SECOND), f.count(names.ALONE, names.THIRD)
        return (
            f"{f.say('the second ask against the first', second)}; {f.say('the third against the second', third)}; "
            "none changed more than once"
        )

    return test


def first_asks_only() -> Sign:
    test = _first_asks_sign(lambda f: WEAK)
    return Sign("`alone`: answers differ from the first ones, and from then on they stay", test)


def first_asks_clearly() -> Sign:
    return Sign("so many stayed that chance would not (each with 1/2 at most)", _first_asks_sign(lambda f: f.alpha))


def warm_without_cold() -> Sign:
    def test(f: Findings) -> str | None:
        if not f.cannot_forget or not f.count(names.CACHE).changed:
            return None
        return "the first ask of each prompt is cold here and the later ones are warm, and `cache` changed"

    return Sign("the endpoint cannot forget, and `cache` changed", test)


def _first_crowds(f: Findings) -> tuple[Count, Count] | None:
    """Of `neighbours`: the groups that changed, and all that came after them, if each of these held and one repeats them."""
    groups = f.groups(names.NEIGHBOURS)
    last = max((i for i, group in enumerate(groups) if group.changed), default=None)
    if last is None:
        return None
    early, late = [group for group in groups[: last + 1] if group.changed], groups[last + 1 :]
    again = {group.x for group in late if group.name.endswith(names.AGAIN)}
    if not again or not any(group.x in again for group in early):
        return None
    return total(early), total(late)


def _first_crowds_sign(limit: Callable[[Findings], float]) -> Callable[[Findings], str | None]:
    def test(f: Findings) -> str | None:
        found = _first_crowds(f)
        if found is None or p_value(*found) > limit(f):
            return None
        if any(count.changed for count in map(f.count, _LATER_CROWDS)) and p_value(*found) > f.alpha:
            return None
        return f"{f.say('in the first crowds', found[0])}; {f.say('in all later ones, as large', found[1])}"

    return test


def first_crowds_only() -> Sign:
    test = _first_crowds_sign(lambda f: WEAK)
    means = "`neighbours` changed at first only: the same number of users later, and all crowds that followed, held"
    return Sign(means, test)


def first_crowds_clearly() -> Sign:
    return Sign(
        "first crowds change more than later ones by Fisher's exact test", _first_crowds_sign(lambda f: f.alpha)
    )


# Crowds


def levels() -> Sign:
    def test(f: Findings) -> str | None:
        by_users: dict[float, Count] = {}
        for group in f.groups(names.NEIGHBOURS):
            if group.x is not None:
                old = by_users.get(group.x, Count(0, 0))
                by_users[group.x] = Count(old.changed + group.changed, old.compared + group.compared)
        ordered = sorted(by_users.items())
        parts = [f"{count.changed} of {count.compared} at {users:g} users" for users, count in ordered]
        first = next((i for i, (_, count) in enumerate(ordered) if count.changed), None)
        if first is None:
            return None
        begins = f"; it begins between {ordered[first - 1][0]:g} and {ordered[first][0]:g}" if first else ""
        return f"changed: {', '.join(parts)}{begins}"

    return Sign("at how many users it begins", test)


def _in_line(f: Findings) -> tuple[Count, Count]:
    return f.count(names.ORDER, names.LAST_IN_LINE), f.count(names.ORDER, names.FIRST_IN_LINE)


def _in_line_sign(limit: Callable[[Findings], float]) -> Callable[[Findings], str | None]:
    def test(f: Findings) -> str | None:
        last, first = _in_line(f)
        if not (f.above(names.ORDER, last) and first.held and p_value(last, first) <= limit(f)):
            return None
        return f"{f.say('last in line', last)}; {f.say('first in line, of as many', first)}"

    return test


def last_in_line_only() -> Sign:
    test = _in_line_sign(lambda f: WEAK)
    return Sign("`order`: the last in line of a crowd changed, the first in line of one as large held", test)


def last_in_line_clearly() -> Sign:
    return Sign(
        "`order`: the last in line changed more than the first by Fisher's exact test", _in_line_sign(lambda f: f.alpha)
    )


def _long(f: Findings) -> tuple[Count, Count]:
    """Beside long prefills, and as many short ones without them."""
    groups = [group for group in f.groups(names.LENGTHS) if group.name in _LONG and group.changed]
    control = f.count(names.LENGTHS, names.SHORT_BESIDE_SHORT)
    return total(groups), control


def _long_sign(limit: Callable[[Findings], float]) -> Callable[[Findings], str | None]:
    def test(f: Findings) -> str | None:
        long, control = _long(f)
        if not (f.above(names.LENGTHS, long) and p_value(long, control) <= limit(f)):
            return None
        if control.changed and p_value(long, control) > f.alpha:
            return None
        return f"{f.say('where a long prefill shares the steps', long)}; {f.say('beside as many short ones', control)}"

    return test


def long_only() -> Sign:
    test = _long_sign(lambda f: WEAK)
    return Sign("`lengths`: changed beside a long prefill, more than beside as many short prompts", test)


def long_clearly() -> Sign:
    return Sign(
        "beside a long prefill more than beside short prompts by Fisher's exact test", _long_sign(lambda f: f.alpha)
    )


# Cache


def _boundary(f: Findings) -> tuple[Count, Count, str] | None:
    """The offsets that changed, everything else that was warm, and the offsets in words."""
    at = [group for group in f.groups(names.CACHE) if group.name.startswith(names.BOUNDARY)]
    hot, calm = [group for group in at if group.changed], [group for group in at if not group.changed]
    if not hot:
        return None
    rest = f.count(names.CACHE, *_NOT_AT_BOUNDARIES)
    rest = Count(rest.changed, rest.compared + sum(group.compared for group in calm))
    offsets = ", ".join(f"{group.x:+g}" for group in hot if group.x is not None)
    return total(hot), rest, offsets


def _boundary_sign(clearly: bool) -> Callable[[Findings], str | None]:
    def test(f: Findings) -> str | None:
        found = _boundary(f)
        if found is None:
            return None
        hot, rest, offsets = found
        p = p_value(hot, rest)
        enough = _CHOICES * p <= f.alpha
        if not f.above(names.CACHE, hot) or p > WEAK or not (enough or not (clearly or rest.changed)):
            return None
        size = f" of {f.identity.block_size} tokens" if f.identity.block_size else ""
        return (
            f"{f.say(f'prompts that end {offsets} tokens from the boundary of a block{size}', hot)}; "
            f"{f.say('all other warm ones', rest)}"
        )

    return test


def boundary_only() -> Sign:
    test = _boundary_sign(clearly=False)
    return Sign(
        "`cache`: prompts changed that end at some distance from a block's boundary, others not, or far fewer", test
    )


def boundary_clearly() -> Sign:
    return Sign(
        "more than the others by Fisher's exact test, corrected for the choice of distances",
        _boundary_sign(clearly=True),
    )


def warm() -> Sign:
    def test(f: Findings) -> str | None:
        if not f.more(names.CACHE):
            return None
        everything = total(group for group in f.groups(names.CACHE) if group.name not in _COLD)
        elsewhere = f.count(names.CACHE, *_NOT_AT_BOUNDARIES)
        if boundary_only().test(f) is not None and p_value(elsewhere, f.count(names.CACHE, *_COLD)) > f.alpha:
            return None  # some prompts end at a boundary by chance
        if not f.above(names.CACHE, everything):
            return None
        return f.say("a warm cache against a cold one", everything)

    return Sign("`cache`: warm changed against cold, not only at the boundaries of blocks", test)


def warm_clearly() -> Sign:
    def test(f: Findings) -> str | None:
        return certain(names.CACHE).test(f) if not f.count(names.CACHE, *_COLD).changed else None

    return Sign("more than asking alone twice, by Fisher's exact test, and cold against cold held", test)


def _label(probe: str, groups: tuple[str, ...]) -> str:
    return f"{probe}, {' and '.join(groups)}" if groups else probe
