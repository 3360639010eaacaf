"""The seeds probe: one seed alone twice and in a crowd."""

from __future__ import annotations

from queueproof.audit import names
from queueproof.audit.client.trouble import Failure, Kind
from queueproof.audit.probes.seeds import SeedsProbe
from queueproof.audit.records import ProbeResult, Verdict
from tests.support.scripted import Scripted, chat, result


def changed(found: ProbeResult) -> dict[str, tuple[int, int]]:
    return {group.name: (group.compared, group.changed) for group in found.groups}


def test_seeds_that_count_hold_with_both_witnesses() -> None:
    for users, prompts in ((24, 10), (2, 4)):
        found = result(SeedsProbe(), Scripted(), chat(prompts), users=users)
        assert found.verdict is Verdict.HOLDS
        assert [w.source for w in found.witnesses] == ["other seeds", "interleaved streams"]
        assert all(w.moved for w in found.witnesses)
        assert set(changed(found)) == {names.SAME_SEED, names.SAME_SEED_CROWD}
    by_metrics = result(SeedsProbe(), Scripted(metrics=True))
    assert by_metrics.verdict is Verdict.HOLDS


def test_a_seed_that_is_ignored_changes_alone() -> None:
    found = changed(result(SeedsProbe(), Scripted(seeded=False)))
    assert found[names.SAME_SEED] == (8, 8)


def test_a_sampler_that_minds_its_neighbours_changes_in_the_crowd_alone() -> None:
    found = changed(result(SeedsProbe(), Scripted(fault=lambda m: int(m.ask.temperature > 0 and m.running > 2))))
    assert found[names.SAME_SEED] == (8, 0) and found[names.SAME_SEED_CROWD][1] > 4


def test_without_sampling_it_is_inconclusive() -> None:
    found = result(SeedsProbe(), Scripted(greedy_only=True))
    assert found.verdict is Verdict.INCONCLUSIVE and "other seeds give other answers" in found.reason


def test_a_crowd_that_is_not_seen_side_by_side_is_inconclusive() -> None:
    found = result(SeedsProbe(), Scripted(one_at_a_time=True))
    assert found.verdict is Verdict.INCONCLUSIVE and "side by side" in found.reason


def test_a_seed_that_is_rejected_is_said() -> None:
    endpoint = Scripted(trouble=lambda ask: Failure(Kind.REJECTED, "400: no seed") if ask.seed else None)
    found = result(SeedsProbe(), endpoint)
    assert found.verdict is Verdict.NOT_RUN and "400: no seed" in found.reason and not found.problems
