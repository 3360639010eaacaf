"""The timeline: what a sample says, whom it names, and that nothing in it grows without bound."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from queueproof.server import timeline as module
from queueproof.server.protocol import Load, Member
from queueproof.server.timeline import BACKLOG, MAX_MEMBERS, PERIOD, SAMPLES, SECONDS, Timeline, label_of
from tests.support.records import RESPONSE_ID, record, tell


@dataclass
class Engine:
    """What a timeline reads of an engine."""

    arithmetic: str = "ieee/1"
    determinism_class: str = "portable"
    batch: list[Member] = field(default_factory=list)
    waiting: int = 0
    generated: int = 0
    looks: int = 0

    def load(self) -> Load:
        self.looks += 1
        batch = tuple(self.batch)
        return Load(len(batch), self.waiting, len(batch), 64, 0, self.generated, 0, 0, 0, 0, batch)


def read(timeline: Timeline) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = json.loads(timeline.snapshot())
    return found


def member(request_id: str, phase: Any = "decode", tokens: int = 1, length: int = 20) -> Member:
    return Member(request_id, phase, tokens, length)


def test_the_label_is_fnv1a() -> None:
    # Test vectors of the function's authors; the page's own version is held against this one in the browser test.
    assert label_of("") == "811c9dc5" and label_of("a") == "e40c292c" and label_of("foobar") == "bf9cf968"


def test_a_sample_says_who_shares_the_batch() -> None:
    engine = Engine(batch=[member("engine-1"), member("engine-2", "prefill", 16, 40)])
    timeline = Timeline([engine])  # type: ignore[list-item]
    timeline.started(record())
    timeline.started(record(response_id="other", engine_ids=("engine-2",)))
    timeline.sample(1.0)
    [sample] = read(timeline)["samples"]
    [seen] = sample["engines"]
    assert seen["running"] == 2 and seen["arithmetic"] == "ieee/1" and seen["kv"] == pytest.approx(2 / 64, abs=1e-4)
    assert seen["members"] == [[label_of(RESPONSE_ID), "d", 1, 20], [label_of("other"), "p", 16, 40]]


def test_no_id_is_in_it() -> None:
    engine = Engine(batch=[member("engine-1"), member("cmpl-secret-of-a-replay")])
    timeline = Timeline([engine])  # type: ignore[list-item]
    told = record()
    tell_it = json.dumps([RESPONSE_ID, "engine-1", "cmpl-secret-of-a-replay", told.request_id, told.receipts[0]])
    tell(timeline, told)  # type: ignore[arg-type]
    timeline.sample(1.0)
    timeline.close_second(2.0)
    text = timeline.snapshot()
    for secret in json.loads(tell_it):
        assert secret not in text


def test_the_answers_to_one_request_are_told_apart() -> None:
    engine = Engine(batch=[member("e-0"), member("e-0"), member("e-1"), member("?")])
    timeline = Timeline([engine])  # type: ignore[list-item]
    timeline.started(record(engine_ids=("e-0", "e-1"), n=2))
    timeline.sample(1.0)
    labels = [m[0] for m in read(timeline)["samples"][0]["engines"][0]["members"]]
    own = label_of(RESPONSE_ID)
    assert labels[:3] == [f"{own}.0", f"{own}.0/2", f"{own}.1"]
    assert labels[3].startswith("~") and label_of("?")[1:] not in labels[3]  # salted: the id may be guessed


def test_the_largest_batch_is_remembered_until_the_end() -> None:
    engine = Engine(batch=[member("engine-1")])
    timeline = Timeline([engine])  # type: ignore[list-item]
    timeline.started(record())
    timeline.sample(1.0)
    engine.batch += [member("x"), member("y")]
    timeline.sample(1.01)
    engine.batch = [member("engine-1")]
    timeline.sample(1.02)
    timeline.finished(record())
    [ended] = read(timeline)["ended"]
    assert ended["largest"] == 3 and ended["label"] == label_of(RESPONSE_ID) and ended["class"] == "portable"
    assert ended["prompt"] == 12 and ended["cached"] == 8 and ended["generated"] == 5 and ended["outcome"] == "ok"
    assert ended["ttft"] == pytest.approx(0.2) and ended["e2e"] == pytest.approx(1.0)


def test_one_who_left_keeps_its_label_until_the_engine_notices() -> None:
    engine = Engine(batch=[member("engine-1")])
    timeline = Timeline([engine])  # type: ignore[list-item]
    timeline.started(record())
    timeline.finished(record(outcome="disconnect"))
    timeline.sample(1.0)
    assert read(timeline)["samples"][0]["engines"][0]["members"][0][0] == label_of(RESPONSE_ID)


def test_one_who_was_never_seen_has_no_batch() -> None:
    timeline = Timeline([Engine()])  # type: ignore[list-item]
    timeline.started(record())
    timeline.finished(record())
    assert read(timeline)["ended"][0]["largest"] == 0


def test_a_change_is_seen_at_once_and_nothing_twice() -> None:
    engine = Engine()
    timeline = Timeline([engine])  # type: ignore[list-item]
    for i in range(5):
        timeline.sample(i * 1.0)  # idle: the first says so, the others would say it again
    assert len(read(timeline)["samples"]) == 1
    engine.batch = [member("a")]
    timeline.sample(5.0)
    timeline.sample(5.0 + PERIOD / 4)
    assert len(read(timeline)["samples"]) == 2
    engine.batch = [member("a", "prefill")]
    timeline.sample(5.0 + PERIOD / 2)
    assert len(read(timeline)["samples"]) == 3
    timeline.sample(5.0 + 2 * PERIOD)  # as before, but time has passed
    assert len(read(timeline)["samples"]) == 4
    engine.batch = []
    timeline.sample(5.0 + 2.1 * PERIOD)
    assert len(read(timeline)["samples"]) == 5


def test_tokens_do_not_make_it_read_the_engine_each_time() -> None:
    engine = Engine(batch=[member("engine-1")])
    timeline = Timeline([engine])  # type: ignore[list-item]
    before = engine.looks
    for i in range(1000):
        timeline.tokens(record(), 1, 100.0, 100.0 + i * 1e-4)
    assert engine.looks - before <= 0.1 / module.SHORTEST + 1


def test_the_series_of_seconds() -> None:
    engine = Engine(batch=[member("engine-1")] * 3, waiting=2)
    timeline = Timeline([engine])  # type: ignore[list-item]
    tell(timeline, record())  # type: ignore[arg-type]
    timeline.sample(1.0)
    engine.generated = 50
    timeline.close_second(timeline._counted_at + 2.0)
    [second] = read(timeline)["seconds"]
    assert second["token_rate"] == 25.0 and second["running"] == 3 and second["waiting"] == 2
    assert second["ttft"] == [pytest.approx(0.2), pytest.approx(0.2)]
    assert second["itl"][0] == pytest.approx(0.2) and second["itl"][1] == pytest.approx(0.2)
    engine.generated = 0  # made anew
    timeline.close_second(timeline._counted_at + 1.0)
    assert read(timeline)["seconds"][-1]["token_rate"] == 0
    assert read(timeline)["seconds"][-1]["ttft"] is None


def test_everything_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_LANES", 50)
    monkeypatch.setattr(module, "MAX_LEFT", 20)
    engine = Engine(batch=[member(f"e{i}") for i in range(MAX_MEMBERS + 30)])
    timeline = Timeline([engine])  # type: ignore[list-item]
    for i in range(SAMPLES + 50):
        timeline.started(record(engine_ids=(f"lost-{i}",)))
        timeline.sample(float(i))
        timeline.close_second(float(i) + 1e6)
        timeline.finished(record(engine_ids=(f"never-{i}",)))
        timeline.started(record(engine_ids=(f"short-{i}",)))
        timeline.finished(record(engine_ids=(f"short-{i}",)))
    for _ in range(2 * module.MAX_TIMES):
        timeline.tokens(record(), 1, None, 100.0)
        timeline.tokens(record(), 1, 100.0, 100.1)
    found = read(timeline)
    assert len(found["samples"]) == SAMPLES and len(found["seconds"]) == SECONDS
    assert len(found["ended"]) == module.ENDED and len(timeline._lanes) <= 50 and len(timeline._left) == 20
    assert len(timeline._second.first_token) == len(timeline._second.inter_token) == module.MAX_TIMES
    [seen] = found["samples"][-1]["engines"]
    assert len(seen["members"]) == MAX_MEMBERS and seen["running"] == MAX_MEMBERS + 30


def test_listeners_hear_everything_and_a_slow_one_misses_the_oldest() -> None:
    async def live() -> None:
        engine = Engine()
        timeline = Timeline([engine])  # type: ignore[list-item]
        heard, slow = timeline.listen(), timeline.listen()
        first, late = asyncio.ensure_future(anext(heard)), asyncio.ensure_future(anext(slow))
        await asyncio.sleep(0)
        for i in range(BACKLOG + 10):
            timeline.close_second(float(i) + 1e6)
            if i == 0:
                assert (await first).kind == (await late).kind == "second"
        waiting = [queue.qsize() for queue in timeline._listeners]
        assert waiting == [BACKLOG, BACKLOG]
        await heard.aclose()
        await slow.aclose()
        assert not timeline._listeners

    asyncio.run(live())


def test_there_is_room_for_some() -> None:
    async def live() -> None:
        timeline = Timeline([Engine()])  # type: ignore[list-item]
        all_of_them = [timeline.listen() for _ in range(module.MAX_LISTENERS)]
        tasks = [asyncio.ensure_future(anext(one)) for one in all_of_them]
        await asyncio.sleep(0)
        assert not timeline.has_room
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert timeline.has_room

    asyncio.run(live())


def test_it_runs_until_it_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PERIOD", 0.005)

    async def live() -> None:
        engine = Engine(batch=[member("a")])
        timeline = Timeline([engine])  # type: ignore[list-item]
        task = asyncio.create_task(timeline.run())
        events = timeline.listen()
        kinds = {(await anext(events)).kind for _ in range(8)}
        assert kinds == {"sample"}
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await events.aclose()

    asyncio.run(live())
